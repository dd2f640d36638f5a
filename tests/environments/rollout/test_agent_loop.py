"""The loop: what stops it, and what a turn holds."""

import asyncio
from dataclasses import replace

import pytest

from environments.policy.scripted import Choice, ScriptedPolicy, call, say
from environments.trajectory import Message, StopReason
from tests.environments.rollout.looped import RENDERER, ROOMY, looped
from tests.tables import cases
from tools.errors import ContextOverflow, PolicyError, SandboxUnavailable, ToolError
from tools.registry import Toolset, tool
from tools.sandbox.base import Sandbox


class Calls:
    def __init__(self):
        self.ran = []

        @tool
        async def add(sandbox: Sandbox, a: int, b: int) -> str:
            """Add two numbers.

            Args:
                a: First.
                b: Second.
            """
            self.ran.append((a, b))
            return str(a + b)

        @tool
        async def refuse(sandbox: Sandbox) -> str:
            """Refuse."""
            raise ToolError("not today")

        @tool
        async def break_sandbox(sandbox: Sandbox) -> str:
            """Break."""
            raise SandboxUnavailable("gone")

        @tool
        async def hang(sandbox: Sandbox) -> str:
            """Hang."""
            await asyncio.Event().wait()
            return ""

        self.toolset = Toolset("calls", (add, refuse, break_sandbox, hang))


def playing(*messages):
    """A policy that says these messages, one a turn, then repeats the last."""

    def script(conversation, tools, skill):
        spoken = sum(message.role == "assistant" for message in conversation)
        return [Choice(probability=1.0, message=messages[min(spoken, len(messages) - 1)])]

    return ScriptedPolicy(script, skill=1.0, renderer=RENDERER)


async def run(policy, *, budget=ROOMY, calls=None, respond=None):
    return await looped(policy, (calls or Calls()).toolset, budget=budget, respond=respond)


ADD = call("add", {"a": 2, "b": 3})


async def test_a_message_without_calls_completes_the_rollout():
    loop, turns = await run(playing(ADD, say("5")))
    assert (loop.stop_reason, len(turns)) == (StopReason.COMPLETED, 2)


async def test_several_calls_of_a_turn_run_in_order():
    calls = Calls()
    two = replace(ADD, tool_calls=ADD.tool_calls + call("add", {"a": 7, "b": 1}).tool_calls)
    _, turns = await run(playing(two, say("done")), calls=calls)
    assert calls.ran == [(2, 3), (7, 1)]
    assert [result.content for result in turns[0].tool_results] == ["5", "8"]


@cases(
    ("bad", "kind", "says"),
    [
        (call("multiply", {}), "unknown_tool", "add"),
        (call("add", '{"a": 2,'), "invalid_json", "add"),
        (call("add", {"a": "two", "b": 3}), "invalid_arguments", "a"),
        (call("add", {"a": 2}), "invalid_arguments", "b"),
        (call("add", {"a": 2, "b": 3, "c": 4}), "invalid_arguments", "c"),
        (call("refuse", {}), "tool_error", "not today"),
    ],
)
async def test_a_bad_call_runs_nothing_and_tells_the_model_what_was_wrong(bad, kind, says):
    calls = Calls()
    _, turns = await run(playing(bad, say("sorry")), calls=calls)
    result = turns[0].tool_results[0]
    assert (result.error, calls.ran) == (kind, [])
    assert says in result.content


async def test_max_turns_stops():
    loop, turns = await run(playing(ADD), budget=replace(ROOMY, max_turns=3))
    assert (loop.stop_reason, len(turns)) == (StopReason.MAX_TURNS, 3)


class Failing:
    name = "failing"

    def __init__(self, error):
        self.error, self.inner, self.played = error, playing(ADD), 0

    async def complete(self, request):
        self.played += 1
        if self.played > 1:
            raise self.error
        return await self.inner.complete(request)


async def test_a_server_that_says_the_context_is_full_ends_the_rollout_with_its_turns():
    loop, turns = await run(Failing(ContextOverflow("too long")))
    assert (loop.stop_reason, len(turns)) == (StopReason.CONTEXT_OVERFLOW, 1)


