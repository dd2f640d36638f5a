"""The quirks of real model servers, over real HTTP: a conversation through `ChatPolicy`, or why not."""

import re
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from environments.policy.base import CompletionRequest
from environments.policy.chat import ChatPolicy
from environments.policy.inference.model_server import ModelServer
from environments.policy.mock_server import MockSettings, mock_app
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import Choice, ScriptedPolicy, say
from environments.trajectory import Message
from tests.equipment.quirky_server import QuirkyServer
from tests.equipment.running_server import running_server
from tests.equipment.server_quirks import SERVERS, quirks_named
from tests.tables import cases
from tools.calls import ToolCall, ToolSpec
from tools.errors import ConfigError, PolicyError

RENDERER = ChatMLRenderer.embedded()
USER = Message(role="user", content="Count the files.")
TERMINAL = ToolSpec(name="terminal", description="Run a command.", parameters={"type": "object"})
TWO_CALLS = (
    ToolCall(id="", name="terminal", arguments='{"command": "ls | wc -l"}'),
    ToolCall(id="", name="terminal", arguments='{"command": "pwd"}'),
)


def script(messages, tools, skill):
    if messages[-1].role == "user":
        message = Message(role="assistant", content="Let me look.", reasoning="Hm.", tool_calls=TWO_CALLS)
        return [Choice(probability=1, message=message)]
    return [
        Choice(probability=0.5, message=say("3")),
        Choice(probability=0.5, message=say("4", reasoning="1+3")),
    ]


@asynccontextmanager
async def quirky(*names, model="scripted", has=None, **settings):
    """A policy that asks a server with these quirks for a model; unless told otherwise it has that one."""
    has = MockSettings(model=has or model)
    app = mock_app(lambda _: script, skill=1, renderer=RENDERER, settings=has)
    async with running_server(QuirkyServer(app, quirks_named(names))) as base_url:
        server = ModelServer(
            base_url=base_url, api_key="k", tries=2, first_wait_s=0.001, longest_wait_s=0.002
        )
        policy = ChatPolicy(server=server, model=model, renderer=RENDERER, **settings)
        yield policy
        await policy.aclose()


async def conversation(policy, *, seed=0):
    """Two turns: what calls gave is answered."""
    messages, completions = (USER,), []
    for _ in range(2):
        request = CompletionRequest(messages=messages, tools=(TERMINAL,), seed=seed)
        completions.append(replace(await policy.complete(request), sampling={}))
        message = completions[-1].message
        answers = [Message(role="tool", content="3\n", tool_call_id=c.id) for c in message.tool_calls]
        messages = (*messages, message, *answers)
    return completions


def calls_of(completion):
    return [(c.name, c.arguments, c.status) for c in completion.message.tool_calls]


CALLS = [(c.name, c.arguments, "ok") for c in TWO_CALLS]
WITH_IDS = [
    "vllm-reasoning", "sglang-response-ids", "sglang-finish", "llamacpp-calls", "ollama-finish",
    "openrouter-error", "openrouter-comments", "openrouter-reasoning", "mistral-thinking", "mistral-call-ids",
    "transformers-stream", "openai-max-tokens openai-sampling",
]  # fmt: skip
TEXT = ["openai-no-ids", "llamacpp-no-ids", "mistral-fields"]


@cases("names", WITH_IDS)
async def test_a_conversation_keeps_the_tokens_of_the_sampler(names):
    local = ScriptedPolicy(script, skill=1, renderer=RENDERER)
    async with quirky(*names.split()) as policy:
        for got, sampled in zip(
            await conversation(policy, seed=3), await conversation(local, seed=3), strict=True
        ):
            assert (got.token_ids, got.logprobs, got.exact) == (sampled.token_ids, sampled.logprobs, True)
            assert calls_of(got) == calls_of(sampled)
            assert got.finish_reason == sampled.finish_reason
            assert len({c.id for c in got.message.tool_calls}) == len(got.message.tool_calls)


@cases("name", TEXT)
async def test_a_server_of_text_alone_is_asked_for_no_more(name, caplog):
    async with quirky(name) as policy:
        first, second = await conversation(policy)
    assert (first.exact, first.logprobs, calls_of(first)) == (False, None, CALLS)
    assert second.message.content in ("3", "4")
    assert sum("gives no token ids" in each.message for each in caplog.records) == 1


@cases("server", SERVERS)
async def test_a_whole_server_passes_its_check_and_plays(server):
    async with quirky(server) as policy:
        await policy.check()
        first, second = await conversation(policy)
    assert [name for name, _, _ in calls_of(first)] == ["terminal", "terminal"]
    assert first.finish_reason == "tool_calls"
    assert second.message.content in ("3", "4")


@cases(("temperature", "top_p", "setting"), [(0.7, 1.0, "temperature"), (1.0, 0.9, "top_p")])
async def test_a_setting_that_is_refused_is_named_with_what_to_set(temperature, top_p, setting):
    async with quirky("openai-sampling", temperature=temperature, top_p=top_p) as policy:
        with pytest.raises(PolicyError, match=rf"refuses {setting} 0\.\d .*: set --openai\.{setting} to 1"):
            await conversation(policy)


async def test_ids_that_we_make_up_are_such_as_mistral_takes():
    async with quirky("mistral-roles", "llamacpp-calls") as policy:
        first = (await conversation(policy))[0]
    assert all(re.fullmatch("[0-9A-Za-z]{9}", c.id) for c in first.message.tool_calls)


@cases("settings", [{"family": "hermes"}, {"model": "Qwen3-8B"}], ids=["setting", "model"])
async def test_calls_that_a_server_leaves_in_the_text_are_read_by_the_models_format(settings):
    async with quirky("vllm-no-parser", **settings) as policy:
        first, second = await conversation(policy)
    assert (calls_of(first), first.finish_reason, first.exact) == (CALLS, "tool_calls", True)
    assert first.message.content == "Let me look."
    assert second.message.content in ("3", "4")


async def test_calls_in_the_text_of_a_format_that_is_not_known_are_told_of_once(caplog):
    async with quirky("vllm-no-parser") as policy:
        for seed in range(12):
            await policy.complete(CompletionRequest(messages=(USER,), tools=(TERMINAL,), seed=seed))
    told = [each.getMessage() for each in caplog.records]
    assert [each.partition(": ")[2][:40] for each in told] == [
        "an answer holds '<tool_call>' as text, a",
        "the model called none of the 1 tools tha",
    ]
    assert all("--tool-call-parser NAME of vLLM" in each for each in told)


@cases("name", ["llamacpp-models", "ollama-models", "openrouter-models"])
async def test_a_model_that_is_not_listed_is_named(name):
    async with quirky(name, model="other", has="scripted") as policy:
        with pytest.raises(ConfigError, match=r"has no model 'other'; it has .*scripted"):
            await policy.check()
