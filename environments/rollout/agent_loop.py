"""The tool-calling loop: a policy and its tools take turns until something stops them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import monotonic

from environments.policy.base import CompletionRequest, Policy, vocabulary_size
from environments.rollout.completion_check import checked_completion
from environments.rollout.rows import RowBuilder
from environments.trajectory import Completion, Message, StopReason, TokenRow, Turn
from tools.calls import ToolCall, ToolResult
from tools.errors import ContextOverflow
from tools.registry import Toolset
from tools.sandbox.base import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one rollout may spend."""

    max_turns: int
    max_tokens_per_turn: int
    token_budget: int
    """Tokens sampled in all turns together."""
    max_row_tokens: int
    """A completion that would make its row longer than this is discarded and ends the rollout."""
    timeout_s: float
    """Wall clock, tool time included."""
    tool_timeout_s: float
    tool_output_chars: int


class AgentLoop:
    """One rollout. Iterate over `turns()`; then read `stop_reason`, `rows` and `exact`.

    A lost model call (`PolicyError`) or a broken sandbox (`SandboxError`) leaves `turns()` as an exception:
    the caller drops the sibling.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        toolset: Toolset,
        sandbox: Sandbox,
        prompt: tuple[Message, ...],
        budget: Budget,
        seed: int,
    ) -> None:
        self.stop_reason: StopReason | None = None
        self.exact = True
        self._policy = policy
        self._toolset = toolset
        self._sandbox = sandbox
        self._messages = list(prompt)
        self._budget = budget
        self._seed = seed
        self._rows = RowBuilder()
        self._tokens_left = budget.token_budget
        self._deadline = monotonic() + budget.timeout_s

    @property
    def rows(self) -> tuple[TokenRow, ...]:
        """The token rows of the turns so far."""
        return self._rows.build()

    async def turns(self) -> AsyncIterator[Turn]:
        """Each turn, as soon as its tool results are in."""
        for index in range(self._budget.max_turns):
            started = monotonic()
            completion = await self._complete()
            if completion is None:
                return
            model_s = monotonic() - started
            span = self._rows.append(completion)
            self._tokens_left -= len(completion.token_ids)
            self.exact = self.exact and completion.exact
            self._messages.append(completion.message)
            results = await self._answer(completion.message.tool_calls)
            yield Turn(
                index=index,
                message=completion.message,
                tool_results=results,
                finish_reason=completion.finish_reason,
                span=span,
                model_s=model_s,
                tools_s=monotonic() - started - model_s,
            )
            self.stop_reason = self._reason_to_stop(completion)
            if self.stop_reason is not None:
                return
        self.stop_reason = StopReason.MAX_TURNS

    async def _complete(self) -> Completion | None:
        """The next completion, or `None` with `stop_reason` set."""
        request = CompletionRequest(
            messages=tuple(self._messages),
            tools=self._toolset.specs,
            seed=self._seed,
            max_tokens=min(self._budget.max_tokens_per_turn, self._tokens_left),
        )
        clock = asyncio.timeout(self._seconds_left())
        try:
            async with clock:
                given = await self._policy.complete(request)
        except ContextOverflow:
            self.stop_reason = StopReason.CONTEXT_OVERFLOW
            return None
        except TimeoutError:
            if not clock.expired():
                raise
            self.stop_reason = StopReason.TIME_BUDGET
            return None
        completion = checked_completion(
            given, max_tokens=request.max_tokens, vocabulary_size=vocabulary_size(self._policy)
        )
        if len(completion.prompt_ids) + len(completion.token_ids) > self._budget.max_row_tokens:
            self.stop_reason = StopReason.CONTEXT_OVERFLOW
            return None
        return completion

    async def _answer(self, calls: tuple[ToolCall, ...]) -> tuple[ToolResult, ...]:
        """Run the calls in order; those that find no time left are answered with a note saying so."""
        results: list[ToolResult] = []
        clock = asyncio.timeout(self._seconds_left())
        try:
            async with clock:
                for call in calls:
                    results.append(
                        await self._toolset.execute(
                            call,
                            self._sandbox,
                            timeout_s=max(0.001, min(self._budget.tool_timeout_s, self._seconds_left())),
                            max_output_chars=self._budget.tool_output_chars,
                        )
                    )
        except TimeoutError:
            if not clock.expired():
                raise
        results += [_out_of_time(call) for call in calls[len(results) :]]
        self._messages += [
            Message(role="tool", content=result.content, tool_call_id=result.call_id) for result in results
        ]
        return tuple(results)

    def _reason_to_stop(self, completion: Completion) -> StopReason | None:
        truncated = completion.finish_reason == "length"
        if not completion.message.tool_calls:
            return StopReason.TOKEN_BUDGET if truncated else StopReason.COMPLETED
        if self._tokens_left <= 0:
            return StopReason.TOKEN_BUDGET
        if self._seconds_left() <= 0:
            return StopReason.TIME_BUDGET
        return None

    def _seconds_left(self) -> float:
        return max(0.0, self._deadline - monotonic())


def _out_of_time(call: ToolCall) -> ToolResult:
    return ToolResult(
        call_id=call.id, name=call.name, content="[stopped: the time for this task is up]", timed_out=True
    )
