"""The calls of a turn, run and answered: in order, or side by side where all of them may be."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from environments.containment.hook_calls import HookCalls
from environments.rollout.model_calls import ModelCalls
from environments.rollout.rollout_budget import Budget
from environments.trajectory import Message, Turn
from tools.calls import ToolCall, ToolResult
from tools.errors import TimeLimitExceeded
from tools.registry import Toolset
from tools.sandbox.base import Sandbox
from tools.tool_context import ToolContext
from tools.tool_output import ToolOutput
from tools.waiting import side_by_side

_TIME_IS_UP = "[stopped: the time for this task is up]"
_IS_OVER = "[not run: the task has ended]"


@dataclass(slots=True, kw_only=True)
class ToolAnswers:
    """Answers the calls of one rollout's turns."""

    toolset: Toolset
    sandbox: Sandbox
    budget: Budget
    calls: HookCalls
    """What tools are called through."""
    clock: ModelCalls
    """Has the rollout's."""
    is_ended: Callable[[], bool]
    """Whether the environment has ended the rollout."""
    context: ToolContext | None
    """The rollout, for tools that take its state or the context."""

    async def to(self, turn: Turn) -> tuple[ToolResult, ...]:
        """The results in the order of the turn's calls.

        Raises:
            TimeLimitExceeded: what a tool began goes on beyond its limit.
            SandboxError: the sandbox is broken.
        """
        calls, index = turn.message.tool_calls, turn.index
        if self.toolset.are_parallel(calls):
            side = [self._result(call, index, is_parallel=True) for call in calls]
            return tuple(await side_by_side(side))
        return tuple([await self._result(call, index) for call in calls])

    async def _result(self, call: ToolCall, index: int, *, is_parallel: bool = False) -> ToolResult:
        """Run a call; one that finds no time left is answered with a note saying so."""
        limit_s = min(self.budget.tool_timeout_s, self.clock.seconds_left)
        if self.is_ended():
            return _not_run(call, _IS_OVER)
        if limit_s <= 0:
            return _not_run(call, _TIME_IS_UP, timed_out=True)
        return await self.toolset.execute(
            call,
            self.sandbox,
            timeout_s=limit_s,
            max_output_chars=self.budget.tool_output_chars,
            run=partial(self._run_tool, index, limit_s, is_parallel),
            context=self.context,
        )

    async def _run_tool(
        self,
        index: int,
        limit_s: float,
        is_parallel: bool,
        name: str,
        function: Callable[[], Any],
        *,
        busy: Callable[[], bool],
    ) -> ToolOutput:
        """What the tool gives; one that takes too long is ended, and the model is told."""
        try:
            return await self.calls.run(
                function,
                doing=f"tool {name}, turn {index + 1}",
                limit_s=limit_s,
                setting="tool_timeout_s" if limit_s == self.budget.tool_timeout_s else "rollout_timeout_s",
                busy=busy,
                is_parallel=is_parallel,
            )
        except TimeLimitExceeded as error:
            if error.still_running:
                raise  # what goes on may still change what the rollout is judged by
            told = (
                f"[stopped: still running after {limit_s:.3g} s]"
                if self.clock.seconds_left > 0
                else _TIME_IS_UP
            )
            return ToolOutput(content=told, timed_out=True)


def messages_of(results: tuple[ToolResult, ...]) -> tuple[Message, ...]:
    """Results as the conversation has them."""
    return tuple(
        Message(role="tool", content=result.content, tool_call_id=result.call_id) for result in results
    )


def _not_run(call: ToolCall, note: str, *, timed_out: bool = False) -> ToolResult:
    return ToolResult(call_id=call.id, name=call.name, content=note, timed_out=timed_out)
