import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from environments.policy.base import CompletionRequest, OpenRow
from environments.policy.rendering.chatml import CannotExtendError
from environments.policy.scripted import Choice, ScriptedPolicy, call, say
from environments.trajectory import Message
from tests.environments.policy.token_server import (
    ALL_WIRES,
    RENDERER,
    TERMINAL,
    USER,
    rollout,
    served,
    token_policy,
)
from tests.equipment.running_server import running_server
from tests.tables import cases
from tools.errors import ContextOverflow, PolicyError

wires = pytest.mark.parametrize("wire", ALL_WIRES, ids="-".join)


def counting_script(messages, tools, skill):
    if messages[-1].role == "tool":
        return [
            Choice(probability=0.5, message=say("3")),
            Choice(probability=0.5, message=say("4", reasoning="3+1")),
        ]
    return [
        Choice(probability=skill, message=call("terminal", {"command": "ls | wc -l"}, content="Look.")),
        Choice(probability=1 - skill, message=call("terminal", '{"command": "ls')),
    ]


@wires
async def test_ids_and_logprobs_are_those_of_the_scripted_policy_in_the_process(wire):
    local = ScriptedPolicy(counting_script, skill=0.6, renderer=RENDERER)
    async with served(wire, counting_script) as remote:
        for seed in range(4):
            there, here = [(await rollout(policy, seed))[0] for policy in (remote, local)]
            for one, other in zip(there, here, strict=True):
                assert (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs)
                assert (one.finish_reason, one.exact) == (other.finish_reason, True)


@wires
async def test_a_row_that_grows_turn_by_turn_is_the_whole_prompt_and_the_last_turn(wire):
    async with served(wire, counting_script) as remote:
        completions, row, messages = await rollout(remote, 1, turns=3)
    assert [each.extends_row for each in completions] == [False, True, True]
    whole = RENDERER.prompt_ids(messages[:-1], (TERMINAL,))
    assert tuple(row.token_ids) == whole + completions[-1].token_ids


@wires
async def test_a_spent_turn_is_cut_and_its_cut_call_is_none(wire):
    def calling(messages, tools, skill):
        return [Choice(probability=1.0, message=call("terminal", {"command": "ls"}, content="Hm."))]

    async with served(wire, calling) as remote:
        completion = await remote.complete(replace(REQUEST, max_tokens=8))
    assert (len(completion.token_ids), completion.finish_reason) == (8, "length")
    assert completion.message.tool_calls == ()


@wires
async def test_weights_and_sampling_are_recorded(wire):
    async with served(
        wire,
        counting_script,
        policy={"temperature": 0.7, "extra_body": {"top_k": 5, "return_weight_versions": True}},
    ) as remote:
        completion = await remote.complete(REQUEST)
    assert completion.sampling == {"temperature": 0.7, "top_p": 1.0, "top_k": 5}
    assert completion.weight_version == (None if wire[0] == "llama.cpp" else "default")


@wires
async def test_a_bias_against_a_token_leaves_the_mock_server_its_script(wire):
    bias = [[123, False]] if wire[0] == "llama.cpp" else {"123": -100}
    async with served(wire, counting_script, policy={"extra_body": {"logit_bias": bias}}) as remote:
        completion = await remote.complete(REQUEST)
    assert completion.message.tool_calls


# A server that answers what a test says.

REQUEST = CompletionRequest(messages=(USER,), tools=(TERMINAL,), seed=3)
STOP, END = RENDERER.stop_ids
HELLO = RENDERER.completion_ids(say("Hello"))


def answer(token_ids=HELLO, *, finish_reason="stop", **more):
    choice = {
        "finish_reason": finish_reason,
        "token_ids": list(token_ids),
        "logprobs": {"token_logprobs": [-0.5] * len(token_ids)},
        **more,
    }
    return {"choices": [choice]}


@asynccontextmanager
async def answering(*answers, **policy):
    """A policy over `/v1/completions`, and what its server was asked."""
    queue, asked = list(answers), []

    async def complete(request):
        asked.append(json.loads(await request.body()))
        reply = queue.pop(0) if len(queue) > 1 else queue[0]
        return reply if isinstance(reply, JSONResponse) else JSONResponse(reply)

    app = Starlette(routes=[Route("/v1/completions", complete, methods=["POST"])])
    async with running_server(app) as base_url:
        asking = token_policy(base_url, ("vllm", "completions"), **policy)
        yield asking, asked
        await asking.aclose()


async def completed(*answers, request=REQUEST, **policy):
    async with answering(*answers, **policy) as (asking, asked):
        return await asking.complete(request), asked


async def refused(*answers, request=REQUEST, **policy):
    async with answering(*answers, **policy) as (asking, _):
        with pytest.raises(PolicyError) as error:
            await asking.complete(request)
    assert "\n" not in str(error.value)
    return str(error.value)


def row_of(request, token_ids=HELLO):
    row = OpenRow()
    row.extend(
        RENDERER.prompt_ids(request.messages, request.tools), token_ids, messages=len(request.messages) + 1
    )
    return row


def next_request(row, **changes):
    messages = (USER, say("Hello"), Message(role="user", content="Again."))
    return replace(REQUEST, messages=messages, row=row, **changes)


@dataclass
class Unbridged:
    """A renderer that cannot go on from this turn."""

    inner: object = RENDERER

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def extend(self, sampled, messages, tools):
        raise CannotExtendError("reasoning was cut")


async def test_what_cannot_be_extended_is_rendered_whole_and_says_why():
    completion, asked = await completed(answer(), request=next_request(row_of(REQUEST)), renderer=Unbridged())
    assert (completion.extends_row, completion.fork) == (False, "renderer: reasoning was cut")
    assert tuple(asked[0]["prompt"]) == completion.prompt_ids


