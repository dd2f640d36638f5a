"""The values that flow from a rollout to its credit. Nobody changes one after it is made."""

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
"""Mask value of a token that is not trained (PyTorch's `ignore_index`)."""
NOT_SAMPLED = 1.0
"""Log-probability at positions that were not sampled, by Atropos' convention."""
LARGEST_REWARD = 1e100
"""Rewards beyond this size would overflow when they are squared."""
LARGEST_FLOAT32 = 3.4028234663852886e38
"""Trainers compute in float32 at most: what is larger is infinite there."""
_KIND_CHARS = 160
SEVERAL_VERSIONS = " → "
"""Between the names of the versions of the weights, where one completion was sampled by several in turn."""

MissingOutcome = Literal["refuse", "drop"] | float
"""What becomes of a trajectory without an outcome beside siblings with one: its group fails, it is dropped
from it, or its outcome is this number."""


Role = Literal["system", "user", "assistant", "tool"]
Number = TypeVar("Number", int, float)


class StopReason(StrEnum):
    """Why a rollout ended."""

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
    """The agent broke something else while it ran, see `Trajectory.agent_caused`."""
    AGENT_ERROR = "agent_error"
    """A recorded agent raised or exited with an error after it had acted, see `Trajectory.agent`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(CachedJson):
    """One chat message."""

    role: Role
    content: str = ""
    reasoning: str | None = None
    """What a reasoning model thought before it answered (`reasoning_content` or `reasoning`)."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """For role `tool`: the call that this answers."""

    def to_openai(self) -> dict[str, Any]:
        """The message in OpenAI's shape; `role` and `content` are always present."""
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
    """What one version of the weights sampled of a completion: up to the next span, or the end."""

    start: int
    """The first of its sampled tokens."""
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a policy gave for one model call."""

    message: Message
    finish_reason: str
    """`stop`, `tool_calls`, `length`, …, from the server."""
    prompt_ids: tuple[int, ...]
    """Every token the model saw before it sampled; with `extends_row`, those that follow the open row."""
    extends_row: bool = False
    """Whether the model saw the request's open row, and `prompt_ids` only go on from there."""
    fork: str | None = None
    """Why the model saw something that does not go on from the open row, in a few words that can be
    counted; `None` if it did, or if unknown."""
    token_ids: tuple[int, ...]
    """The sampled tokens, the stop token included, never re-tokenised when `exact`."""
    logprobs: tuple[float, ...] | None
    """One per sampled token; `None` when the server gave none."""
    exact: bool
    """False when the ids were made from text by our own tokenizer, because the server gave none."""
    prompt_tokens: int | None = None
    """Of the whole prompt, as the server counted it, where it gave no ids; `None`: unknown."""
    weight_version: str | None = None
    """Which weights sampled it, as the server names them: equal or not, without an order; several, where
    they changed meanwhile, stand with `SEVERAL_VERSIONS` between them. `None`: unknown."""
    weight_spans: tuple[WeightSpan, ...] = ()
    """Where its versions changed, if the server states it; empty: one sampled it, or that is unknown."""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """How the server was asked to sample (`temperature`, `top_p`, …, as JSON values), and `logprobs_mode`
    where it is known; empty: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where a turn's sampled tokens sit: `rows[row].token_ids[start:end]`."""

    row: int
    start: int
    end: int


class CompactNumbers(Sequence[Number], Generic[Number]):
    """Numbers of one kind, 4 bytes for an id and 8 for a log-probability.

    They read, compare and hash as a tuple; nobody changes them.
    """

    __slots__ = ("_values",)

    def __init__(self, values: "array[Number]") -> None:
        """A view of an array; it grows where its owner lets the array grow."""
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
    """The ids, copied. Raises ValueError for a number beyond 32 bits, TypeError for what is no integer."""
    if isinstance(ids, CompactNumbers):
        ids = ids._values  # pyright: ignore[reportPrivateUsage]  # copied at once, not id by id
    try:
        return CompactNumbers(array("i", ids))
    except OverflowError:
        raise ValueError("a token id is a number of 32 bits") from None


