"""The model calls of one rollout within its budget: each becomes a turn, and its tokens join a row."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import Any, Literal, cast

from pydantic import ConfigDict, ValidationError, create_model

from environments.config import AgentEnvConfig
from environments.policy.base import CompletionRequest, Policy
from environments.rollout.boundary import reason_of
from environments.rollout.containment.hook_calls import HookCalls
from environments.rollout.prompt_tokens import PromptTokens
from environments.rollout.rows import RowBuilder, check_completion
from environments.trajectory import Completion, Message, StopReason, TokenRow, Turn
from tools.calls import ToolSpec
from tools.errors import ConfigError, ContextOverflow, TimeLimitExceeded

_BUDGET = (
    "max_turns", "max_tokens_per_turn", "token_budget", "rollout_timeout_s", "tool_timeout_s",
    "tool_output_chars", "max_token_length",
)  # fmt: skip
_Limits = create_model(
    "Limits",
    __config__=ConfigDict(strict=True, allow_inf_nan=False),
    **cast("Any", {
        name: (field.annotation, field)
        for name, field in AgentEnvConfig.model_fields.items()
        if name in _BUDGET
    }),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    max_turns: int
    """Acts; turns of kind `summary` do not count."""
    max_tokens_per_turn: int
    on_cut: Literal["end", "respond"] = "end"
    token_budget: int
    max_row_tokens: int
    """A completion that would make its row longer is discarded; one that was cut at this limit is kept. Both
    end the rollout."""
    timeout_s: float
    """Wall clock, tool time included."""
    tool_timeout_s: float
    tool_output_chars: int


def budget_of(config: AgentEnvConfig, limits: Any = MappingProxyType({}), *, env: str = "") -> Budget:
    """Return the smaller of each setting and the item's limit (`limits_for`)."""
    where = f"environment {env!r}: limits_for gave"
    if not isinstance(limits, Mapping):
        raise ConfigError(f'{where} {limits!r:.100}; give a mapping such as {{"max_turns": 6}}')
    given = dict(cast("Mapping[Any, Any]", limits))
    if unknown := [name for name in given if name not in _BUDGET]:
        raise ConfigError(f"{where} a limit {unknown[0]!r:.100}; choose from {', '.join(_BUDGET)}")
    try:
        checked = _Limits.model_validate(given)
    except ValidationError as error:
        wrong = error.errors()[0]
        name = wrong["loc"][0]
        raise ConfigError(f"{where} {name} {given[name]!r:.100}: {wrong['msg']}") from None
    spent = {name: min(getattr(config, name), getattr(checked, name)) for name in given}
    smaller = config.model_copy(update=spent)
    return Budget(
        max_turns=smaller.max_turns,
        max_tokens_per_turn=smaller.max_tokens_per_turn,
        on_cut=config.on_cut,
        token_budget=smaller.token_budget,
        max_row_tokens=smaller.max_token_length,
        timeout_s=smaller.rollout_timeout_s,
        tool_timeout_s=smaller.tool_timeout_s,
        tool_output_chars=smaller.tool_output_chars,
    )