@pytest.mark.parametrize("error", [PolicyError("lost"), TimeoutError("its own")])
async def test_a_lost_model_call_leaves_the_loop_as_an_error(error):
    with pytest.raises(type(error)):
        await run(Failing(error))


async def test_a_broken_sandbox_leaves_the_loop_as_an_error():
    with pytest.raises(SandboxUnavailable):
        await run(playing(call("break_sandbox", {})))


async def test_a_tool_that_hangs_ends_with_the_time_budget_and_its_turn_is_kept():
    loop, turns = await run(playing(call("hang", {})), budget=replace(ROOMY, timeout_s=1.5))
    assert (loop.stop_reason, turns[0].tool_results[0].timed_out) == (StopReason.TIME_BUDGET, True)


async def test_a_model_that_hangs_ends_with_the_time_budget():
    class Hanging:
        name = "hanging"

        async def complete(self, request):
            await asyncio.Event().wait()

    loop, turns = await run(Hanging(), budget=replace(ROOMY, timeout_s=0.2))
    assert (loop.stop_reason, turns) == (StopReason.TIME_BUDGET, [])


async def test_reasoning_is_kept_and_stays_in_the_row():
    loop, turns = await run(playing(replace(ADD, reasoning="add them"), say("5")))
    assert turns[0].message.reasoning == "add them"
    assert len(loop.rows) == 1


def sampled(turns):
    return [turn.span.end - turn.span.start for turn in turns]


async def test_a_row_of_exactly_its_bound_is_kept_and_one_token_less_ends_the_rollout():
    loop, turns = await run(playing(ADD, say("5")))
    (row,) = loop.rows
    for bound, reason, kept in (
        (len(row.token_ids), StopReason.COMPLETED, 2),
        (len(row.token_ids) - 1, StopReason.CONTEXT_OVERFLOW, 1),
    ):
        loop, turns = await run(playing(ADD, say("5")), budget=replace(ROOMY, max_row_tokens=bound))
        assert (loop.stop_reason, len(turns)) == (reason, kept)


async def test_a_message_of_exactly_the_tokens_of_a_turn_is_whole_and_one_token_less_cuts_it():
    _, turns = await run(playing(say("word " * 20)))
    (length,) = sampled(turns)
    for limit, finish, reason in (
        (length, "stop", StopReason.COMPLETED),
        (length - 1, "length", StopReason.TOKEN_BUDGET),
    ):
        loop, turns = await run(playing(say("word " * 20)), budget=replace(ROOMY, max_tokens_per_turn=limit))
        assert (sampled(turns), turns[0].finish_reason, loop.stop_reason) == ([limit], finish, reason)


async def test_a_budget_that_a_turn_uses_up_exactly_ends_the_rollout_and_one_token_more_goes_on():
    _, turns = await run(playing(ADD, say("5")))
    length = sampled(turns)[0]
    for budget, expected in ((length, [length]), (length + 1, [length, 1])):
        loop, turns = await run(playing(ADD, say("5")), budget=replace(ROOMY, token_budget=budget))
        assert (sampled(turns), loop.stop_reason) == (expected, StopReason.TOKEN_BUDGET)


class Extending:
    """A policy that goes on from the open row, and notes what it was handed."""

    name = "extending"

    def __init__(self, *messages, **fields):
        self.inner, self.fields, self.rows = playing(*messages), fields, []

    async def complete(self, request):
        whole = await self.inner.complete(replace(request, row=None))
        self.rows.append(None if request.row is None else (request.row.messages, list(request.row.token_ids)))
        if request.row is None:
            return replace(whole, **self.fields)
        rest = whole.prompt_ids[len(request.row.token_ids) :]
        return replace(whole, prompt_ids=rest, extends_row=True, **self.fields)


async def test_a_policy_is_handed_the_open_row_and_how_many_messages_it_holds():
    policy = Extending(ADD, ADD, say("5"))
    loop, turns = await run(policy)
    ends = [turn.span.end for turn in turns[:-1]]
    assert policy.rows == [
        None,
        *((2 * n, list(loop.rows[0].token_ids[:end])) for n, end in enumerate(ends, 1)),
    ]


