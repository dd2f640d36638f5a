import json
from dataclasses import replace

import httpx
import pytest

from environments.policy.base import CompletionRequest
from environments.policy.chat import ChatPolicy
from environments.policy.inference.model_server import ModelServer
from environments.policy.mock_server import MockSettings, mock_app
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import Choice, ScriptedPolicy, call, generic_script, say
from environments.trajectory import Message
from tests.equipment.running_server import running_server
from tests.tables import cases
from tools.calls import ToolSpec
from tools.errors import ContextOverflow, PolicyError

RENDERER = ChatMLRenderer.embedded()
SYSTEM = Message(role="system", content="Be brief. ä<|im_end|>")
USER = Message(role="user", content="Count the files.")
TERMINAL = ToolSpec(
    name="terminal",
    description="Run a “command”.",
    parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)


def counting_script(messages, tools, skill):
    if messages[-1].role == "tool":
        return [
            Choice(probability=0.5, message=say("3")),
            Choice(probability=0.5, message=say("4", reasoning="3+1")),
        ]
    return [
        Choice(
            probability=skill, message=call("terminal", {"command": "ls | wc -l"}, content="Let me look.")
        ),
        Choice(probability=1 - skill, message=call("terminal", '{"command": "ls')),
    ]


def app(script=counting_script, **settings):
    skill = settings.pop("skill", 0.6)
    return mock_app(
        lambda messages: script, skill=skill, renderer=RENDERER, settings=MockSettings(**settings)
    )


def chat_policy(base_url, *, model="scripted", **settings):
    server = ModelServer(**{"base_url": base_url, "api_key": "k", "tries": 1, **settings})
    return ChatPolicy(server=server, model=model, renderer=RENDERER)


async def rollout(policy, seed, max_tokens=1024):
    messages, completions = (SYSTEM, USER), []
    for _ in range(2):
        request = CompletionRequest(messages=messages, tools=(TERMINAL,), seed=seed, max_tokens=max_tokens)
        # The script knows nothing of how a server is asked to sample.
        completions.append(replace(await policy.complete(request), sampling={}))
        message = completions[-1].message
        answers = [Message(role="tool", content="3\n", tool_call_id=c.id) for c in message.tool_calls]
        messages = (*messages, message, *answers)
    return completions


@cases("max_tokens", [1024, 6])
@cases("script", [counting_script, generic_script])
async def test_over_http_and_in_process_the_same_seed_gives_the_same_completions(script, max_tokens):
    local = ScriptedPolicy(script, skill=0.6, renderer=RENDERER)
    async with running_server(app(script)) as base_url:
        remote = chat_policy(base_url)
        for seed in range(8):
            assert await rollout(remote, seed, max_tokens) == await rollout(local, seed, max_tokens)
        await remote.aclose()


async def test_a_conversation_without_a_script_gets_the_generic_one():
    request = CompletionRequest(messages=(USER,), tools=(TERMINAL,))
    async with running_server(app(None)) as base_url:
        remote = chat_policy(base_url)
        completion = await remote.complete(request)
        await remote.aclose()
    assert replace(completion, sampling={}) == await ScriptedPolicy(
        generic_script, skill=0.6, renderer=RENDERER
    ).complete(request)


async def test_a_prompt_longer_than_the_context_overflows():
    async with running_server(app(context_tokens=20)) as base_url:
        with pytest.raises(ContextOverflow, match="maximum context length is 20 tokens"):
            await rollout(chat_policy(base_url), 0)


async def test_a_completion_is_cut_where_the_context_ends():
    request = CompletionRequest(messages=(USER,))
    context = len(RENDERER.prompt_ids((USER,), ())) + 3
    async with running_server(app(context_tokens=context)) as base_url:
        completion = await chat_policy(base_url).complete(request)
    assert (len(completion.token_ids), completion.finish_reason) == (3, "length")


async def test_a_wrong_model_is_not_found():
    async with running_server(app()) as base_url:
        with pytest.raises(PolicyError, match="answered 404: The model `other` does not exist"):
            await rollout(chat_policy(base_url, model="other"), 0)


def ask(**changes):
    return {"model": "scripted", "messages": [USER.to_openai()], **changes}


async def post(body, **settings):
    async with (
        running_server(app(**settings)) as base_url,
        httpx.AsyncClient(base_url=base_url) as client,
    ):
        return await client.post(
            "/chat/completions", content=body if isinstance(body, str) else json.dumps(body)
        )


@cases(
    ("body", "named"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        (ask(messages=[]), "messages"),
        (ask(messages=[{"role": "robot"}]), "messages[0] has the role"),
        (ask(stream=True), "stream"),
        (ask(n=2), "n:"),
        (ask(max_tokens=0), "max_tokens"),
    ],
)
async def test_a_bad_request_gets_an_openai_error_that_names_the_field(body, named):
    response = await post(body)
    assert response.status_code == 400
    assert named in response.json()["error"]["message"]


async def test_ids_come_when_they_are_asked_for_and_usage_counts_them():
    reply = (await post(ask())).json()
    assert reply.keys() | reply["choices"][0].keys() & {"prompt_token_ids", "token_ids"} == reply.keys()
    assert reply["choices"][0]["logprobs"] is None
    with_ids = (await post(ask(return_token_ids=True))).json()
    prompt, sampled = len(with_ids["prompt_token_ids"]), len(with_ids["choices"][0]["token_ids"])
    counts = {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
    assert with_ids["usage"] == counts == reply["usage"]


async def test_a_call_without_text_has_null_content_as_at_openai():
    message = (await post(ask(), skill=0.0)).json()["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"]["arguments"] == '{"command": "ls'


async def test_content_parts_are_joined():
    parts = [{"type": "text", "text": "Count "}, {"type": "text", "text": "the files."}]
    reply = (await post(ask(messages=[{"role": "user", "content": parts}], return_token_ids=True))).json()
    assert tuple(reply["prompt_token_ids"]) == RENDERER.prompt_ids((USER,), ())


async def test_calls_have_ids_of_their_own_where_a_history_was_cut():
    earlier = call("terminal", {})
    named = replace(earlier, tool_calls=(replace(earlier.tool_calls[0], id="call_5_9_0"),))
    said = (USER, named, Message(role="tool", content="3", tool_call_id="call_5_9_0"), USER)
    async with running_server(app()) as base_url:
        policy = chat_policy(base_url)
        request = CompletionRequest(messages=said, tools=(TERMINAL,), seed=5, max_tokens=500)
        completion = await policy.complete(request)
        await policy.aclose()
    assert [each.id for each in completion.message.tool_calls] == ["call_5_10_0"]
