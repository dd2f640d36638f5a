"""The tool-calling loop: a policy and its tools take turns until something stops them."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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
    written_messages,
)
from tools.calls import ToolCall, ToolContext, ToolResult, ToolSpec
from tools.errors import AgentCausedError, ConfigError, NoModelError, RolloutError, TimeLimitExceeded
from tools.registry import ToolOutput, Toolset
from tools.sandbox.base import Sandbox
from tools.waiting import side_by_side


def opening_messages(prompt: Any, *, system: str | None, env: str) -> tuple[Message, ...]:
    """Text becomes one user message after the system prompt; a list of messages stays as it is.

    Raises:
        ConfigError: the prompt is neither.
    """
    where = f"environment {env!r}: format_prompt"
    before = (Message(role="system", content=system),) if system and isinstance(prompt, str) else ()
    messages = (*before, *written_messages(prompt, where))
    if not messages:
        raise ConfigError(f"{where} gave no messages; give text, or at least one message")
    return messages


def reply_messages(given: Any, *, env: str) -> tuple[Message, ...]:
    """What `respond` gave, as messages; none for `None`.

    Raises:
        ConfigError: it is no text and no message, an empty list, or says what nobody replies.
    """
    where = f"environment {env!r}: respond"
    if given is None:
        return ()
    messages = written_messages(given, where)
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
    broken: AgentCausedError | None = field(default=None, init=False)
    """What the agent broke with a call; nothing is run any more."""

    async def to(self, turn: Turn) -> tuple[ToolResult, ...]:
        """The results in the order of the turn's calls; `broken` says whether one of them broke something.

        Raises:
            SandboxError: the sandbox is broken, and not by the agent.
        """
        calls, index = turn.message.tool_calls, turn.index
        if self.toolset.are_parallel(calls):
            side = [self._result(call, index, is_parallel=True) for call in calls]
            return tuple(await side_by_side(side))
        return tuple([await self._result(call, index) for call in calls])

    async def _result(self, call: ToolCall, index: int, *, is_parallel: bool = False) -> ToolResult:
        """Run a call; one that finds no time left is answered with a note saying so."""
        limit_s = min(self.budget.tool_timeout_s, self.clock.seconds_left)
        if self.is_ended() or self.broken is not None:
            return _not_run(call, _IS_OVER)
        if limit_s <= 0:
            return _not_run(call, _TIME_IS_UP, timed_out=True)
        try:
            return await self.toolset.execute(
                call,
                self.sandbox,
                timeout_s=limit_s,
                max_output_chars=self.budget.tool_output_chars,
                run=partial(self._run_tool, index, limit_s, is_parallel),
                context=self.context,
            )
        except AgentCausedError as error:
            self.broken = self.broken or error
            return _not_run(call, _BROKE.format(error), timed_out=error.cause == "tool_timeout")

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
            if error.still_running:  # what goes on may still change what the rollout is judged by
                raise AgentCausedError(str(error), cause="tool_timeout") from error
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


async def no_reply(turn: Turn) -> tuple[Message, ...]:
    """A world that never replies."""
    return ()


def no_listener(messages: tuple[Message, ...]) -> None:
    """Nobody follows the conversation."""


def no_anchor() -> str | None:
    """Nobody names states."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopResult:
    """A finished rollout before its rewards."""

    prompt: tuple[Message, ...]
    turns: Sequence[Turn]
    scores: list[Any]
    """What `score_turn` gave, in the order of `turns`."""
    tools: tuple[ToolSpec, ...]
    rows: tuple[TokenRow, ...]
    stop_reason: StopReason
    exact: bool
    agent: AgentRun | None = None
    other_calls: tuple[JudgeCall, ...] = ()


class Loop(Protocol):
    """One rollout: that of `AgentLoop`, or of an agent that owns its loop."""

    def turns(self) -> AsyncGenerator[Turn]:
        """Each turn, as soon as its tool results and replies are in."""
        ...

    def broken_off(self, caused: AgentCaused) -> list[Turn]:
        """End the rollout for what the agent broke; the turns that were not handed out yet."""
        ...

    def result(self, turns: Sequence[Turn], scores: list[Any]) -> LoopResult:
        """Return the result, of the finished turns and what `score_turn` gave for each.

        Raises:
            RolloutError: the agent did not act.
        """
        ...


async def no_summariser(messages: Sequence[Message]) -> str:
    """Nobody sums up."""
    raise NoModelError("a condenser asks a second model to summarise, and there is none")