async def test_a_row_that_was_extended_equals_one_of_whole_prompts():
    whole, turns = await run(playing(ADD, ADD, say("5")))
    extended, others = await run(Extending(ADD, ADD, say("5")))
    assert extended.rows == whole.rows
    assert [turn.span for turn in others] == [turn.span for turn in turns]


async def test_a_turn_says_which_weights_sampled_it_and_how():
    sampling = {"temperature": 0.5, "logprobs_mode": "processed_logprobs"}
    _, turns = await run(Extending(ADD, say("5"), weight_version="step-3", sampling=sampling))
    assert [(turn.weight_version, turn.sampling, turn.fork) for turn in turns] == [
        ("step-3", sampling, None)
    ] * 2


class Forgetting(Extending):
    """A server whose template drops a part of the history."""

    async def complete(self, request):
        whole = await self.inner.complete(replace(request, row=None))
        return replace(whole, prompt_ids=whole.prompt_ids[-3:], **self.fields)


@pytest.mark.parametrize(("named", "cause"), [(None, "template"), ("renderer: gone", "renderer: gone")])
async def test_a_turn_that_begins_a_new_row_says_why(named, cause):
    loop, turns = await run(Forgetting(ADD, ADD, say("5"), fork=named))
    assert [turn.fork for turn in turns] == [None, cause, cause]
    assert len(loop.rows) == 3


class Capped(Extending):
    """A policy that asks for no more than its row, or the model's window, has room for."""

    def __init__(self, *messages, room):
        super().__init__(*messages)
        self.room = room

    async def complete(self, request):
        whole = await self.inner.complete(replace(request, row=None))
        room = min(self.room, request.max_row_tokens) - len(whole.prompt_ids)
        return await self.inner.complete(replace(request, row=None, max_tokens=min(request.max_tokens, room)))


@cases("short", [0, 1, 5])
@cases("what", ["row", "window"])
async def test_a_turn_that_was_cut_for_want_of_room_is_kept_and_overflows(what, short):
    _, turns = await run(playing(ADD, say("word " * 50)))
    length = turns[-1].span.end
    bound, room = (length - short, 10_000) if what == "row" else (10_000, length - short)
    loop, turns = await run(
        Capped(ADD, say("word " * 50), room=room), budget=replace(ROOMY, max_row_tokens=bound)
    )
    expected = StopReason.CONTEXT_OVERFLOW if short else StopReason.COMPLETED
    assert (loop.stop_reason, turns[-1].span.end) == (expected, length - short)


async def test_a_turn_that_was_cut_for_want_of_room_overflows_though_cut_turns_are_answered():
    async def respond(turn):
        return (Message(role="user", content="why?"),)

    _, turns = await run(playing(say("word " * 50)))
    policy = Capped(say("word " * 50), room=turns[-1].span.end - 1)
    loop, turns = await run(policy, budget=replace(ROOMY, on_cut="respond"), respond=respond)
    assert (loop.stop_reason, len(turns)) == (StopReason.CONTEXT_OVERFLOW, 1)


async def test_a_full_row_ends_the_rollout_before_the_next_turn_is_paid():
    policy = Extending(ADD)
    _, turns = await run(policy)
    full = replace(ROOMY, max_row_tokens=turns[0].span.end)
    policy = Extending(ADD)
    loop, turns = await run(policy, budget=full)
    assert (loop.stop_reason, len(turns), len(policy.rows)) == (StopReason.CONTEXT_OVERFLOW, 1, 1)


class Muttering(Extending):
    async def complete(self, request):
        whole = await super().complete(request)
        if request.row is not None:
            return whole
        calls = tuple(replace(each, status="unclosed_block") for each in whole.message.tool_calls)
        return replace(whole, message=replace(whole.message, tool_calls=calls))


async def test_a_call_that_could_not_be_read_is_answered_and_the_rollout_goes_on():
    calls = Calls()
    loop, turns = await run(Muttering(ADD, say("5")), calls=calls)
    assert (loop.stop_reason, len(turns), calls.ran) == (StopReason.COMPLETED, 2, [])
    assert [result.error for result in turns[0].tool_results] == ["invalid_json"]