class Stopped(Exception):
    """The rollout cannot continue, which is not a failure; `ModelCalls.stopped` has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    turn: Turn
    had_no_room: bool


@dataclass(slots=True, kw_only=True)
class ModelCalls:
    policy: Policy
    tools: tuple[ToolSpec, ...]
    budget: Budget
    seed: int
    calls: HookCalls
    count: PromptTokens | None = None
    is_parallel: bool = False
    exact: bool = field(default=True, init=False)
    stopped: StopReason | None = field(default=None, init=False)
    stopped_by: str = field(default="", init=False)
    is_discarded: bool = field(default=False, init=False)
    """Whether the last completion was thrown away, because it came too late or was too long."""
    tokens_left: int = field(init=False)
    deadline: float = field(init=False)
    """End of the rollout's time, by `time.monotonic`."""
    _turns: int = field(default=0, init=False)
    _rows: RowBuilder = field(default_factory=RowBuilder, init=False)

    def __post_init__(self) -> None:
        self.tokens_left = self.budget.token_budget
        self.deadline = monotonic() + self.budget.timeout_s

    def another_thread(self) -> RowBuilder:
        return RowBuilder(self._rows)

    @property
    def rows(self) -> tuple[TokenRow, ...]:
        return self._rows.build()

    def request(
        self,
        messages: tuple[Message, ...],
        *,
        position: int,
        kind: Literal["act", "summary"] = "act",
        goes_on: bool = True,
        thread: RowBuilder | None = None,
    ) -> CompletionRequest:
        """Return a request for the policy.

        `position` is the number of messages in the whole conversation. With `goes_on`, the prompt begins
        with the open row. `thread` has the rows of another conversation.
        """
        return CompletionRequest(
            messages=messages,
            kind=kind,
            position=position,
            tools=self.tools,
            seed=self.seed,
            max_tokens=min(self.budget.max_tokens_per_turn, self.tokens_left),
            max_row_tokens=self.budget.max_row_tokens,
            row=(thread or self._rows).open if goes_on else None,
        )

    async def sample(self, request: CompletionRequest, *, rewritten: str | None = None) -> Sampled:
        """Sample a turn; `rewritten` says why its prompt does not continue the open row.

        Raises:
            Stopped: if no room, token or time is left.
            PolicyError: if the call failed, or the completion is invalid.
        """
        started = monotonic()
        completion = await self.complete(request)
        sampled = self.join(completion, request, rewritten=rewritten)
        return replace(sampled, turn=replace(sampled.turn, model_s=monotonic() - started))

    def join(
        self,
        completion: Completion,
        request: CompletionRequest,
        *,
        rewritten: str | None,
        thread: RowBuilder | None = None,
    ) -> Sampled:
        rows = thread or self._rows
        span = rows.append(completion, messages=len(request.messages) + 1, rewritten=rewritten)
        self.exact = self.exact and completion.exact
        counts = {"prompt_tokens": completion.prompt_tokens, "completion_tokens": completion.sampled_tokens}
        turn = Turn(
            index=self._turns,
            kind=request.kind,
            message=completion.message,
            finish_reason=completion.finish_reason,
            span=span,
            fork=rows.fork,
            weight_version=completion.weight_version,
            weight_spans=completion.weight_spans,
            sampling=dict(completion.sampling),
            usage={name: count for name, count in counts.items() if count is not None},
        )
        self.tokens_left -= turn.sampled_tokens
        self._turns += 1
        assert rows.open is not None
        is_row_full = rows.open.size >= self.budget.max_row_tokens
        is_full = is_row_full or len(completion.token_ids) < request.max_tokens
        # Inexact tokens were counted by another tokenizer than their limit.
        is_cut = completion.finish_reason == "length" and completion.exact
        return Sampled(turn=turn, had_no_room=is_cut and is_full)

    def stop(self, reason: StopReason, by: str = "") -> Stopped:
        if self.stopped is None:
            self.stopped, self.stopped_by = reason, by
        return Stopped(reason)

    def go_on(self) -> None:
        """Clear `stopped`: a recorded agent may send a shorter request."""
        self.stopped, self.stopped_by = None, ""

    async def complete(self, request: CompletionRequest) -> Completion:
        """Return a checked completion, which is not in a row yet; raises as `sample` does."""
        if self.stopped is not None:
            raise Stopped
        row_tokens = 0 if request.row is None else request.row.size
        self._refuse_without_room(row_tokens)
        doing = "model" if request.kind == "act" else "model's summary"
        try:
            given = await self.calls.run(
                partial(self.policy.complete, request),
                doing=f"{doing}, turn {self._turns + 1}",
                limit_s=max(0.0, self.deadline - monotonic()),
                setting="rollout_timeout_s",
                is_parallel=self.is_parallel,
            )
        except ContextOverflow as overflow:
            if self.count is not None and overflow.__cause__ is not None:  # the server refused it
                await self.count.learn_refusal(request)
            raise self.stop(StopReason.CONTEXT_OVERFLOW, reason_of(overflow)) from None
        except TimeLimitExceeded:
            if monotonic() < self.deadline:
                raise  # the limit of a hook that the policy called
            self.is_discarded = True
            raise self.stop(StopReason.TIME_BUDGET) from None
        # What a policy samples must be below its `vocabulary_size`, if it has one.
        size: int | None = getattr(self.policy, "vocabulary_size", None)
        completion = check_completion(given, request, vocabulary_size=size)
        if self.count is not None:
            await self.count.learn(request, completion)
        prompt = len(completion.prompt_ids) + (row_tokens if completion.extends_row else 0)
        if prompt + len(completion.token_ids) > self.budget.max_row_tokens:
            self.is_discarded = prompt < self.budget.max_row_tokens
            raise self.stop(StopReason.CONTEXT_OVERFLOW)
        return completion

    def _refuse_without_room(self, row_tokens: int) -> None:
        if self.tokens_left <= 0:
            raise self.stop(StopReason.TOKEN_BUDGET)
        if monotonic() >= self.deadline:  # a condenser may have used the time up
            raise self.stop(StopReason.TIME_BUDGET)
        if row_tokens >= self.budget.max_row_tokens:
            raise self.stop(StopReason.CONTEXT_OVERFLOW)