def compact_floats(numbers: Iterable[float]) -> CompactNumbers[float]:
    """The numbers as doubles, copied. Raises TypeError for what is none."""
    return CompactNumbers(array("d", numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One token sequence for the trainer, 12 bytes a token."""

    token_ids: Sequence[int]
    """Kept as `CompactNumbers`, which reads and compares as a tuple."""
    logprobs: Sequence[float] | None
    """As long as `token_ids`, `NOT_SAMPLED` where a token was not sampled; `None` when unknown."""

    def __post_init__(self) -> None:
        """Raises ValueError for an id beyond 32 bits, TypeError for what is no number."""
        object.__setattr__(self, "token_ids", compact_ids(self.token_ids))
        if self.logprobs is not None:
            object.__setattr__(self, "logprobs", compact_floats(self.logprobs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A stretch of a conversation: `trajectory.messages[start:end]`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Condensed:
    """How what the model saw was made shorter, just before a turn."""

    cause: str
    """The condensers that changed it, by name, in order: `trim_tool_output, fit_context`."""
    tokens_before: int
    """Of the prompt as it would have been."""
    tokens_after: int
    """Of the prompt as it was."""
    is_estimate: bool = False
    """Whether the tokens were counted by another tokenizer than the model's."""
    seconds: float = 0.0
    """Without the turns of kind `summary`, which have their own times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnClock:
    """When a turn began and ended, counted in events of its trajectory: requests, completions, rewards."""

    requested: int
    """When it was passed to the policy, after the turn before it in its thread was scored."""
    handed_out: int | None
    """When the agent received the completion; `None`: never. It depends on what the model said."""
    scored: int
    """When its reward was given."""
    unfinished_before: int = 0
    """Requests admitted before it that have no completion, such as one that was cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call, its assistant message, and the tool results and replies that answer it."""

    index: int
    kind: Literal["act", "summary", "undelivered"] = "act"
    """`summary`: the model was asked to shorten the conversation, not to act. `undelivered`: an act whose
    recorded agent had stopped waiting for it, so that it has no reward of its own."""
    message: Message
    tool_results: tuple[ToolResult, ...] = ()
    replies: tuple[Message, ...] = ()
    """The replies of the world or a user, each of role `user` or `system`."""
    finish_reason: str = "stop"
    span: Span
    trained: bool = True
    """False: its tokens are masked and it has no advantage; its rewards still count for other turns."""
    anchor: str | None = None
    """The state before this turn, for estimators that compare equal states (`state_key`)."""
    value: float | None = None
    """What a critic expected before this turn (`values`); `None`: there is none."""
    noted: Mapping[str, float] = field(default_factory=dict[str, float])
    """What tools and the world noted in `ctx.metrics` since the turn before was scored: rewards read it."""
    context: tuple[Kept | Message, ...] | None = None
    """What the model saw, where that was not all that came before: stretches of the conversation, and
    messages that stood in the place of others."""
    condensed: Condensed | None = None
    """What a condenser did just before this turn; `None`: nothing."""
    fork: str | None = None
    """Why its row is a new one, see `Completion`; `None` for a row that goes on, and for the first."""
    thread: int = 0
    """Which conversation of a recorded agent it belongs to; agents of our own loop have one."""
    without_tools: bool = False
    """Whether its thread had offered no tools up to this turn's request (see `train_threads`)."""
    clock: TurnClock | None = None
    """Set where turns of several threads overlapped; `None`: each was scored before the next began."""
    weight_version: str | None = None
    """Which weights sampled it, see `Completion`."""
    weight_spans: tuple[WeightSpan, ...] = ()
    """Likewise."""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """How it was sampled, see `Completion`."""
    model_s: float = 0.0
    tools_s: float = 0.0

    @property
    def messages(self) -> tuple[Message, ...]:
        """Its message, tool results and replies, as the conversation has them."""
        results = (
            Message(role="tool", content=result.content, tool_call_id=result.call_id)
            for result in self.tool_results
        )
        return (self.message, *results, *self.replies)

    @property
    def weight_versions(self) -> tuple[str | None, ...]:
        """The versions that sampled it: one, unless they changed meanwhile."""
        version = self.weight_version
        return (None,) if version is None else tuple(version.split(SEVERAL_VERSIONS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """What an environment gave for one trajectory."""

    turns: tuple[float | None, ...] | None = None
    """One per turn, `None` for a turn that was not scored; `None` as a whole: a scalar environment."""
    outcome: float | None = None
    """The reward that belongs to the whole trajectory; `None` when the environment gives none."""
    score: float | None
    """The scalar: outcome and turn rewards aggregated. Where nothing was scored it is 0 in an environment
    without outcomes that states no `missing_outcome`, else `None`, which is not 0."""
    turn_components: tuple[Mapping[str, float], ...] = ()
    """Per turn, the named parts that add up to its reward; empty when the environment names none."""
    outcome_components: Mapping[str, float] = field(default_factory=dict[str, float])
    turn_raw: tuple[Mapping[str, float], ...] = ()
    """Per turn, the parts of a `Rubric` before they were weighted; empty when none was used."""
    outcome_raw: Mapping[str, float] = field(default_factory=dict[str, float])
    group: float | None = None
    """The part of the outcome that compares siblings (`score_group`), or `None`."""

    @property
    def is_unscored(self) -> bool:
        """Whether neither a turn nor the whole was rewarded, whatever the score is then."""
        nothing = self.turns is not None and self.outcome is None and set(self.turns) <= {None}
        return nothing or self.score is None

    @property
    def outcome_parts(self) -> Mapping[str, float]:
        """The named parts of the outcome; one that was given as a number is a part of that name."""
        if self.outcome_components or self.outcome is None:
            return self.outcome_components
        return {"outcome": self.outcome}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCall:
    """A question to a second model (a judge, a simulated user, a summariser) and its answer.

    Kept so that rewards can be computed again without asking.
    """

    hook: str
    """The hook that asked."""
    turn: int | None = None
    """Index of the turn in question; `None`: the whole."""
    model: str
    messages: tuple[Message, ...]
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    answer: str | None
    """The text, whether or not a verdict could be read from it; `None`: it takes no such question."""
    usage: Mapping[str, int] = field(default_factory=dict[str, int])
    """`prompt_tokens` and `completion_tokens`, as the server counts; empty where it does not, and where an
    answer to an equal question was used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCaused:
    """What the agent broke, so that its rollout got the floor (`failed_score`) as its outcome."""

    cause: AgentCause
    error: str
    """What happened, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """How the run of a recorded agent went."""

    error: str = ""
    """Its traceback, or how its command ended; empty: it ended well, or was ended by a budget."""
    exit_code: int | None = None
    """Of its command; `None`: it is no command, or was ended."""
    output: str = ""
    """What its command wrote to stdout and stderr: the start and the end of it."""
    wall_s: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """How its requests were taken: `retries`, `normalised` messages, `ignored FIELD`, `refused`, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """A file or folder that a hook took out of the agent's sandbox, or what it found there instead."""

    turn: int | None = None
    """Index of the turn that was scored; `None`: the whole."""
    path: str
    """As the hook named it."""
    digest: str | None = None
    """SHA-256 of its content, a folder's of the list of its files. `None`: none was kept."""
    size: int = 0
    """Of its content, in bytes; also of one that did not fit (`--env.artefacts_mb`)."""
    is_folder: bool = False
    error: str | None = None
    """Why it could not be read, such as `ENOENT`; at `EFBIG` it was larger than `size`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The result of one rollout."""

    item_id: str
    sibling: int = 0
    """Position among the rollouts of its item; stays when another sibling fails."""
    seed: int = 0
    session_id: str | None = None
    """Which logged session it was imported from; `None`: it was rolled out."""
    prompt: tuple[Message, ...] = ()
    turns: tuple[Turn, ...]
    """In the order they were sampled, those of kind `summary` included."""
    rows: tuple[TokenRow, ...]
    tools: tuple[ToolSpec, ...] = ()
    """Those that were offered; empty: none, or unknown."""
    stop_reason: StopReason = StopReason.COMPLETED
    end_reason: str | None = None
    """The environment's reason for ending the rollout (`ctx.end`), if it did."""
    agent_caused: AgentCaused | None = None
    """What the agent broke; `None`: nothing."""
    agent: AgentRun | None = None
    """Of a recorded agent; `None`: the agent of our own loop played."""
    exact: bool = True
    """Whether every token id came from the sampler."""
    sandbox: SandboxRecord | None = None
    """How it was isolated; `None`: it had no sandbox."""
    rewards: Rewards | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Numbers the environment noted for people; they carry no credit."""
    stale: str | None = None
    """Why its weights are too old for it to be trained on (`--env.max_staleness`): no turn of it is trained,
    and siblings are compared with it all the same."""
    passed: bool | None = None
    """An evaluation's verdict; `None`: not of an evaluation."""
    artefacts: tuple[Artefact, ...] = ()
    """What hooks took out of the sandbox."""
    contents: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False, compare=False)
    """Those of artefacts by SHA-256; a record has them in files beside it."""
    judge_calls: tuple[JudgeCall, ...] = ()
    """In the order they were answered."""
    user_calls: tuple[JudgeCall, ...] = ()
    """What the model of a simulated user was asked, and its answers."""
    summariser_calls: tuple[JudgeCall, ...] = ()
    """Likewise of the model that sums conversations up."""
    other_calls: tuple[JudgeCall, ...] = ()
    """What a recorded agent asked models beside the policy, and their answers."""
    wall_s: float = 0.0
    profile: TimeProfile | None = None
    """Where its time went, sandbox and rewards included (`--env.profile`); `None`: not measured."""

    @property
    def acts(self) -> tuple[Turn, ...]:
        """The turns in which the agent acted: rewards have one entry for each of these."""
        return tuple(turn for turn in self.turns if turn.kind == "act")

    @property
    def act_rewards(self) -> tuple[float | None, ...] | None:
        """Of each of `acts`; `None` where there are no turn rewards, or none yet."""
        if self.rewards is None or self.rewards.turns is None:
            return None
        by_turn = zip(self.rewards.turns, self.turns, strict=True)
        return tuple(reward for reward, turn in by_turn if turn.kind == "act")

    @property
    def score(self) -> float | None:
        """The scalar score; `None` before the rewards are known, and where nothing was scored."""
        return None if self.rewards is None else self.rewards.score

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation: the prompt, then each turn's message, tool results and replies."""
        spoken = list(self.prompt)
        for turn in self.turns:
            spoken += turn.messages
        return tuple(spoken)

    def thread_until(self, index: int) -> tuple[Message, ...]:
        """What a turn of a recorded agent saw, and its own messages."""
        turn, said = self.turns[index], self.messages
        start = len(self.prompt) + sum(len(each.messages) for each in self.turns[:index])
        seen: list[Message] = []
        for part in (Kept(start=0, end=start),) if turn.context is None else turn.context:
            seen += said[part.start : part.end] if isinstance(part, Kept) else [part]
        return (*seen, *turn.messages)

    @property
    def weight_versions(self) -> tuple[str | None, ...]:
        """The versions that its turns were sampled by, each once, in the order they came."""
        return tuple(dict.fromkeys(version for turn in self.turns for version in turn.weight_versions))

    def withhold(self, why: str) -> "Trajectory":
        """The same trajectory, too old to be trained on."""
        return replace(self, stale=why, turns=tuple(replace(turn, trained=False) for turn in self.turns))

    @property
    def ended_by(self) -> str | None:
        """Why it ended, beside `stop_reason`: what the agent broke, or the environment's reason."""
        return self.end_reason if self.agent_caused is None else self.agent_caused.error

    def with_rewards(
        self, rewards: Rewards, metrics: Mapping[str, float], judge_calls: tuple[JudgeCall, ...] = ()
    ) -> "Trajectory":
        """The same trajectory, scored."""
        return replace(self, rewards=rewards, metrics=metrics, judge_calls=judge_calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A sibling that was dropped: it has no score and earns no credit."""

    sibling: int
    stop_reason: StopReason | None
    """`policy_error` or `sandbox_lost`; `None` when the environment's own code raised."""
    error: str
    """Class and message of the error."""
    traceback: str
    turns: int
    """Turns that were finished before it broke."""
    error_class: str = ""
    """The name of the error's class alone."""
    where: str | None = None
    """`file.py:12 in compute_reward`, where code that is not ours broke; `None` for errors of ours."""
    refuses_group: bool = False
    """Whether its siblings cannot be compared without it, so that the whole group fails."""
    judge_calls: tuple[JudgeCall, ...] = ()
    """What it had asked the judge before it broke."""
    user_calls: tuple[JudgeCall, ...] = ()
    """Likewise of the model of a simulated user."""
    summariser_calls: tuple[JudgeCall, ...] = ()
    """Likewise of the model that sums conversations up."""
    other_calls: tuple[JudgeCall, ...] = ()
    """What a recorded agent asked models beside the policy, and their answers."""
    profile: TimeProfile | None = None
    """Where its time went, as for a trajectory."""

    @property
    def kind(self) -> str:
        """Class, first clause and place of its error: what counts as one bug, or one server that is away."""
        name, _, message = self.error.partition(": ")
        clause = first_clause(message, values=self.where is None)
        text = ": ".join(filter(None, (self.error_class or name, clause)))[:_KIND_CHARS]
        return text if self.where is None else f"{text} ({self.where})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """Siblings from one item that did not break, ordered by sibling."""

    group_id: str = ""
    env: str = ""
    item_id: str = ""
    epoch: int = 0
    """How often the item had been rolled out before."""
    item: Any = None
    """The item as JSON values (`rollout.items.item_json`); `None` where a record cannot hold it."""
    item_hash: str | None = None
    """Equal for equal items; `None` when unknown."""
    fingerprint: str | None = None
    """The experiment that it belongs to (see `environments.record.origin`); `None` when unknown."""
    is_evaluation: bool = False
    """Whether it was rolled out to be judged, not to be trained on: then no advantage is computed."""
    trajectories: tuple[Trajectory, ...]
    failures: tuple[Failure, ...] = ()
    judge_calls: tuple[JudgeCall, ...] = ()
    """What was asked about the group as a whole."""
    error: str | None = None
    """What broke while its siblings were compared (`score_group`), so that it gets no credit."""
    profile: TimeProfile | None = None
    """Where the time of comparing them went; `None`: not measured, or they are not compared."""

    @property
    def weight_versions(self) -> tuple[str | None, ...]:
        """The versions of its turns, each once, in the order of turns, siblings side by side."""
        by_turn = zip_longest(*(trajectory.turns for trajectory in self.trajectories))
        turns = (turn for there in by_turn for turn in there if turn is not None)
        return tuple(dict.fromkeys(version for turn in turns for version in turn.weight_versions))

    @property
    def stale(self) -> str | None:
        """Why nothing in it is to be trained on, since every trajectory is too old; `None`: some is."""
        reasons = [each.stale for each in self.trajectories]
        return reasons[0] if reasons and None not in reasons else None

    @property
    def is_lost(self) -> bool:
        """Whether nothing in it can be compared: no rollout was left, or the comparison broke."""
        return not self.trajectories or self.error is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditedGroup:
    """A finished group with the advantage of each of its turns: what is recorded and delivered."""

    group: TrajectoryGroup
    advantages: tuple[tuple[float, ...], ...]
    """Ordered like the trajectories and their turns; all zero when the group failed."""
    policy: str
    estimator: str
    estimator_params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    status: Literal["ok", "no_credit", "failed"] = "ok"
    """`no_credit`: every advantage is zero, so a trainer would learn nothing from it. `failed`: too few
    siblings survived. Both are recorded, neither is delivered."""
    reason: str | None = None
    turns_without_peer: int = 0
    """Turns whose advantage is their raw return, since no sibling had a comparable one."""


def dropped(
    trajectory: Trajectory, error_class: str, why: str, *, stop_reason: StopReason | None = None
) -> Failure:
    """The sibling as one that has no score, with the calls and the time that it took."""
    return Failure(
        sibling=trajectory.sibling,
        stop_reason=stop_reason,
        error=f"{error_class}: {why}",
        traceback="",
        turns=len(trajectory.turns),
        error_class=error_class,
        judge_calls=trajectory.judge_calls,
        user_calls=trajectory.user_calls,
        summariser_calls=trajectory.summariser_calls,
        other_calls=trajectory.other_calls,
        profile=trajectory.profile,
    )


def written_messages(given: Any, where: str) -> tuple[Message, ...]:
    """A text of a user, one message, or a list of messages.

    Raises:
        ConfigError: it is something else; `where` names its source.
    """
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
            f"{where} gave a message whose content is a list of parts; give text: images are not taken"
        )
    text = _text(content, where)
    return given if isinstance(given, Message) else Message(role=role, content=text)


def _text(given: Any, where: str) -> str:
    if not isinstance(given, str):
        raise ConfigError(f"{where} gave a message whose content is {given!r:.100}; give text")
    if not is_utf8(given):
        raise ConfigError(f"{where} gave {given!r:.100}, which is no UTF-8 text")
    return given