@dataclass(slots=True, kw_only=True)
class AgentLoop:
    """One rollout. Iterate over `turns()`; then read `stop_reason`, `rows` and `exact`.

    A lost model call (`PolicyError`) or a broken sandbox (`SandboxError`) leaves `turns()` as an exception:
    the caller drops the sibling. So does what the agent broke (`AgentCausedError`), and `unfinished` is the
    turn that it did it in.
    """

    policy: Policy
    toolset: Toolset
    sandbox: Sandbox
    messages: tuple[Message, ...]
    """The opening."""
    budget: Budget
    seed: int
    calls: HookCalls
    """What policy, tools and condensers are called through."""
    respond: Callable[[Turn], Awaitable[tuple[Message, ...]]] = no_reply
    """The world's reply after a turn and its tool results."""
    is_ended: Callable[[], bool] = bool
    """Whether the environment has ended the rollout."""
    on_messages: Callable[[tuple[Message, ...]], None] = no_listener
    """Takes the conversation whenever it has grown, without summaries: no one receives them."""
    anchor: Callable[[], str | None] = no_anchor
    """The state that the next turn is taken in, for policies that learn in tables."""
    context: ToolContext | None = None
    """The rollout, for tools that take its state or the context."""
    condensers: Sequence[Condenser] = ()
    """Asked in order, before each completion, what the model is to see."""
    estimate: TokenEstimate = field(default_factory=lambda: TokenEstimate(ChatMLRenderer.embedded()))
    """Counts for them, where the policy does not; one for all rollouts of a policy."""
    where: str = ""
    """Which rollout it is, for people."""
    summariser: Summariser = no_summariser
    """The second model that sums up for them."""
    stop_reason: StopReason | None = field(default=None, init=False)
    unfinished: Turn | None = field(default=None, init=False)
    """A turn that was sampled and is not handed out: its calls or the world's reply broke off."""
    _models: ModelCalls = field(init=False)
    _seen: Condensing = field(init=False)
    _answers: ToolAnswers = field(init=False)

    def __post_init__(self) -> None:
        count = PromptTokens(self.policy, self.estimate, self.calls)
        self._models = ModelCalls(
            policy=self.policy,
            tools=self.toolset.specs,
            budget=self.budget,
            seed=self.seed,
            calls=self.calls,
            count=count,
            anchor=self.anchor,
        )
        self._seen = Condensing(
            models=self._models,
            calls=self.calls,
            condensers=self.condensers,
            count=count,
            summariser=self.summariser,
            rollout=self.where,
            opening=self.messages,
        )
        self._answers = ToolAnswers(
            toolset=self.toolset,
            sandbox=self.sandbox,
            budget=self.budget,
            calls=self.calls,
            clock=self._models,
            is_ended=self.is_ended,
            context=self.context,
        )

    @property
    def rows(self) -> tuple[TokenRow, ...]:
        """The token rows of the turns so far."""
        return self._models.rows

    @property
    def stopped_by(self) -> str:
        """More of why no further turn could be had, for people."""
        return self._models.stopped_by

    @property
    def exact(self) -> bool:
        """Whether every token id so far came from the sampler."""
        return self._models.exact

    def result(self, turns: Sequence[Turn], scores: list[Any]) -> LoopResult:
        """Return the result.

        Raises:
            RolloutError: it ended before the agent acted: there is nothing to reward.
        """
        if not any(turn.kind == "act" for turn in turns):
            why = f" ({self.stopped_by})" if self.stopped_by else ""
            raise RolloutError(f"no turn was finished: {self.stop_reason}{why}")
        return LoopResult(
            prompt=self.messages,
            turns=turns,
            scores=scores,
            tools=self.toolset.specs,
            rows=self.rows,
            stop_reason=self.stop_reason or StopReason.COMPLETED,
            exact=self.exact,
        )

    def broken_off(self, caused: AgentCaused) -> list[Turn]:
        """End the rollout for what the agent broke; the turn in which it did, unless that was handed out."""
        is_lost = caused.cause == "sandbox_lost"
        self.stop_reason = StopReason.SANDBOX_LOST if is_lost else StopReason.AGENT_CAUSED
        return [] if self.unfinished is None else [self.unfinished]

    async def turns(self) -> AsyncGenerator[Turn]:
        """Each turn, as soon as its tool results and replies are in; summaries before their act."""
        for _ in range(self.budget.max_turns):
            if self.condensers:
                for summary in await self._seen.condense():
                    yield summary
            sampled = await self._sampled()
            if sampled is None:
                return
            turn = self._seen.seen_by(sampled.turn) if self.condensers else sampled.turn
            turn = await self._answered(turn)
            yield turn
            self.stop_reason = self._reason_to_stop(sampled, turn)
            if self.stop_reason is not None:
                return
        self.stop_reason = StopReason.MAX_TURNS

    async def _sampled(self) -> Sampled | None:
        try:
            if self._models.stopped is None:
                rewritten = self._seen.rewritten() if self.condensers else None
                return await self._models.sample(await self._seen.request(), rewritten=rewritten)
        except Stopped:
            pass
        self.stop_reason = self._models.stopped
        return None

    async def _answered(self, turn: Turn) -> Turn:
        started = monotonic()
        self._add(turn, turn.message)
        self.unfinished = turn
        results = await self._answers.to(turn)
        self._add(turn, *messages_of(results))
        self.unfinished = turn = replace(turn, tool_results=results, tools_s=monotonic() - started)
        if self._answers.broken is not None:
            raise self._answers.broken
        if not self.is_ended():
            turn = replace(turn, replies=await self.respond(turn))
            self._add(turn, *turn.replies)
        self.unfinished = None
        return turn

    def _add(self, turn: Turn, *messages: Message) -> None:
        if not messages:
            return
        self._seen.add(messages, turn.index)
        self.on_messages(self._seen.without_summaries)

    def _reason_to_stop(self, sampled: Sampled, turn: Turn) -> StopReason | None:
        if self.is_ended():
            return StopReason.ENDED
        if sampled.had_no_room:
            return StopReason.CONTEXT_OVERFLOW
        if not turn.message.tool_calls and turn.finish_reason == "length":
            return StopReason.TOKEN_BUDGET
        if not turn.message.tool_calls and not turn.replies:
            return StopReason.COMPLETED
        if self._models.tokens_left <= 0:
            return StopReason.TOKEN_BUDGET
        if self._models.seconds_left <= 0:
            return StopReason.TIME_BUDGET
        return None
