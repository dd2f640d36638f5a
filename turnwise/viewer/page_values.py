"""What a page shows, as JSON values: `page/` is written against these names.

A page holds one `RunIndex` and, in blocks that are read when they are needed, one per group and one or more
per rollout. Blocks are gzip'd JSON: base64 text in a file, bytes from a server.
"""

from collections import Counter
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
    CreditedGroup,
    Failure,
    JudgeCall,
    Kept,
    Message,
    Trajectory,
    Turn,
)
from tools.errors import CreditError
from turnwise.lab.credit_report.report import CreditReport
from turnwise.viewer.artefact_values import kept_files


class CutText(TypedDict):
    """A text that is too long for a page."""

    head: str
    tail: str
    chars: int
    """Of the whole."""


Text = str | CutText
Values = dict[str, Any]
"""An object of the page; its fields stand where it is made."""


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
    rollouts: list[Values]
    failures: list[Values]
    block: str
    """Name of its own block."""


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

    def message(self, message: Message) -> Values:
        """A message of a conversation."""
        shown: Values = {"role": message.role, "content": self.text(message.content)}
        if message.reasoning is not None:
            shown["reasoning"] = self.text(message.reasoning)
        if message.tool_calls:
            shown["calls"] = [
                {"id": c.id, "name": c.name, "arguments": self.text(c.arguments), "status": c.status}
                for c in message.tool_calls
            ]
        return shown

    def second_model_calls(self, asked: Trajectory | Failure) -> list[Values]:
        """What was asked of each second model, and its answers."""
        return [
            *self.judge_calls("judge", asked.judge_calls),
            *self.judge_calls("user", asked.user_calls),
            *self.judge_calls("summariser", asked.summariser_calls),
            *self.judge_calls("other", asked.other_calls),  # a recorded agent asked
        ]

    def judge_calls(self, role: str, calls: Iterable[JudgeCall]) -> list[Values]:
        """Questions to a second model of this role."""
        return [
            {
                "role": role,
                "hook": call.hook,
                "turn": call.turn,
                "model": call.model,
                "messages": [self.message(each) for each in call.messages],
                "answer": None if call.answer is None else self.text(call.answer),
            }
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
    trajectory: Trajectory, ledgers: Sequence[TurnLedger], content: PageContent
) -> Iterator[Values]:
    """The blocks of a rollout, each of some turns; at least one, and the first has what is of the whole."""
    cutter, rewards, agent = content.cutter, trajectory.rewards, trajectory.agent
    calls, kept = cutter.second_model_calls(trajectory), kept_files(trajectory, cutter.text)
    indices = {turn.index for turn in trajectory.turns}
    block: Values = {
        "prompt": [cutter.message(each) for each in trajectory.prompt],
        "turns": [],
        "outcome_parts": {} if rewards is None else rewards.outcome_parts,
        "metrics": trajectory.metrics,
        "judge_calls": [each for each in calls if each["turn"] not in indices],
        "artefacts": [each for each in kept if each["turn"] not in indices],
        # None: it played in our own loop, or this is not the first block.
        "agent": agent
        and {
            "error": cutter.text(agent.error),
            "exit_code": agent.exit_code,
            "output": cutter.text(agent.output),
            "wall_s": agent.wall_s,
            "counts": agent.counts,
        },
    }
    size = len(orjson.dumps(block["prompt"]))
    for position, entry in enumerate(ledgers):
        turn = page_turn(trajectory, position, entry, content)
        turn["judge_calls"] = [each for each in calls if each["turn"] == turn["index"]]
        turn["artefacts"] = [each for each in kept if each["turn"] == turn["index"]]
        if size >= BLOCK_BYTES and block["turns"]:
            yield block
            block, size = Values(prompt=[], turns=[], outcome_parts={}, metrics={}, agent=None), 0
            block.update(judge_calls=[], artefacts=[])
        block["turns"].append(turn)
        size += len(orjson.dumps(turn))
    yield block


