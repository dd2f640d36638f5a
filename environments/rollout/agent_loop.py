"""The tool-calling loop: a policy and its tools take turns until something stops them."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Protocol

from environments.policy.base import Policy
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.rollout.condensing import Condensing, Summariser
from environments.rollout.containment.hook_calls import HookCalls
from environments.rollout.context import Condenser
from environments.rollout.model_calls import Budget, ModelCalls, Sampled, Stopped
from environments.rollout.prompt_tokens import PromptTokens, TokenEstimate
from environments.trajectory import (
    AgentCaused,
    AgentRun,
    JudgeCall,
    Message,
    StopReason,
    TokenRow,
    Turn,
    parse_messages,
)
from tools.calls import ToolCall, ToolContext, ToolResult, ToolSpec
from tools.errors import AgentCausedError, ConfigError, RolloutError, TimeLimitExceeded
from tools.plain_text import hide
from tools.registry import ToolOutput, Toolset
from tools.sandbox.base import Sandbox
from tools.waiting import side_by_side


def opening_messages(prompt: Any, *, system: str | None, env: str) -> tuple[Message, ...]:
    """Return the opening messages: the system prompt and a text prompt, or the given messages unchanged."""
    where = f"environment {env!r}: format_prompt"
    before = (Message(role="system", content=system),) if system and isinstance(prompt, str) else ()
    messages = (*before, *parse_messages(prompt, where))
    if not messages:
        raise ConfigError(f"{where} gave no messages; give text, or at least one message")
    return messages


def reply_messages(given: Any, *, env: str) -> tuple[Message, ...]:
    where = f"environment {env!r}: respond"
    if given is None:
        return ()
    messages = parse_messages(given, where)
    if not messages:
        raise ConfigError(f"{where} gave no messages; give None where there is no reply")
    for message in messages:
        if message.role not in ("user", "system"):
            raise ConfigError(
                f"{where} gave a message of role {message.role!r}; a reply is of role user or system"
            )
        if message != Message(role=message.role, content=message.content):
            raise ConfigError(f"{where} gave {message!r:.200}; a reply has a role and content alone")
    return messages


_TIME_IS_UP = "[stopped: the time for this task is up]"
_IS_OVER = "[not run: the task has ended]"
_BROKE = "[broken off: {}]"


class LoopContext(ToolContext, Protocol):
    """The fields of a rollout's context that a loop reads and writes."""

    messages: tuple[Message, ...]

    @property
    def end_reason(self) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopResult:
    prompt: tuple[Message, ...]
    turns: Sequence[Turn]
    scores: list[Any]
    """Values that `score_turn` returned, in the order of `turns`."""
    tools: tuple[ToolSpec, ...]
    rows: tuple[TokenRow, ...]
    stop_reason: StopReason
    exact: bool
    had_no_room: bool = False
    """Whether the rollout ended because a limit forbade the next model call."""
    agent: AgentRun | None = None
    other_calls: tuple[JudgeCall, ...] = ()


class Loop(Protocol):
    """One rollout, by `AgentLoop` or by an agent that owns its loop."""

    def turns(self) -> AsyncGenerator[Turn]:
        """Yield each turn as soon as its tool results and replies are known.

        Raises:
            PolicyError, SandboxError: if the sibling is lost.
            AgentCausedError: if the agent broke the rollout, see `break_off`.
        """
        ...

    def break_off(self, caused: AgentCaused) -> list[Turn]:
        """End the rollout because of what the agent broke; return the turns not yielded yet."""
        ...

    def result(self, turns: Sequence[Turn], scores: list[Any]) -> LoopResult:
        """Return the result, given the finished turns and the value of `score_turn` for each.

        Raises:
            RolloutError: if the agent did not act.
        """
        ...


