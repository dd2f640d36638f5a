"""The values that flow from a rollout to its credit. They are immutable."""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import zip_longest
from typing import Any, Generic, Literal, TypeVar, cast, get_args, overload

from tools.calls import CachedJson, ToolCall, ToolResult, ToolSpec
from tools.errors import AgentCause, ConfigError
from tools.plain_text import first_clause, is_utf8
from tools.sandbox.base import SandboxRecord
from tools.time_profile import TimeProfile

IGNORED = -100
"""Mask value of an untrained token (PyTorch's `ignore_index`)."""
ENFORCED = "constraint"
"""Entry of `Turn.sampling` with an enforced constraint, which excludes the turn from training."""
NOT_SAMPLED = 1.0
"""Log-probability at positions that were not sampled, by Atropos' convention."""
LARGEST_REWARD = 1e100
"""Larger rewards would overflow when squared."""
LARGEST_FLOAT32 = 3.4028234663852886e38
"""Trainers compute in float32 at most, where larger numbers are infinite."""
_KIND_CHARS = 160
_NAMING = ("AttributeError", "KeyError", "NameError", "TypeError")
"""Errors that quote names of the code, which are equal for all items."""
SEVERAL_VERSIONS = " → "

MissingOutcome = Literal["refuse", "drop"] | float
"""Treatment of a trajectory without an outcome if a sibling has one: its group fails, it is dropped, or this
number is its outcome."""


Role = Literal["system", "user", "assistant", "tool"]
Number = TypeVar("Number", int, float)


class StopReason(StrEnum):
    """Reason for the end of a rollout."""

    COMPLETED = "completed"
    ENDED = "ended"
    """The environment ended it, see `Trajectory.end_reason`."""
    MAX_TURNS = "max_turns"
    TOKEN_BUDGET = "token_budget"
    CONTEXT_OVERFLOW = "context_overflow"
    TIME_BUDGET = "time_budget"
    POLICY_ERROR = "policy_error"
    SANDBOX_LOST = "sandbox_lost"
    AGENT_CAUSED = "agent_caused"
    """The agent broke something, see `Trajectory.agent_caused`."""
    AGENT_ERROR = "agent_error"
    """A recorded agent raised or exited with an error after it had acted, see `Trajectory.agent`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(CachedJson):
    """One chat message."""

    role: Role
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def to_openai(self) -> dict[str, Any]:
        """Return the message in OpenAI's format; `role` and `content` are always present."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.to_openai() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSpan:
    """Sampled tokens of one version of the weights, up to the next span or the end."""

    start: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A policy's result of one model call."""

    message: Message
    finish_reason: str
    prompt_ids: tuple[int, ...]
    """Every token the model saw before it sampled. With `extends_row`, only those after the request's open
    row."""
    extends_row: bool = False
    fork: str | None = None
    """Cause in a few words if the prompt does not continue the open row; `None`: it does, or unknown."""
    token_ids: tuple[int, ...]
    """The sampled tokens with the stop token, never re-tokenised if `exact`."""
    logprobs: tuple[float, ...] | None
    """One per sampled token; `None` if the server returned none."""
    exact: bool
    """False if our own tokenizer made the ids from text, because the server returned none."""
    prompt_tokens: int | None = None
    """The server's count for the whole prompt, if it returned no ids."""
    sampled_tokens: int | None = None
    """The server's count of the sampled tokens, if it returned no ids."""
    weight_version: str | None = None
    """The server's name for the weights, without an order. Several names, if the weights changed meanwhile,
    are separated by `SEVERAL_VERSIONS`."""
    weight_spans: tuple[WeightSpan, ...] = ()
    """Version changes, if the server reports them."""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Sampling parameters of the request as JSON values, and `logprobs_mode` if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Location of a turn's sampled tokens: `rows[row].token_ids[start:end]`."""

    row: int
    start: int
    end: int


