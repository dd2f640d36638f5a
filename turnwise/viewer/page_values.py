"""What a page shows, as JSON values: `page/` is written against these names.

A page holds one `RunIndex` and, in blocks that are read when they are needed, a `GroupBlock` per group and
one `RolloutBlock` or more per rollout. Blocks are gzip'd JSON: base64 text in a file, bytes from a server.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, NotRequired, Self, TypedDict, cast

import orjson
from tokenizers import Tokenizer

from environments.credit import estimate
from environments.credit.ledger import LedgerTerm, TurnLedger, ledger
from environments.policy.rendering.chatml import EMBEDDED, load_tokenizer
from environments.trajectory import (
    AgentRun,
    CreditedGroup,
    Failure,
    JudgeCall,
    Kept,
    Message,
    Trajectory,
    Turn,
)
from tools.calls import ToolResult
from tools.errors import CreditError
from turnwise.viewer.artefact_values import KeptFile, kept_files
from turnwise.viewer.credit_values import CreditReport


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
    """The reward and what follows; `None`: the estimator does not sum them up, or they are unknown."""
    advantages: list[float]
    others: list[list[float] | None]
    """Advantages by each of `RunIndex.others`; `None`: it cannot take this group."""
    peers: list[int | None]
    """How many values its baseline is made of; `None`: it has several, or none on purpose."""
    alone: list[int | None]
    """1: an act left its raw return for want of a peer; 0: compared; `None`: it is not, or unknown."""
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
    """The environment's reason for ending it."""
    passed: bool | None
    """In an evaluation; else `None`."""
    exact: bool
    rows: int
    wall_s: float
    parts: dict[str, float]
    """Of its rewards: those of its turns summed, and those of its outcome."""
    metrics: dict[str, float]
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
    nothing: str | None
    """Why nothing can be learned from any of the groups, and what to do; `None`: something can."""
    aggregates: dict[str, Any]
    """See `environments.record.totals.Summary.values`."""
    cut: list[str]
    """What is not in the page, in words."""
    live: bool
    """Whether more may come."""
    generation: int
    """Changes where a live record was replaced, and all that is known of it is void."""
    groups: list[GroupEntry]
    credit: NotRequired[CreditReport]
    """Of a record with tokens of enough items."""


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
    """`judge`, `user`, `summariser`, or `other`: a recorded agent asked."""
    hook: str
    turn: int | None
    model: str
    messages: list[PageMessage]
    answer: Text | None


class PageTurn(TypedDict):
    """A turn whole."""

    index: int
    kind: str
    thread: int | None
    """`None`: the trajectory has only one."""
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
    artefacts: list[KeptFile]
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


class PageAgent(TypedDict):
    """How the run of a recorded agent went."""

    error: Text
    exit_code: int | None
    output: Text
    wall_s: float
    counts: dict[str, int]


class RolloutBlock(TypedDict):
    """Some turns of a rollout; the first one has its opening, too."""

    prompt: list[PageMessage]
    turns: list[PageTurn]
    outcome_parts: dict[str, float]
    metrics: dict[str, float]
    judge_calls: list[PageJudgeCall]
    """About the whole."""
    artefacts: list[KeptFile]
    """Taken for the whole."""
    agent: PageAgent | None
    """`None`: it played in our own loop, or this is not the first block."""


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


_TAIL_SHARE = 4