async def test_the_server_gets_the_row_and_only_what_is_new_is_handed_on():
    row = row_of(REQUEST)
    completion, asked = await completed(answer(), request=next_request(row))
    assert asked[0]["prompt"] == [*row.token_ids, *completion.prompt_ids]
    assert completion.extends_row


async def test_every_stop_id_is_sent_and_more_can_be_named():
    _, asked = await completed(answer(), extra_body={"stop_token_ids": [7, STOP]})
    assert asked[0]["stop_token_ids"] == [STOP, END, 7]


async def test_what_a_server_samples_after_a_stop_token_is_cut_off():
    completion, _ = await completed(answer((*HELLO, 300, 301), finish_reason="length"))
    assert (completion.token_ids, completion.finish_reason) == (HELLO, "stop")
    assert len(completion.logprobs) == len(HELLO)


async def test_an_end_token_of_the_servers_own_is_taken_when_it_is_named():
    completion, _ = await completed(answer((*HELLO[:-1], 300), stop_reason=300))
    assert completion.finish_reason == "stop"


@cases("stop", ["lo", ["x", "lo"]], ids=["one", "several"])
async def test_a_turn_that_ends_with_a_text_has_no_stop_token(stop):
    completion, _ = await completed(answer(HELLO[:-1], stop_reason="lo"), extra_body={"stop": stop})
    assert (completion.token_ids, completion.finish_reason) == (HELLO[:-1], "stop")
    row = row_of(REQUEST, completion.token_ids)
    after, _ = await completed(answer(), request=next_request(row))
    assert after.prompt_ids[0] == STOP


@cases(
    "ended",
    [{"stop_reason": "<|im_end|>"}, {"stop_reason": "lo"}, {"finish_reason": None}, {}],
    ids=["marker", "text", "early", "dropped"],
)
async def test_a_turn_that_nothing_ended_is_refused(ended):
    given = await refused(answer(HELLO[:-1], **ended), extra_body={"stop": ["x"]})
    assert f"none of {sorted(RENDERER.stop_ids)}, which end a turn" in given


@cases(("ids", "reason", "finish"), [(HELLO, None, "stop"), (HELLO[:-1], "length", "length")])
async def test_a_turn_may_end_without_a_reason_or_at_a_limit_of_the_servers_own(ids, reason, finish):
    completion, _ = await completed(answer(ids, finish_reason=reason))
    assert (completion.token_ids, completion.finish_reason) == (ids, finish)


async def test_an_id_outside_of_the_vocabulary_is_refused():
    message = await refused(answer((RENDERER.vocabulary_size, STOP)))
    assert f"the id {RENDERER.vocabulary_size}; the tokenizer has {RENDERER.vocabulary_size}" in message


PROMPT_TOKENS = len(RENDERER.prompt_ids(REQUEST.messages, REQUEST.tools))


@cases("limit", ["context_tokens", "max_row_tokens"])
async def test_no_more_tokens_are_asked_for_than_there_is_room_and_none_without(limit):
    def limited(tokens):
        if limit == "context_tokens":
            return {"context_tokens": tokens, "request": REQUEST}
        return {"request": replace(REQUEST, max_row_tokens=tokens)}

    _, asked = await completed(answer(HELLO[:3], finish_reason="length"), **limited(PROMPT_TOKENS + 3))
    assert asked[0]["max_tokens"] == 3
    with pytest.raises(ContextOverflow, match=f"{PROMPT_TOKENS} prompt tokens leave no room"):
        await completed(JSONResponse({}, status_code=500), **limited(PROMPT_TOKENS))


async def test_the_room_of_an_open_row_is_what_it_leaves():
    row = row_of(REQUEST)
    _, asked = await completed(answer(), request=next_request(row), context_tokens=PROMPT_TOKENS + 200)
    assert asked[0]["max_tokens"] == PROMPT_TOKENS + 200 - len(asked[0]["prompt"])


@cases("going_on", [False, True], ids=["whole", "row"])
async def test_a_prompt_is_counted_as_it_is_sent(going_on):
    request = next_request(row_of(REQUEST)) if going_on else REQUEST
    async with answering(answer()) as (asking, asked):
        counted = await asking.prompt_tokens(request)
        assert asked == []
        await asking.complete(request)
    assert counted == len(asked[0]["prompt"])


def error(status, message):
    return JSONResponse({"error": {"message": message, "code": None}}, status_code=status)


async def test_a_server_that_says_that_the_prompt_is_too_long_overflows():
    async with answering(error(400, "This model's maximum context length is 9 tokens.")) as (asking, _):
        with pytest.raises(ContextOverflow, match="answered 400"):
            await asking.complete(REQUEST)


async def test_a_wire_that_is_switched_off_says_what_to_switch_on():
    async def refuse(request):
        return error(403, "Scale-out endpoints are disabled.")

    app = Starlette(routes=[Route("/inference/v1/generate", refuse, methods=["POST"])])
    async with running_server(app) as base_url:
        asking = token_policy(base_url, ("vllm", "generate"))
        with pytest.raises(PolicyError, match=r"answered 403: .* disabled\.; .*--enable-scale-out"):
            await asking.complete(REQUEST)
        await asking.aclose()


async def test_a_wire_that_is_not_there_says_what_to_switch_on():
    async with served(("sglang", "generate")) as there:
        base_url = there.server.base_url
        asking = token_policy(base_url, ("vllm", "generate"))
        with pytest.raises(PolicyError, match=r"/inference/v1/generate answered 404: .*--enable-scale-out"):
            await asking.complete(REQUEST)
        await asking.aclose()
