"""Calls of one turn that run side by side, and those that do not."""

import asyncio
from contextvars import ContextVar
from dataclasses import replace
from types import SimpleNamespace

import pytest

from environments.policy.scripted import Choice, ScriptedPolicy, call, say
from environments.rollout.containment.hook_calls import InFlight
from environments.trajectory import ToolResult
from tests.environments.rollout.looped import RENDERER, ROOMY, looped
from tools.errors import ToolError, UserCodeBroke
from tools.registry import Toolset, tool

WHO: ContextVar[str] = ContextVar("who", default="nobody")


class Meeting:
    def __init__(self):
        self.arrived, self.two_wait = asyncio.Event(), asyncio.Event()
        self.waiting = 0
        self.happened = []
        self.context = SimpleNamespace(end_reason=None, messages=())
        self.in_flight = InFlight(item_id="meeting", sibling=0)

        @tool(parallel=True)
        async def wait() -> str:
            """Wait until somebody arrives."""
            WHO.set("waiting")
            self.waiting += 1
            if self.waiting == 2:
                self.two_wait.set()
            try:
                await self.arrived.wait()
            finally:
                self.happened.append("wait ended")
            return WHO.get()

        @tool(parallel=True)
        async def arrive() -> str:
            """Arrive."""
            WHO.set("arriving")
            self.happened.append("arrived")
            self.arrived.set()
            return self.in_flight.doing

        @tool(parallel=True)
        async def refuse() -> str:
            """Refuse."""
            raise ToolError("not today")

        @tool(parallel=True)
        async def end() -> str:
            """End the rollout."""
            self.context.end_reason = "over"
            return "ended"

        @tool(parallel=True)
        async def leave() -> str:
            """End the process."""
            raise SystemExit(3)

        @tool
        async def unmarked() -> str:
            """Do something that is better alone."""
            self.happened.append("unmarked")
            return "alone"

        self.toolset = Toolset("meeting", (wait, arrive, refuse, end, leave, unmarked))

    async def results(self, *names, **budget) -> tuple[ToolResult, ...]:
        calls = tuple(call(name, {}).tool_calls[0] for name in names)
        said = replace(say(""), tool_calls=calls)
        policy = ScriptedPolicy(
            lambda *_: [Choice(probability=1.0, message=said)], skill=1.0, renderer=RENDERER
        )
        _, (turn,) = await looped(
            policy,
            self.toolset,
            budget=replace(ROOMY, max_turns=1, **budget),
            in_flight=self.in_flight,
            context=self.context,
        )
        return turn.tool_results


@pytest.fixture
async def meeting():
    return Meeting()


async def test_marked_calls_run_side_by_side_and_their_results_keep_the_order(meeting):
    results = await meeting.results("wait", "arrive")
    assert [result.name for result in results] == ["wait", "arrive"]
    assert meeting.happened == ["arrived", "wait ended"]


async def test_each_call_has_context_variables_of_its_own(meeting):
    assert (await meeting.results("wait", "arrive"))[0].content == "waiting"


async def test_what_is_going_on_is_the_call_that_began_last(meeting):
    assert (await meeting.results("wait", "arrive"))[1].content == "tool arrive, turn 1"


@pytest.mark.parametrize("other", ["unmarked", "unknown"])
async def test_beside_a_call_that_is_not_marked_all_run_in_turn(meeting, other):
    results = await meeting.results("wait", "arrive", other, tool_timeout_s=0.2)
    assert [result.content for result in results[:1]] == ["[stopped: still running after 0.2 s]"]
    assert meeting.happened[:2] == ["wait ended", "arrived"]


async def test_a_limit_is_that_of_each_call(meeting):
    results = await meeting.results("wait", "refuse", tool_timeout_s=0.2)
    assert [(result.timed_out, result.error) for result in results] == [(True, None), (False, "tool_error")]


async def test_an_error_for_the_model_is_that_of_its_call_alone(meeting):
    results = await meeting.results("refuse", "wait", "arrive")
    assert [result.error for result in results] == ["tool_error", None, None]


async def test_an_end_lets_those_that_run_finish(meeting):
    results = await meeting.results("wait", "end", "arrive")
    assert [result.content for result in results] == ["waiting", "ended", "tool arrive, turn 1"]


async def test_what_breaks_ends_the_others_and_is_itself(meeting):
    with pytest.raises(UserCodeBroke) as caught:
        await meeting.results("wait", "leave")
    assert isinstance(caught.value.__cause__, SystemExit)
    assert meeting.happened == ["wait ended"]


async def test_a_cancellation_from_outside_reaches_all_of_them(meeting):
    running = asyncio.ensure_future(meeting.results("wait", "wait"))
    await meeting.two_wait.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert meeting.happened == ["wait ended"] * 2