@dataclass(slots=True, kw_only=True)
class AgentLoop:
    """The loop of our own agent: iterate over `turns()`, then ask for the `result`."""

    policy: Policy
    toolset: Toolset
    sandbox: Sandbox
    messages: tuple[Message, ...]
    budget: Budget
    seed: int
    calls: HookCalls
    context: LoopContext | None = None
    respond: Callable[[Turn], Awaitable[tuple[Message, ...]]] | None = None
    before_act: Callable[[int], Awaitable[None]] | None = None
    """Called before each act is requested, with its number from 1."""
    condensers: Sequence[Condenser] = ()
    estimate: TokenEstimate = field(default_factory=lambda: TokenEstimate(ChatMLRenderer.embedded()))
    """Counts tokens for condensers if the policy does not; one for all rollouts of a policy."""
    where: str = ""
    summariser: Summariser | None = None
    hidden: Sequence[str] = ()
    """Texts, such as keys, that are cut out of every tool result."""
    stop_reason: StopReason | None = field(default=None, init=False)
    _unfinished: Turn | None = field(default=None, init=False)
    """A sampled turn that was not yielded, because its calls or the reply to it broke."""
    _said: tuple[Message, ...] = field(init=False)
    _models: ModelCalls = field(init=False)
    _condensing: Condensing | None = field(default=None, init=False)
    _broken: AgentCausedError | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._said = self.messages
        count = PromptTokens(self.policy, self.estimate, self.calls) if self.condensers else None
        self._models = ModelCalls(
            policy=self.policy,
            tools=self.toolset.specs,
            budget=self.budget,
            seed=self.seed,
            calls=self.calls,
            count=count,
        )
        if count is not None:
            self._condensing = Condensing(
                models=self._models,
                calls=self.calls,
                condensers=self.condensers,
                count=count,
                summariser=self.summariser,
                rollout=self.where,
                opening=self.messages,
            )

    @property
    def rows(self) -> tuple[TokenRow, ...]:
        return self._models.rows

    @property
    def is_ended(self) -> bool:
        return self.context is not None and self.context.end_reason is not None

    def result(self, turns: Sequence[Turn], scores: list[Any]) -> LoopResult:
        if not any(turn.kind == "act" for turn in turns):
            why = f" ({self._models.stopped_by})" if self._models.stopped_by else ""
            raise RolloutError(f"no turn was finished: {self.stop_reason}{why}")
        return LoopResult(
            prompt=self.messages,
            turns=turns,
            scores=scores,
            tools=self.toolset.specs,
            rows=self.rows,
            stop_reason=self.stop_reason or StopReason.COMPLETED,
            exact=self._models.exact,
            had_no_room=self._models.stopped is not None and not self._models.is_discarded,
        )

    def break_off(self, caused: AgentCaused) -> list[Turn]:
        is_lost = caused.cause == "sandbox_lost"
        self.stop_reason = StopReason.SANDBOX_LOST if is_lost else StopReason.AGENT_CAUSED
        return [] if self._unfinished is None else [self._unfinished]

    async def turns(self) -> AsyncGenerator[Turn]:
        for act in range(1, self.budget.max_turns + 1):
            if self.before_act is not None:
                await self.before_act(act)
            if self._condensing is not None:
                for summary in await self._condensing.condense():
                    yield summary
            sampled = await self._sample()
            if sampled is None:
                return
            turn = await self._answer(sampled.turn)
            yield turn
            self.stop_reason = self._reason_to_stop(sampled, turn)
            if self.stop_reason is not None:
                return
        self.stop_reason = StopReason.MAX_TURNS

    async def _sample(self) -> Sampled | None:
        models = self._models
        try:
            if models.stopped is None and self._condensing is not None:
                return await self._condensing.sample()
            if models.stopped is None:
                return await models.sample(models.request(self._said, position=len(self._said)))
        except Stopped:
            pass
        self.stop_reason = models.stopped
        return None

    async def _answer(self, turn: Turn) -> Turn:
        started = monotonic()
        self._add(turn, (turn.message,))
        self._unfinished = turn
        calls, index = turn.message.tool_calls, turn.index
        if self.toolset.are_parallel(calls):
            results = await side_by_side([self._run(call, index, is_parallel=True) for call in calls])
        else:
            results = [await self._run(call, index) for call in calls]
        turn = replace(turn, tool_results=tuple(results), tools_s=monotonic() - started)
        self._unfinished = turn
        if results:
            self._add(turn, turn.messages[1:])
        if self._broken is not None:
            raise self._broken
        if self.respond is not None and not self.is_ended:
            turn = replace(turn, replies=await self.respond(turn))
            self._add(turn, turn.replies)
        self._unfinished = None
        return turn

    def _add(self, turn: Turn, messages: tuple[Message, ...]) -> None:
        self._said += messages
        if self._condensing is not None:
            self._condensing.add(messages, turn.index)
        if self.context is not None:
            self.context.messages = self._said

    async def _run(self, call: ToolCall, index: int, *, is_parallel: bool = False) -> ToolResult:
        """Run a tool call of turn `index`. Without time left, the result is a note that says so."""
        limit_s = min(self.budget.tool_timeout_s, self._models.deadline - monotonic())
        if self.is_ended or self._broken is not None:
            return _not_run(call, _IS_OVER)
        if limit_s <= 0:
            return _not_run(call, _TIME_IS_UP, timed_out=True)

        async def run(name: str, function: Callable[[], Any], *, busy: Callable[[], bool]) -> ToolOutput:
            setting = "tool_timeout_s" if limit_s == self.budget.tool_timeout_s else "rollout_timeout_s"
            doing = f"tool {name}, turn {index + 1}"
            try:
                return await self.calls.run(
                    function,
                    doing=doing,
                    limit_s=limit_s,
                    setting=setting,
                    busy=busy,
                    is_parallel=is_parallel,
                )
            except TimeLimitExceeded as error:
                if error.still_running:  # it may still change what the rollout is judged by
                    raise AgentCausedError(str(error), cause="tool_timeout") from error
                is_over = monotonic() >= self._models.deadline
                note = _TIME_IS_UP if is_over else f"[stopped: still running after {limit_s:.3g} s]"
                return ToolOutput(content=note, timed_out=True)

        try:
            result = await self.toolset.execute(
                call,
                self.sandbox,
                timeout_s=limit_s,
                max_output_chars=self.budget.tool_output_chars,
                run=run,
                context=self.context,
            )
            return replace(result, content=hide(result.content, self.hidden)) if self.hidden else result
        except AgentCausedError as error:
            self._broken = self._broken or error
            return _not_run(call, _BROKE.format(error), timed_out=error.cause == "tool_timeout")

    def _reason_to_stop(self, sampled: Sampled, turn: Turn) -> StopReason | None:
        if self.is_ended:
            return StopReason.ENDED
        if sampled.had_no_room:
            return StopReason.CONTEXT_OVERFLOW
        is_answered = self.budget.on_cut == "respond" and turn.replies
        if not turn.message.tool_calls and turn.finish_reason == "length" and not is_answered:
            return StopReason.TOKEN_BUDGET
        if not turn.message.tool_calls and not turn.replies:
            return StopReason.COMPLETED
        if self._models.tokens_left <= 0:
            return StopReason.TOKEN_BUDGET
        if monotonic() >= self._models.deadline:
            return StopReason.TIME_BUDGET
        return None


def _not_run(call: ToolCall, note: str, *, timed_out: bool = False) -> ToolResult:
    return ToolResult(call_id=call.id, name=call.name, content=note, timed_out=timed_out)