def page_turn(trajectory: Trajectory, position: int, entry: TurnLedger, content: PageContent) -> Values:
    """A turn whole, but for files and what second models were asked about it."""
    turn, rewards, cutter = trajectory.turns[position], trajectory.rewards, content.cutter
    row, sampled = trajectory.rows[turn.span.row], slice(turn.span.start, turn.span.end)
    ids = row.token_ids[sampled] if content.tokens else ()
    logprobs = row.logprobs[sampled] if content.tokens and row.logprobs is not None else None
    return {
        "index": turn.index,
        "kind": turn.kind,
        # None: the trajectory has only one.
        "thread": turn.thread if any(each.thread for each in trajectory.turns) else None,
        "message": cutter.message(turn.message),
        "results": [
            {
                "name": result.name,
                "content": cutter.text(result.content),
                "error": result.error,
                "exit_code": result.exit_code,
                "timed_out": result.timed_out,
                "duration_s": result.duration_s,
            }
            for result in turn.tool_results
        ],
        "replies": [cutter.message(each) for each in turn.replies],
        "finish_reason": turn.finish_reason,
        "trained": turn.trained,
        "anchor": None if turn.anchor is None else cutter.text(turn.anchor),
        "parts": rewards.turn_components[position] if rewards and rewards.turn_components else {},
        "raw": rewards.turn_raw[position] if rewards and rewards.turn_raw else {},
        "noted": turn.noted,
        "ledger": entry,
        "fork": turn.fork,
        "condensed": None if turn.condensed is None else asdict(turn.condensed),
        # What the model saw where that was not all before: parts of the conversation, or other messages.
        "saw": None
        if turn.context is None
        else [
            {"start": each.start, "end": each.end}
            if isinstance(each, Kept)
            else {"message": cutter.message(each)}
            for each in turn.context
        ],
        "row": turn.span.row,
        "span": (turn.span.start, turn.span.end),
        "token_texts": content.texts_of(ids, turn.message.content),
        "token_ids": list(ids),
        "logprobs": None if logprobs is None else [round(each, 4) for each in logprobs],
        "weight_version": turn.weight_version,
        "sampling": turn.sampling,
        "model_s": turn.model_s,
        "tools_s": turn.tools_s,
    }


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
    group, cutter = credited.group, content.cutter
    beside = [other.advantages(credited) for other in others]
    rollouts: list[Values] = []
    for position, (trajectory, entries) in enumerate(zip(group.trajectories, ledger(credited), strict=True)):
        names: list[str] = []
        for block in rollout_blocks(trajectory, entries, content):
            names.append(f"g{number}r{position}p{len(names)}")
            add(names[-1], block)
        own = [None if rows is None else rows[position] for rows in beside]
        rollouts.append(_rollout(trajectory, _columns(trajectory, entries, own), names))
    name = f"g{number}"
    tools = {tool.name: tool for trajectory in group.trajectories for tool in trajectory.tools}
    block = {
        "item": cutter.json(group.item),
        "tools": [
            {"name": each.name, "description": each.description, "parameters": cutter.json(each.parameters)}
            for each in tools.values()
        ],
        "failures": [
            {
                "sibling": each.sibling,
                "error": cutter.text(each.error),
                "traceback": cutter.text(each.traceback),
                "judge_calls": cutter.second_model_calls(each),
            }
            for each in group.failures
        ],
        "judge_calls": cutter.judge_calls("judge", group.judge_calls),
        "error": group.error,
    }
    add(name, block)
    failures: list[Values] = [
        {
            "sibling": each.sibling,
            "error_class": each.error_class or _line(each.error).partition(":")[0],
            "error": _line(each.error),
            "where": each.where,
            "turns": each.turns,
        }
        for each in group.failures
    ]
    return GroupEntry(
        id=group.group_id,
        item=group.item_id,
        epoch=group.epoch,
        status=credited.status,
        reason=credited.reason,
        weights=[None if each is None else _line(each) for each in group.weight_versions[:_MOST_VERSIONS]],
        rollouts=rollouts,
        failures=failures,
        block=name,
    )


def _columns(
    trajectory: Trajectory, ledgers: Sequence[TurnLedger], others: list[list[float] | None]
) -> Values:
    """The numbers of a rollout's turns, one entry per turn in each column; nothing is left out."""
    turns = trajectory.turns
    single = [entry.terms[0] if len(entry.terms) == 1 else None for entry in ledgers]
    return {
        "kind": "".join(turn.kind[0] for turn in turns),
        "rewards": [entry.reward for entry in ledgers],
        # The reward and what follows; None: the estimator does not sum them up, or they are unknown.
        "returns": [
            None if term is None or entry.follows is None else term.value
            for term, entry in zip(single, ledgers, strict=True)
        ],
        "advantages": [entry.advantage for entry in ledgers],
        # By each of `RunIndex.others`; None: it cannot take this group.
        "others": others,
        # How many values its baseline is made of; None: it has several, or none on purpose.
        "peers": [
            None if term is None or (term.baseline is None and not term.has_no_peer) else term.peer_count
            for term in single
        ],
        # 1: an act left its raw return for want of a peer; 0: compared; None: it is not, or unknown.
        "alone": [_alone(turn, entry.terms) for turn, entry in zip(turns, ledgers, strict=True)],
        "tokens": [turn.span.end - turn.span.start for turn in turns],
        "trained": [int(turn.trained) for turn in turns],
        "forks": _forks(turns),
        "condensed": [int(turn.condensed is not None) for turn in turns],
        "tool_calls": [len(turn.message.tool_calls) for turn in turns],
        "tool_errors": [sum(each.error is not None for each in turn.tool_results) for turn in turns],
    }


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


def _rollout(trajectory: Trajectory, turns: Values, blocks: list[str]) -> Values:
    rewards, parts = trajectory.rewards, Counter[str]()
    for each in () if rewards is None else (*rewards.turn_components, rewards.outcome_parts):
        parts.update(each)
    return {
        "sibling": trajectory.sibling,
        "score": trajectory.score,
        "outcome": None if rewards is None else rewards.outcome,
        "stop": trajectory.stop_reason.value,
        "end": None if trajectory.ended_by is None else _line(trajectory.ended_by),
        "passed": trajectory.passed,
        "exact": trajectory.exact,
        "rows": len(trajectory.rows),
        "wall_s": trajectory.wall_s,
        "parts": parts,  # of its rewards: those of its turns summed, and those of its outcome
        "metrics": trajectory.metrics,
        "turns": turns,
        "blocks": blocks,
    }


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LINE_CHARS else f"{line[:_LINE_CHARS]}…"
