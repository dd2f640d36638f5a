"""What a page shows, as JSON values: `page/` is written against these names, and `show` reads them too.

A page holds one `RunIndex` and, in blocks that are read when they are needed, a `GroupBlock` per group and
one `RolloutBlock` or more per rollout. Blocks are gzip'd JSON: base64 text in a file, bytes from a server.
"""

from typing import Any, NotRequired, TypedDict

from environments.credit.ledger import TurnLedger
from environments.viewer.learning_values import LearningValues


class CutText(TypedDict):
    """A text that is too long for a page."""

    head: str
    tail: str
    chars: int
    """Of the whole."""


Text = str | CutText


class TurnColumns(TypedDict):
    """The numbers of a rollout's turns, one entry per turn in each column; nothing is left out."""

    kind: str
    """A letter per turn: `a` an act, `s` a summary."""
    rewards: list[float | None]
    returns: list[float | None]
    """The reward and what follows; `None`: the estimator does not sum them up, or nobody can say."""
    advantages: list[float]
    others: list[list[float] | None]
    """Advantages by each of `RunIndex.others`; `None`: it cannot take this group."""
    peers: list[int | None]
    """How many values its baseline is made of; `None`: it has several, or none on purpose."""
    alone: list[int | None]
    """1: an act left its raw return for want of a peer; 0: compared; `None`: it is not, or nobody can say."""
    tokens: list[int]
    """Sampled."""
    trained: list[int]
    """1 or 0."""
    forks: list[int]
    """1 where a row begins that is not the first."""
    condensed: list[int]
    tool_calls: list[int]
    tool_errors: list[int]


class RolloutEntry(TypedDict):
    """A rollout in the index."""

    sibling: int
    score: float | None
    outcome: float | None
    stop: str
    end: str | None
    """What the environment said when it ended it."""
    passed: bool | None
    """In an evaluation; else `None`."""
    exact: bool
    rows: int
    wall_s: float
    turns: TurnColumns
    blocks: list[str]
    """Names of its `RolloutBlock`s, in the order of their turns."""


class FailureEntry(TypedDict):
    """A dropped sibling in the index."""

    sibling: int
    error_class: str
    error: str
    """In one line, which may be cut."""
    where: str | None
    turns: int


class GroupEntry(TypedDict):
    """A group in the index."""

    id: str
    """Names it in links: `#g=ID&s=SIBLING&t=TURN`."""
    item: str
    epoch: int
    status: str
    reason: str | None
    weights: list[str | None]
    """The versions of the weights that sampled it, each once; `None` among them: of some turns unknown."""
    rollouts: list[RolloutEntry]
    failures: list[FailureEntry]
    block: str
    """Name of its `GroupBlock`."""


class RunIndex(TypedDict):
    """All rollouts in numbers."""

    version: int
    title: str
    source: str
    """What was read, by name."""
    env: str
    policy: str
    estimator: str
    """With its parameters."""
    others: list[str]
    """Estimators that were computed beside the record's, each with its parameters."""
    facts: list[tuple[str, str]]
    """Settings and what else the experiment is made of."""
    aggregates: dict[str, Any]
    """See `environments.record.totals.Summary.values`."""
    cut: list[str]
    """What is not in the page, in words."""
    live: bool
    """Whether more may come."""
    generation: int
    """Changes where a live record was replaced, and all that is known of it is void."""
    groups: list[GroupEntry]
    learning: NotRequired[LearningValues]
    """Where the rollouts are those of policies that learned here."""


class PageCall(TypedDict):
    """A tool call of an assistant's message."""

    id: str
    name: str
    arguments: Text
    status: str


class PageMessage(TypedDict):
    """A message of a conversation."""

    role: str
    content: Text
    reasoning: NotRequired[Text]
    calls: NotRequired[list[PageCall]]


class PageResult(TypedDict):
    """What a tool gave."""

    name: str
    content: Text
    error: str | None
    exit_code: int | None
    timed_out: bool
    duration_s: float


class PageJudgeCall(TypedDict):
    """A question to a second model, and its answer."""

    role: str
    """`judge`, `user` or `summariser`."""
    hook: str
    turn: int | None
    model: str
    messages: list[PageMessage]
    answer: Text | None


class PageTurn(TypedDict):
    """A turn whole."""

    index: int
    kind: str
    message: PageMessage
    results: list[PageResult]
    replies: list[PageMessage]
    finish_reason: str
    trained: bool
    anchor: Text | None
    parts: dict[str, float]
    raw: dict[str, float]
    noted: dict[str, float]
    ledger: TurnLedger
    judge_calls: list[PageJudgeCall]
    fork: str | None
    condensed: dict[str, Any] | None
    saw: list[dict[str, Any]] | None
    """What the model saw where that was not all before: `{"start", "end"}` of messages, or `{"message"}`."""
    row: int
    span: tuple[int, int]
    token_texts: list[str] | None
    """Of its sampled tokens; `None` where no tokenizer has them."""
    token_ids: list[int]
    logprobs: list[float] | None
    """Of its sampled tokens, with four decimals."""
    weight_version: str | None
    sampling: dict[str, Any]
    model_s: float
    tools_s: float


class RolloutBlock(TypedDict):
    """Some turns of a rollout; the first one has its opening, too."""

    prompt: list[PageMessage]
    turns: list[PageTurn]
    outcome_parts: dict[str, float]
    metrics: dict[str, float]
    judge_calls: list[PageJudgeCall]
    """About the whole."""


class PageFailure(TypedDict):
    """A dropped sibling whole."""

    sibling: int
    error: Text
    traceback: Text
    judge_calls: list[PageJudgeCall]


class GroupBlock(TypedDict):
    """What a group has beside its rollouts."""

    item: Any
    """Long texts in it are cut in their middle; text as a whole where even that is too long."""
    tools: list[dict[str, Any]]
    """`name`, `description`, `parameters`."""
    failures: list[PageFailure]
    judge_calls: list[PageJudgeCall]
    """About the group as a whole."""
    error: str | None
