"""A model server that answers anything at all: the call is lost, in a short line, and nothing else stops."""

import time

import pytest
from starlette.responses import JSONResponse

from environments.policy.base import CompletionRequest
from environments.policy.inference import http_client
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import Choice, ScriptedPolicy, say
from environments.rollout.boundary import failure_of
from environments.trajectory import Message
from tests.adversarial.heartbeat import heartbeat
from tests.adversarial.hostile_server import answer, hostile
from tests.adversarial.test_hostile_api import ANSWERS
from tests.environments.policy.chat_server import REQUEST, chat_policy, served, without
from tests.environments.policy.chat_server import answer as reply
from tests.tables import cases
from tools.errors import ConfigError, ContextOverflow, PolicyError

LONG = 10_000_000
LONGEST_HOLD_S = 0.1
ROOM = 32_768


def chatting(url, **settings):
    return chat_policy(f"{url}/v1", **{"tries": 1, "request_timeout_s": 20.0, **settings})


async def lost(policy, request=REQUEST):
    """The failure of a sibling whose call was lost."""
    with pytest.raises(PolicyError) as caught:
        await policy.complete(request)
    await policy.aclose()
    failure = failure_of(caught.value, sibling=0, turns=0)
    assert len(failure.error) < 1000
    assert len(failure.traceback) < 20_000
    assert "\n" not in str(caught.value)
    return caught.value


@cases("made", ANSWERS.values(), ids=ANSWERS)
async def test_the_look_at_a_server_before_a_run_takes_any_answer(made, monkeypatch):
    monkeypatch.setattr(http_client, "_MAX_ANSWER_BYTES", 1 << 20)
    async with hostile({"*": made}) as server:
        policy = chatting(server.url)
        with pytest.raises(ConfigError) as caught:
            await policy.check()
        await policy.aclose()
    assert len(str(caught.value)) < 1000


async def test_a_redirection_is_not_followed_and_names_where_to_ask():
    made = answer(b"", status=308, headers=["Location: http://user:secret@127.0.0.1:9/v2?token=t0ken"])
    async with hostile({"*": made}) as server:
        error = str(await lost(chatting(server.url)))
    assert "it leads to http://127.0.0.1:9/v2; ask there" in error


async def test_a_list_of_models_with_huge_names_is_shown_short():
    models = {"data": [{"id": "m" * 100_000} for _ in range(20)]}
    async with hostile({"*": answer(models)}) as server:
        policy = chatting(server.url)
        with pytest.raises(ConfigError) as caught:
            await policy.check()
        await policy.aclose()
    assert len(str(caught.value)) < 5000


# Long texts.


def long_message(role="user", chars=LONG):
    return Message(role=role, content="some words, and more of them\n" * (chars // 29))


async def test_a_prompt_that_no_row_can_hold_is_refused_before_it_is_rendered():
    request = CompletionRequest(messages=(long_message(),), max_row_tokens=ROOM)
    policy = ScriptedPolicy(
        lambda *_: [Choice(probability=1, message=say("done"))], skill=1, renderer=ChatMLRenderer.embedded()
    )
    started = time.process_time()
    async with heartbeat() as heart:
        with pytest.raises(ContextOverflow):
            await policy.complete(request)
    assert heart.longest_s < LONGEST_HOLD_S
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "text",
    ["some words, and more of them\n" * 20_000, "a" * 300_000, "\u4e16\u754c" * 100_000],
    ids=["words", "one letter", "another script"],
)
async def test_long_text_is_rendered_without_holding_the_loop(text):
    renderer = ChatMLRenderer.embedded()
    request = CompletionRequest(messages=(Message(role="user", content=text),))
    policy = ScriptedPolicy(
        lambda *_: [Choice(probability=1, message=say(text[::-1]))], skill=1, renderer=renderer
    )
    async with heartbeat() as heart:
        made = await policy.complete(request)
    assert heart.longest_s < LONGEST_HOLD_S
    assert made.prompt_ids == renderer.prompt_ids(request.messages, ())


async def test_a_completion_of_10_mb_without_ids_that_no_row_can_hold_does_not_hold_the_loop():
    body = without(reply(message={"content": "some words\n" * (LONG // 11)}), "choices", 0, "token_ids")
    async with served(JSONResponse(body), request_timeout_s=60.0) as (_, policy), heartbeat() as heart:
        with pytest.raises(ContextOverflow):
            await policy.complete(CompletionRequest(messages=REQUEST.messages, max_row_tokens=ROOM))
    assert heart.longest_s < LONGEST_HOLD_S


async def test_a_completion_with_many_ids_does_not_hold_the_loop():
    many = 100_000
    body = reply(token_ids=[7] * many, logprobs=[-0.5] * many, prompt_ids=range(many))
    async with hostile({"*": answer(body)}) as server:
        policy = chatting(server.url)
        async with heartbeat() as heart:
            assert len((await policy.complete(REQUEST)).token_ids) == many
        await policy.aclose()
    assert heart.longest_s < LONGEST_HOLD_S


async def test_a_conversation_of_10_mb_is_sent_without_holding_the_loop():
    async with hostile({"*": answer(reply())}) as server:
        policy = chatting(server.url)
        async with heartbeat() as heart:
            await policy.complete(CompletionRequest(messages=(long_message(),)))
        await policy.aclose()
    assert heart.longest_s < LONGEST_HOLD_S