class CompactNumbers(Sequence[Number], Generic[Number]):
    """Numbers of one type, 4 bytes for an id and 8 for a log-probability; they behave as a tuple."""

    __slots__ = ("_values",)

    def __init__(self, values: "array[Number]") -> None:
        self._values = values

    @overload
    def __getitem__(self, index: int) -> Number: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Number, ...]: ...
    def __getitem__(self, index: int | slice) -> Number | tuple[Number, ...]:
        return tuple(self._values[index]) if isinstance(index, slice) else self._values[index]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Number]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, CompactNumbers):
            return self._values == cast("CompactNumbers[Number]", other)._values
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def compact_ids(ids: Iterable[int]) -> CompactNumbers[int]:
    """Copy token ids. Raises ValueError or TypeError if one is not an integer of 32 bits."""
    if isinstance(ids, CompactNumbers):
        ids = ids._values  # pyright: ignore[reportPrivateUsage]  # copied at once, not id by id
    try:
        return CompactNumbers(array("i", ids))
    except OverflowError:
        raise ValueError("a token id is a number of 32 bits") from None


def compact_floats(numbers: Iterable[float]) -> CompactNumbers[float]:
    return CompactNumbers(array("d", numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One token sequence for the trainer, 12 bytes a token."""

    token_ids: Sequence[int]
    """Stored as `CompactNumbers`, which read and compare as a tuple."""
    logprobs: Sequence[float] | None
    """One per token, `NOT_SAMPLED` if it was not sampled; `None`: unknown."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", compact_ids(self.token_ids))
        if self.logprobs is not None:
            object.__setattr__(self, "logprobs", compact_floats(self.logprobs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Condensed:
    """Effect of condensers on the prompt of a turn."""

    cause: str
    """Names of the condensers that changed the prompt, in order: `trim_tool_output, fit_context`."""
    tokens_before: int
    tokens_after: int
    is_estimate: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnClock:
    """Start and end of a turn, counted in events of its trajectory: requests, completions, rewards."""

    requested: int
    handed_out: int | None
    """When the agent received the completion; `None`: never. It depends on what the model sampled."""
    scored: int
    unfinished_before: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call, its assistant message, and the tool results and replies that answer it."""

    index: int
    kind: Literal["act", "summary", "undelivered"] = "act"
    """`summary`: a summary of the conversation. `undelivered`: an act that a recorded agent no longer waited
    for."""
    message: Message
    tool_results: tuple[ToolResult, ...] = ()
    replies: tuple[Message, ...] = ()
    """Replies of role `user` or `system`."""
    finish_reason: str = "stop"
    span: Span
    trained: bool = True
    """If False, its tokens are masked and it has no advantage; its rewards still count for other turns."""
    anchor: str | None = None
    """The state before this turn (`state_key`), for estimators that compare equal states."""
    value: float | None = None
    noted: Mapping[str, float] = field(default_factory=dict[str, float])
    """Changes of `ctx.metrics` since the previous turn was scored."""
    context: tuple[Kept | Message, ...] | None = None
    """The prompt, unless it is the whole conversation so far: slices of the conversation, and messages that
    replace others."""
    condensed: Condensed | None = None
    fork: str | None = None
    """Cause of a new row, see `Completion`."""
    thread: int = 0
    without_tools: bool = False
    clock: TurnClock | None = None
    """Set if turns of several threads overlapped."""
    weight_version: str | None = None
    weight_spans: tuple[WeightSpan, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    usage: Mapping[str, int] = field(default_factory=dict[str, int])
    """`prompt_tokens` and `completion_tokens` by the server, if it returned no ids."""
    model_s: float = 0.0
    tools_s: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        """Tokens that the model saw: by the server's count, otherwise those of the row."""
        return self.usage.get("prompt_tokens", self.span.start)

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the model sampled: by the server's count, otherwise those of the row."""
        return self.usage.get("completion_tokens", self.span.end - self.span.start)

    @property
    def messages(self) -> tuple[Message, ...]:
        results = (
            Message(role="tool", content=result.content, tool_call_id=result.call_id)
            for result in self.tool_results
        )
        return (self.message, *results, *self.replies)

    @property
    def weight_versions(self) -> tuple[str | None, ...]:
        version = self.weight_version
        return (None,) if version is None else tuple(version.split(SEVERAL_VERSIONS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """The rewards of one trajectory."""

    turns: tuple[float | None, ...] | None = None
    """One per turn, `None` for an unscored turn; `None` as a whole without turn rewards."""
    outcome: float | None = None
    score: float | None
    """Outcome and turn rewards aggregated. Without any reward it is `None`, or 0 in an environment without
    outcomes that sets no `missing_outcome`."""
    turn_components: tuple[Mapping[str, float], ...] = ()
    outcome_components: Mapping[str, float] = field(default_factory=dict[str, float])
    turn_raw: tuple[Mapping[str, float], ...] = ()
    outcome_raw: Mapping[str, float] = field(default_factory=dict[str, float])
    group: float | None = None
    """The part of the outcome that compares siblings (`score_group`)."""

    @property
    def is_unscored(self) -> bool:
        """Whether neither a turn nor the whole was rewarded; the score may still be 0."""
        nothing = self.turns is not None and self.outcome is None and set(self.turns) <= {None}
        return nothing or self.score is None

    @property
    def outcome_parts(self) -> Mapping[str, float]:
        if self.outcome_components or self.outcome is None:
            return self.outcome_components
        return {"outcome": self.outcome}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCall:
    """A question to a second model and its answer, kept to compute rewards anew without the model."""

    hook: str
    turn: int | None = None
    model: str
    messages: tuple[Message, ...]
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    answer: str | None
    """The text, valid or not; `None`: the model accepts no such question."""
    usage: Mapping[str, int] = field(default_factory=dict[str, int])
    """`prompt_tokens` and `completion_tokens`; empty if unknown, or if an earlier answer was used again."""


ScoringModel = Literal["policy", "reference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScore:
    """The log-probabilities of a text's tokens in nats, at temperature 1."""

    logprobs: tuple[float, ...]
    weight_version: str | None = None
    model: ScoringModel = "policy"
    hook: str = ""
    context: str = ""
    """Hash of the conversation before the text."""
    text: str = ""

    @property
    def total(self) -> float:
        return math.fsum(self.logprobs)

    @property
    def tokens(self) -> int:
        return len(self.logprobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCaused:
    """Damage by the agent, which makes its outcome the floor (`failed_score`)."""

    cause: AgentCause
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """The run of a recorded agent."""

    error: str = ""
    exit_code: int | None = None
    output: str = ""
    wall_s: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of `retries`, `normalised` messages, `ignored FIELD`, `refused` requests, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """A file or folder that a hook read from the agent's sandbox, or the error it got instead."""

    turn: int | None = None
    path: str
    digest: str | None = None
    size: int = 0
    """Bytes of the content, also if it exceeded `--env.artefacts_mb`."""
    is_folder: bool = False
    error: str | None = None
    """Error such as `ENOENT`; with `EFBIG` the file was larger than `size`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The result of one rollout."""

    item_id: str
    sibling: int = 0
    """Index among the rollouts of its item; it stays when another sibling fails."""
    trunk: int | None = None
    """Of a branch the sibling whose turns before `branch_turn` it replayed; they are trained there alone.
    None: this rollout played from the start."""
    branch_turn: int | None = None
    """Index of the first turn that it does not share with other continuations of its trunk."""
    seed: int = 0
    session_id: str | None = None
    prompt: tuple[Message, ...] = ()
    turns: tuple[Turn, ...]
    rows: tuple[TokenRow, ...]
    tools: tuple[ToolSpec, ...] = ()
    stop_reason: StopReason = StopReason.COMPLETED
    end_reason: str | None = None
    agent_caused: AgentCaused | None = None
    agent: AgentRun | None = None
    exact: bool = True
    sandbox: SandboxRecord | None = None
    rewards: Rewards | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    stale: str | None = None
    """Reason if its weights are too old for training. Siblings are still compared with it."""
    passed: bool | None = None
    artefacts: tuple[Artefact, ...] = ()
    contents: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False, compare=False)
    judge_calls: tuple[JudgeCall, ...] = ()
    user_calls: tuple[JudgeCall, ...] = ()
    summariser_calls: tuple[JudgeCall, ...] = ()
    other_calls: tuple[JudgeCall, ...] = ()
    """Calls of a recorded agent to models other than the policy."""
    text_scores: tuple[TextScore, ...] = ()
    wall_s: float = 0.0
    profile: TimeProfile | None = None

    @property
    def acts(self) -> tuple[Turn, ...]:
        """The turns of kind `act`: `compute_turn_rewards` returns one entry for each."""
        return tuple(turn for turn in self.turns if turn.kind == "act")

    @property
    def replayed(self) -> int:
        """Number of turns that were replayed from its trunk."""
        return 0 if self.trunk is None else self.branch_turn or 0

    @property
    def own_turns(self) -> tuple[Turn, ...]:
        return self.turns[self.replayed :]

    @property
    def act_rewards(self) -> tuple[float | None, ...] | None:
        if self.rewards is None or self.rewards.turns is None:
            return None
        by_turn = zip(self.rewards.turns, self.turns, strict=True)
        return tuple(reward for reward, turn in by_turn if turn.kind == "act")

    @property
    def score(self) -> float | None:
        return None if self.rewards is None else self.rewards.score

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation: the prompt, then each turn's message, tool results and replies."""
        spoken = list(self.prompt)
        for turn in self.turns:
            spoken += turn.messages
        return tuple(spoken)

    def thread_until(self, index: int) -> tuple[Message, ...]:
        """Return the prompt of a recorded agent's turn, followed by the turn's own messages."""
        turn, said = self.turns[index], self.messages
        start = len(self.prompt) + sum(len(each.messages) for each in self.turns[:index])
        seen: list[Message] = []
        for part in (Kept(start=0, end=start),) if turn.context is None else turn.context:
            seen += said[part.start : part.end] if isinstance(part, Kept) else [part]
        return (*seen, *turn.messages)

    @property
    def weight_versions(self) -> tuple[str | None, ...]:
        return tuple(dict.fromkeys(version for turn in self.own_turns for version in turn.weight_versions))

    def withhold(self, why: str) -> "Trajectory":
        return replace(self, stale=why, turns=tuple(replace(turn, trained=False) for turn in self.turns))

    @property
    def ended_by(self) -> str | None:
        return self.end_reason if self.agent_caused is None else self.agent_caused.error

    def with_rewards(
        self, rewards: Rewards, metrics: Mapping[str, float], judge_calls: tuple[JudgeCall, ...] = ()
    ) -> "Trajectory":
        return replace(self, rewards=rewards, metrics=metrics, judge_calls=judge_calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A dropped sibling: it has no score and earns no credit."""

    sibling: int
    trunk: int | None = None
    """As in `Trajectory`."""
    stop_reason: StopReason | None
    error: str
    traceback: str
    turns: int
    error_class: str = ""
    where: str | None = None
    refuses_group: bool = False
    judge_calls: tuple[JudgeCall, ...] = ()
    user_calls: tuple[JudgeCall, ...] = ()
    summariser_calls: tuple[JudgeCall, ...] = ()
    other_calls: tuple[JudgeCall, ...] = ()
    profile: TimeProfile | None = None

    @property
    def kind(self) -> str:
        """Class, first clause and place of its error, which are equal for failures of one cause."""
        name, _, message = self.error.partition(": ")
        clause = first_clause(message, values=self.where is None, names=name in _NAMING)
        place = "" if self.where is None else f" ({self.where})"
        text = ": ".join(filter(None, (self.error_class or name, clause)))
        return text[: max(0, _KIND_CHARS - len(place))] + place


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """The surviving siblings of one item, ordered by sibling."""

    group_id: str = ""
    env: str = ""
    item_id: str = ""
    epoch: int = 0
    item: Any = None
    """The item as JSON values; `None` if a record cannot hold it."""
    item_hash: str | None = None
    fingerprint: str | None = None
    is_evaluation: bool = False
    trajectories: tuple[Trajectory, ...]
    failures: tuple[Failure, ...] = ()
    judge_calls: tuple[JudgeCall, ...] = ()
    error: str | None = None
    profile: TimeProfile | None = None

    @property
    def weight_versions(self) -> tuple[str | None, ...]:
        by_turn = zip_longest(*(trajectory.turns for trajectory in self.trajectories))
        turns = (turn for there in by_turn for turn in there if turn is not None)
        return tuple(dict.fromkeys(version for turn in turns for version in turn.weight_versions))

    @property
    def stale(self) -> str | None:
        reasons = [each.stale for each in self.trajectories]
        return reasons[0] if reasons and None not in reasons else None

    @property
    def families(self) -> list[list[int]]:
        """The index of each trajectory that played from the start, followed by those of its branches."""
        trunks = {each.sibling: index for index, each in enumerate(self.trajectories) if each.trunk is None}
        families: dict[int, list[int]] = {}
        for index, each in enumerate(self.trajectories):
            trunk = index if each.trunk is None else trunks.get(each.trunk, index)
            families.setdefault(trunk, []).append(index)
        return list(families.values())

    @property
    def is_lost(self) -> bool:
        """Whether no rollout is left, or a hook of the whole group failed."""
        return not self.trajectories or self.error is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditedGroup:
    """A finished group with the advantage of each turn, as it is recorded and delivered."""

    group: TrajectoryGroup
    advantages: tuple[tuple[float, ...], ...]
    """`[trajectory][turn]`; all zero if the group failed."""
    policy: str
    estimator: str
    estimator_params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    status: Literal["ok", "no_credit", "alone", "failed"] = "ok"
    """`no_credit`: every advantage is zero. `alone`: so it is without siblings. `failed`: too few siblings
    survived. None of these is delivered."""
    reason: str | None = None
    turns_without_peer: int = 0
    """Turns without a comparable one among siblings: their advantage is their raw return."""


def drop_sibling(
    trajectory: Trajectory, error_class: str, why: str, *, stop_reason: StopReason | None = None
) -> Failure:
    kept = ("sibling", "trunk", "judge_calls", "user_calls", "summariser_calls", "other_calls", "profile")
    return Failure(
        **{name: getattr(trajectory, name) for name in kept},
        stop_reason=stop_reason,
        error=f"{error_class}: {why}",
        traceback="",
        turns=len(trajectory.turns),
        error_class=error_class,
    )


def parse_messages(given: Any, where: str) -> tuple[Message, ...]:
    """Convert text, one message, or a list of messages; `where` names the source in a ConfigError."""
    if isinstance(given, str):
        return (Message(role="user", content=_text(given, where)),)
    if not isinstance(given, list | tuple):
        return (_message(given, where, ""),)
    several = cast("list[Any]", given)
    return tuple(_message(each, where, f", in {given!r:.200}") for each in several)


def _message(given: Any, where: str, within: str) -> Message:
    fields: Mapping[Any, Any] = {}
    if isinstance(given, Message):
        fields = {"role": given.role, "content": given.content}
    elif isinstance(given, Mapping):
        fields = cast("Mapping[Any, Any]", given)
    if set(fields) != {"role", "content"}:
        raise ConfigError(
            f"{where} gave {given!r:.200}{within}; give text, or a list of "
            f"turnwise.Message(role=..., content=...)"
        )
    role, content = fields["role"], fields["content"]
    if role not in get_args(Role):
        raise ConfigError(f"{where} gave a message of role {role!r:.100}; choose one of {get_args(Role)}")
    if isinstance(content, list | tuple):
        raise ConfigError(
            f"{where} gave a message whose content is a list of parts; give text: images are not supported"
        )
    text = _text(content, where)
    return given if isinstance(given, Message) else Message(role=role, content=text)


def _text(given: Any, where: str) -> str:
    if not isinstance(given, str):
        raise ConfigError(f"{where} gave a message whose content is {given!r:.100}; give text")
    if not is_utf8(given):
        raise ConfigError(f"{where} gave {given!r:.100}, which is not UTF-8 text")
    return given