@dataclass(slots=True, kw_only=True)
class TextCutter:
    """Cuts texts beyond a length, and counts them."""

    max_chars: int
    cut: int = 0

    def text(self, text: str) -> Text:
        """The text, or its head and tail."""
        if len(text) <= self.max_chars:
            return text
        self.cut += 1
        tail = self.max_chars // _TAIL_SHARE
        return CutText(head=text[: self.max_chars - tail], tail=text[len(text) - tail :], chars=len(text))

    def json(self, value: Any) -> Any:
        """JSON values whose long texts are cut in words; as a whole where that is not enough."""
        if len(orjson.dumps(value)) <= self.max_chars:
            return value
        shorter = self._shorter(value)
        text = orjson.dumps(shorter)
        if len(text) <= 2 * self.max_chars:
            return shorter
        return self._in_words(text.decode())

    def _shorter(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._in_words(value)
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            return {name: self._shorter(each) for name, each in fields.items()}
        if isinstance(value, list):
            return [self._shorter(each) for each in cast("list[Any]", value)]
        return value

    def _in_words(self, text: str) -> str:
        short = self.text(text)
        if isinstance(short, str):
            return short
        left_out = short["chars"] - len(short["head"]) - len(short["tail"])
        return f"{short['head']} … ({left_out:,} characters left out) … {short['tail']}"

    def message(self, message: Message) -> PageMessage:
        """A message of a conversation."""
        shown = PageMessage(role=message.role, content=self.text(message.content))
        if message.reasoning is not None:
            shown["reasoning"] = self.text(message.reasoning)
        if message.tool_calls:
            shown["calls"] = [
                PageCall(id=each.id, name=each.name, arguments=self.text(each.arguments), status=each.status)
                for each in message.tool_calls
            ]
        return shown

    def judge_calls(self, role: str, calls: Iterable[JudgeCall]) -> list[PageJudgeCall]:
        """Questions to a second model of this role."""
        return [
            PageJudgeCall(
                role=role,
                hook=call.hook,
                turn=call.turn,
                model=call.model,
                messages=[self.message(each) for each in call.messages],
                answer=None if call.answer is None else self.text(call.answer),
            )
            for call in calls
        ]


_UNFINISHED = "\ufffd"
_LONGEST_CHARACTER = 8
"""Tokens that one character may be spread over."""
_SPACE = "\u2581"


class TokenTexts:
    """Texts of token ids."""

    def __init__(self, tokenizer: Tokenizer, *, is_named: bool) -> None:
        """A tokenizer that was named is trusted; else its texts must be those that were recorded."""
        self._tokenizer = tokenizer
        self._is_named = is_named
        self._of_one = cache(self._decoded_one)

    @classmethod
    def of(cls, name: str | None) -> Self:
        """Those of a named tokenizer, or else of the embedded one.

        Raises:
            ConfigError: there is no such tokenizer.
        """
        return cls(load_tokenizer(EMBEDDED if name is None else name), is_named=name is not None)

    def texts(self, ids: Sequence[int], said: str) -> list[str] | None:
        """A text per token; `None` where they are not of this tokenizer.

        Args:
            ids: the sampled tokens of a turn.
            said: the recorded text of its message, which theirs begins with, spaces aside.
        """
        if not self._is_named and not self._is_own(ids, said):
            return None
        texts: list[str] = []
        waiting: list[int] = []
        for token in ids:
            text = self._of_one(token)
            if waiting or text.endswith(_UNFINISHED):
                waiting.append(token)
                text = self._decoded(waiting)
                if text.endswith(_UNFINISHED) and len(waiting) < _LONGEST_CHARACTER:
                    texts.append("")
                    continue
                waiting = []
            texts.append(text)
        if waiting:
            texts[-1] = self._decoded(waiting)
        return texts

    def _is_own(self, ids: Sequence[int], said: str) -> bool:
        if not ids or max(ids) >= self._tokenizer.get_vocab_size():
            return False
        return said.strip()[:200] in self._decoded(ids)

    def _decoded(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def _decoded_one(self, token: int) -> str:
        text = self._decoded((token,))
        piece = self._tokenizer.id_to_token(token) or ""
        # Pieces of SentencePiece lose the space that they begin with when they stand alone.
        return f" {text}" if piece.startswith(_SPACE) and not text.startswith(" ") else text


BLOCK_BYTES = 1 << 20
"""A block ends with the turn that reaches this size."""


@dataclass(slots=True, kw_only=True)
class PageContent:
    """What a page takes of a rollout, and how much it did not."""

    cutter: TextCutter
    tokens: bool = True
    """Whether ids, texts and log-probabilities of sampled tokens are in it."""
    token_texts: TokenTexts | None = None
    untold_turns: int = 0
    """Turns whose tokens' texts are unknown."""

    def texts_of(self, ids: Sequence[int], said: str) -> list[str] | None:
        """The texts of a turn's tokens; `None`: they are not known, or not wanted."""
        if not self.tokens:
            return None
        texts = None if self.token_texts is None else self.token_texts.texts(ids, said)
        self.untold_turns += texts is None and bool(ids)
        return texts


def rollout_blocks(
    trajectory: Trajectory,
    ledgers: Sequence[TurnLedger],
    content: PageContent,
) -> Iterator[RolloutBlock]:
    """The blocks of a rollout, each of some turns; at least one.

    Args:
        trajectory: the rollout.
        ledgers: of its turns.
        content: what a page takes.
    """
    cutter = content.cutter
    calls = _second_model_calls(trajectory, cutter)
    kept = kept_files(trajectory, cutter.text)
    indices = {turn.index for turn in trajectory.turns}
    rewards = trajectory.rewards
    block = RolloutBlock(
        prompt=[cutter.message(each) for each in trajectory.prompt],
        turns=[],
        outcome_parts={} if rewards is None else dict(rewards.outcome_parts),
        metrics=dict(trajectory.metrics),
        judge_calls=[each for each in calls if each["turn"] not in indices],
        artefacts=[each for each in kept if each["turn"] not in indices],
        agent=None if trajectory.agent is None else _agent(trajectory.agent, cutter),
    )
    size = len(orjson.dumps(block["prompt"]))
    for position, entry in enumerate(ledgers):
        turn = page_turn(trajectory, position, entry, content)
        turn["judge_calls"] = [each for each in calls if each["turn"] == turn["index"]]
        turn["artefacts"] = [each for each in kept if each["turn"] == turn["index"]]
        if size >= BLOCK_BYTES and block["turns"]:
            yield block
            block, size = _next_block(), 0
        block["turns"].append(turn)
        size += len(orjson.dumps(turn))
    yield block


def page_turn(
    trajectory: Trajectory,
    position: int,
    entry: TurnLedger,
    content: PageContent,
) -> PageTurn:
    """A turn whole, but for what second models were asked about it."""
    turn, rewards, cutter = trajectory.turns[position], trajectory.rewards, content.cutter
    ids, logprobs = _sampled(trajectory, turn) if content.tokens else ((), None)
    return PageTurn(
        index=turn.index,
        kind=turn.kind,
        thread=turn.thread if any(each.thread for each in trajectory.turns) else None,
        message=cutter.message(turn.message),
        results=[_result(result, cutter) for result in turn.tool_results],
        replies=[cutter.message(each) for each in turn.replies],
        finish_reason=turn.finish_reason,
        trained=turn.trained,
        anchor=None if turn.anchor is None else cutter.text(turn.anchor),
        parts=_at(() if rewards is None else rewards.turn_components, position),
        raw=_at(() if rewards is None else rewards.turn_raw, position),
        noted=dict(turn.noted),
        ledger=entry,
        judge_calls=[],
        artefacts=[],
        fork=turn.fork,
        condensed=None if turn.condensed is None else asdict(turn.condensed),
        saw=None if turn.context is None else [_seen(each, cutter) for each in turn.context],
        row=turn.span.row,
        span=(turn.span.start, turn.span.end),
        token_texts=content.texts_of(ids, turn.message.content),
        token_ids=list(ids),
        logprobs=None if logprobs is None else [round(each, 4) for each in logprobs],
        weight_version=turn.weight_version,
        sampling=dict(turn.sampling),
        model_s=turn.model_s,
        tools_s=turn.tools_s,
    )


def _next_block() -> RolloutBlock:
    return RolloutBlock(
        prompt=[], turns=[], outcome_parts={}, metrics={}, judge_calls=[], artefacts=[], agent=None
    )


def _agent(run: AgentRun, cutter: TextCutter) -> PageAgent:
    return PageAgent(
        error=cutter.text(run.error),
        exit_code=run.exit_code,
        output=cutter.text(run.output),
        wall_s=run.wall_s,
        counts=dict(run.counts),
    )


def _result(result: ToolResult, cutter: TextCutter) -> PageResult:
    return PageResult(
        name=result.name,
        content=cutter.text(result.content),
        error=result.error,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        duration_s=result.duration_s,
    )


def _at(parts: Sequence[Mapping[str, float]], position: int) -> dict[str, float]:
    return dict(parts[position]) if parts else {}


def _seen(part: Kept | Message, cutter: TextCutter) -> dict[str, Any]:
    if isinstance(part, Kept):
        return {"start": part.start, "end": part.end}
    return {"message": cutter.message(part)}


def _sampled(trajectory: Trajectory, turn: Turn) -> tuple[Sequence[int], Sequence[float] | None]:
    """The tokens that were sampled in a turn, and their log-probabilities."""
    row, span = trajectory.rows[turn.span.row], turn.span
    logprobs = None if row.logprobs is None else row.logprobs[span.start : span.end]
    return row.token_ids[span.start : span.end], logprobs


def _second_model_calls(trajectory: Trajectory, cutter: TextCutter) -> list[PageJudgeCall]:
    return [
        *cutter.judge_calls("judge", trajectory.judge_calls),
        *cutter.judge_calls("user", trajectory.user_calls),
        *cutter.judge_calls("summariser", trajectory.summariser_calls),
        *cutter.judge_calls("other", trajectory.other_calls),
    ]


AddBlock = Callable[[str, Any], None]
"""Takes a block by its name."""
_LINE_CHARS = 300
_MOST_VERSIONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEstimator:
    """An estimator whose advantages stand beside the record's."""

    name: str
    params: Mapping[str, Any]

    def advantages(self, credited: CreditedGroup) -> list[list[float]] | None:
        """Of a group; `None` where it has none, or the estimator refuses its numbers."""
        if credited.status == "failed":
            return None
        try:
            return estimate(self.name, credited.group, **self.params)
        except CreditError:
            return None


def group_values(
    credited: CreditedGroup,
    number: int,
    content: PageContent,
    others: Sequence[OtherEstimator],
    add: AddBlock,
) -> GroupEntry:
    """The entry of a group; its blocks are given to `add`, one after the other.

    Args:
        credited: the group.
        number: its line in the record, from 1.
        content: what a page takes.
        others: further estimators.
        add: takes the blocks.
    """
    group = credited.group
    ledgers = ledger(credited)
    beside = [other.advantages(credited) for other in others]
    rollouts: list[RolloutEntry] = []
    for position, (trajectory, entries) in enumerate(zip(group.trajectories, ledgers, strict=True)):
        names: list[str] = []
        for block in rollout_blocks(trajectory, entries, content):
            names.append(f"g{number}r{position}p{len(names)}")
            add(names[-1], block)
        own = [None if rows is None else rows[position] for rows in beside]
        columns = _columns(trajectory, entries, own)
        rollouts.append(_rollout(trajectory, columns, names))
    name = f"g{number}"
    add(name, _group_block(credited, content.cutter))
    return GroupEntry(
        id=group.group_id,
        item=group.item_id,
        epoch=group.epoch,
        status=credited.status,
        reason=credited.reason,
        weights=[None if each is None else _line(each) for each in group.weight_versions[:_MOST_VERSIONS]],
        rollouts=rollouts,
        failures=[_failure(each) for each in group.failures],
        block=name,
    )


def _columns(
    trajectory: Trajectory, ledgers: Sequence[TurnLedger], others: list[list[float] | None]
) -> TurnColumns:
    turns = trajectory.turns
    single = [entry.terms[0] if len(entry.terms) == 1 else None for entry in ledgers]
    return TurnColumns(
        kind="".join(turn.kind[0] for turn in turns),
        rewards=[entry.reward for entry in ledgers],
        returns=[
            None if term is None or entry.follows is None else term.value
            for term, entry in zip(single, ledgers, strict=True)
        ],
        advantages=[entry.advantage for entry in ledgers],
        others=others,
        peers=[
            None if term is None or (term.baseline is None and not term.has_no_peer) else term.peer_count
            for term in single
        ],
        alone=[_alone(turn, entry.terms) for turn, entry in zip(turns, ledgers, strict=True)],
        tokens=[turn.span.end - turn.span.start for turn in turns],
        trained=[int(turn.trained) for turn in turns],
        forks=_forks(turns),
        condensed=[int(turn.condensed is not None) for turn in turns],
        tool_calls=[len(turn.message.tool_calls) for turn in turns],
        tool_errors=[sum(each.error is not None for each in turn.tool_results) for turn in turns],
    )


def _forks(turns: Sequence[Turn]) -> list[int]:
    """1 where a turn's row is another than that of the turn before it in its thread."""
    rows: dict[int, int] = {}
    forks: list[int] = []
    for turn in turns:
        forks.append(int(rows.get(turn.thread, turn.span.row) != turn.span.row))
        rows[turn.thread] = turn.span.row
    return forks


def _alone(turn: Turn, terms: Sequence[LedgerTerm]) -> int | None:
    if turn.trained and turn.kind != "summary" and any(term.has_no_peer for term in terms):
        return 1
    return 0 if any(term.baseline is not None for term in terms) else None


def _rollout(trajectory: Trajectory, turns: TurnColumns, blocks: list[str]) -> RolloutEntry:
    rewards = trajectory.rewards
    return RolloutEntry(
        sibling=trajectory.sibling,
        score=trajectory.score,
        outcome=None if rewards is None else rewards.outcome,
        stop=trajectory.stop_reason.value,
        end=None if trajectory.ended_by is None else _line(trajectory.ended_by),
        passed=trajectory.passed,
        exact=trajectory.exact,
        rows=len(trajectory.rows),
        wall_s=trajectory.wall_s,
        parts=_parts(trajectory),
        metrics=dict(trajectory.metrics),
        turns=turns,
        blocks=blocks,
    )


def _parts(trajectory: Trajectory) -> dict[str, float]:
    if (rewards := trajectory.rewards) is None:
        return {}
    sums = defaultdict[str, float](float)
    for parts in (*rewards.turn_components, rewards.outcome_parts):
        for name, value in parts.items():
            sums[name] += value
    return dict(sums)


def _failure(failure: Failure) -> FailureEntry:
    return FailureEntry(
        sibling=failure.sibling,
        error_class=failure.error_class or _line(failure.error).partition(":")[0],
        error=_line(failure.error),
        where=failure.where,
        turns=failure.turns,
    )


def _group_block(credited: CreditedGroup, cutter: TextCutter) -> GroupBlock:
    group = credited.group
    return GroupBlock(
        item=cutter.json(group.item),
        tools=_tools(group.trajectories, cutter),
        failures=[
            PageFailure(
                sibling=each.sibling,
                error=cutter.text(each.error),
                traceback=cutter.text(each.traceback),
                judge_calls=[
                    *cutter.judge_calls("judge", each.judge_calls),
                    *cutter.judge_calls("user", each.user_calls),
                    *cutter.judge_calls("summariser", each.summariser_calls),
                    *cutter.judge_calls("other", each.other_calls),
                ],
            )
            for each in group.failures
        ],
        judge_calls=cutter.judge_calls("judge", group.judge_calls),
        error=group.error,
    )


def _tools(trajectories: Iterable[Trajectory], cutter: TextCutter) -> list[dict[str, Any]]:
    """Every tool that one of them was offered, once."""
    tools = {tool.name: tool for trajectory in trajectories for tool in trajectory.tools}
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "parameters": cutter.json(dict(tool.parameters)),
        }
        for tool in tools.values()
    ]


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LINE_CHARS else f"{line[:_LINE_CHARS]}…"
