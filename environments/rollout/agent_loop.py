"""The tool-calling loop: a policy and its tools take turns until something stops them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any

from environments.containment.hook_calls import HookCalls
from environments.policy.base import CompletionRequest, Policy, vocabulary_size
from environments.rollout.completion_check import checked_completion
from environments.rollout.rows import RowBuilder
from environments.trajectory import Completion, Message, StopReason, TokenRow, Turn
from tools.calls import ToolCall, ToolResult
from tools.context import ToolContext
from tools.errors import ContextOverflow, TimeLimitExceeded
from tools.registry import Toolset
from tools.sandbox.base import Sandbox
from tools.tool_output import ToolOutput
from tools.waiting import side_by_side

_TIME_IS_UP = "[stopped: the time for this task is up]"
_IS_OVER = "[not run: the task has ended]"


async def no_reply(turn: Turn) -> tuple[Message, ...]:
    """A world that says nothing."""
    return ()


def unheard(messages: tuple[Message, ...]) -> None:
    """Nobody follows the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one rollout may spend."""

    max_turns: int
    max_tokens_per_turn: int
    token_budget: int
    """Tokens sampled in all turns together."""
    max_row_tokens: int
    """A completion that would make its row longer than this is discarded and ends the rollout; one that was
    cut so that its row ends there is kept, and ends it, too."""
    timeout_s: float
    """Wall clock, tool time included."""
    tool_timeout_s: float
    tool_output_chars: int


@dataclass(slots=True, kw_only=True)
class AgentLoop:
    """One rollout. Iterate over `turns()`; then read `stop_reason`, `rows` and `exact`.

    A lost model call (`PolicyError`) or a broken sandbox (`SandboxError`) leaves `turns()` as an exception:
    the caller drops the sibling.
    """

    policy: Policy
    toolset: Toolset
    sandbox: Sandbox
    messages: tuple[Message, ...]
    """The opening; then the conversation so far."""
    budget: Budget
    seed: int
    calls: HookCalls
    """What policy and tools are called through."""
    respond: Callable[[Turn], Awaitable[tuple[Message, ...]]] = no_reply
    """What the world says after a turn, its tool results in."""
    is_ended: Callable[[], bool] = bool
    """Whether the environment has ended the rollout."""
    spoken: Callable[[tuple[Message, ...]], None] = unheard
    """Takes the conversation whenever it has grown."""
    context: ToolContext | None = None
    """The rollout, for tools that take its state or the context."""
    stop_reason: StopReason | None = field(default=None, init=False)
    exact: bool = field(default=True, init=False)
    _rows: RowBuilder = field(default_factory=RowBuilder, init=False)
    _tokens_left: int = field(init=False)
    _deadline: float = field(init=False)

    def __post_init__(self) -> None:
        """The clock starts here."""
        self._tokens_left = self.budget.token_budget
        self._deadline = monotonic() + self.budget.timeout_s

    @property
    def rows(self) -> tuple[TokenRow, ...]:
        """The token rows of the turns so far."""
        return self._rows.build()

    async def turns(self) -> AsyncIterator[Turn]:
        """Each turn, as soon as its tool results and replies are in."""
        for index in range(self.budget.max_turns):
            started = monotonic()
            request = self._request()
            completion = await self._complete(request, index)
            if completion is None:
                return
            model_s = monotonic() - started
            span = self._rows.append(completion, messages=len(self.messages) + 1)
            self._tokens_left -= len(completion.token_ids)
            self.exact = self.exact and completion.exact
            self._append(completion.message)
            results = await self._answer(completion.message.tool_calls, index)
            turn = Turn(
                index=index,
                message=completion.message,
                tool_results=results,
                finish_reason=completion.finish_reason,
                span=span,
                fork=self._rows.fork,
                weight_version=completion.weight_version,
                sampling=dict(completion.sampling),
                model_s=model_s,
                tools_s=monotonic() - started - model_s,
            )
            if not self.is_ended():
                turn = replace(turn, replies=await self.respond(turn))
                self._append(*turn.replies)
            yield turn
            self.stop_reason = self._reason_to_stop(completion, request, turn)
            if self.stop_reason is not None:
                return
        self.stop_reason = StopReason.MAX_TURNS

    def _append(self, *messages: Message) -> None:
        self.messages += messages
        self.spoken(self.messages)

    def _request(self) -> CompletionRequest:
        return CompletionRequest(
            messages=self.messages,
            tools=self.toolset.specs,
            seed=self.seed,
            max_tokens=min(self.budget.max_tokens_per_turn, self._tokens_left),
            max_row_tokens=self.budget.max_row_tokens,
            row=self._rows.open,
        )

    async def _complete(self, request: CompletionRequest, index: int) -> Completion | None:
        """The next completion, or `None` with `stop_reason` set."""
        if self._rows.open_tokens >= self.budget.max_row_tokens:
            self.stop_reason = StopReason.CONTEXT_OVERFLOW
            return None
        try:
            given = await self.calls.run(
                partial(self.policy.complete, request),
                doing=f"model, turn {index}",
                limit_s=self._seconds_left(),
                setting="rollout_timeout_s",
            )
        except ContextOverflow:
            self.stop_reason = StopReason.CONTEXT_OVERFLOW
            return None
        except TimeLimitExceeded:
            if self._seconds_left() > 0:
                raise  # of a hook that the policy called
            self.stop_reason = StopReason.TIME_BUDGET
            return None
        completion = checked_completion(given, request, vocabulary_size=vocabulary_size(self.policy))
        before = self._rows.open_tokens if completion.extends_row else 0
        if before + len(completion.prompt_ids) + len(completion.token_ids) > self.budget.max_row_tokens:
            self.stop_reason = StopReason.CONTEXT_OVERFLOW
            return None
        return completion

    async def _answer(self, calls: tuple[ToolCall, ...], index: int) -> tuple[ToolResult, ...]:
        """The results in the order of the calls, run side by side where all of them may be."""
        if self.toolset.are_parallel(calls):
            results = await side_by_side([self._result(call, index, is_parallel=True) for call in calls])
        else:
            results = [await self._result(call, index) for call in calls]
        self._append(
            *(Message(role="tool", content=result.content, tool_call_id=result.call_id) for result in results)
        )
        return tuple(results)

    async def _result(self, call: ToolCall, index: int, *, is_parallel: bool = False) -> ToolResult:
        """Run a call; one that finds no time left is answered with a note saying so."""
        limit_s = min(self.budget.tool_timeout_s, self._seconds_left())
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
                doing=f"tool {name}, turn {index}",
                limit_s=limit_s,
                setting="tool_timeout_s" if limit_s == self.budget.tool_timeout_s else "rollout_timeout_s",
                busy=busy,
                is_parallel=is_parallel,
            )
        except TimeLimitExceeded as error:
            if error.still_running:
                raise  # what goes on may still change what the rollout is judged by
            told = (
                f"[stopped: still running after {limit_s:.3g} s]" if self._seconds_left() > 0 else _TIME_IS_UP
            )
            return ToolOutput(content=told, timed_out=True)

    def _reason_to_stop(
        self, completion: Completion, request: CompletionRequest, turn: Turn
    ) -> StopReason | None:
        if self.is_ended():
            return StopReason.ENDED
        truncated = completion.finish_reason == "length"
        if truncated and self._had_no_room(completion, request):
            return StopReason.CONTEXT_OVERFLOW
        if not completion.message.tool_calls and truncated:
            return StopReason.TOKEN_BUDGET
        if not completion.message.tool_calls and not turn.replies:
            return StopReason.COMPLETED
        if self._tokens_left <= 0:
            return StopReason.TOKEN_BUDGET
        if self._seconds_left() <= 0:
            return StopReason.TIME_BUDGET
        return None

    def _had_no_room(self, completion: Completion, request: CompletionRequest) -> bool:
        """Whether a truncated completion ends where its row, or the model's window, is full."""
        if not completion.exact:
            return False  # its tokens were counted by another tokenizer than its limit
        is_full = self._rows.open_tokens >= self.budget.max_row_tokens
        return is_full or len(completion.token_ids) < request.max_tokens

    def _seconds_left(self) -> float:
        return max(0.0, self._deadline - monotonic())


def _not_run(call: ToolCall, note: str, *, timed_out: bool = False) -> ToolResult:
    return ToolResult(call_id=call.id, name=call.name, content=note, timed_out=timed_out)
