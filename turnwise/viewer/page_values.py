"""JSON values of the page; the scripts in `page/` use these names.

A page has one `RunIndex`, and blocks that it reads on demand: one per group, one or more per rollout. A block
is gzip'd JSON: base64 text in a file, bytes from a server.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from posixpath import normpath
from typing import Any, NotRequired, Self, TypedDict, cast

import numpy as np
import orjson
from tokenizers import Tokenizer

from environments.credit import estimate
from environments.credit.ledger import LedgerTerm, TurnLedger, ledger
from environments.policy.rendering.chatml import EMBEDDED, load_tokenizer
from environments.trajectory import (
    Artefact,
    CreditedGroup,
    Failure,
    JudgeCall,
    Kept,
    Message,
    Trajectory,
    Turn,
)
from tools.errors import CreditError
from tools.plain_text import utf8_text
from tools.sandbox.archive import ArchivedFile, unpack
from turnwise.lab.credit_report.report import CreditReport


class CutText(TypedDict):
    """Head and tail of a text that is too long for a page, and its whole length."""

    head: str
    tail: str
    chars: int


Text = str | CutText
Values = dict[str, Any]


def pick_fields(value: object, *names: str) -> Values:
    return {name: getattr(value, name) for name in names}


class GroupEntry(TypedDict):
    id: str
    """Used in links: `#g=ID&s=SIBLING&t=TURN`."""
    env: str
    item: str
    epoch: int
    status: str
    reason: str | None
    weights: list[str | None]
    """The distinct versions of the weights that sampled the group; None for an unknown one."""
    rollouts: list[Values]
    failures: list[Values]
    block: str


class RunIndex(TypedDict):
    title: str
    source: str
    env: str
    policy: str
    estimator: str
    others: list[str]
    facts: list[tuple[str, str]]
    diagnosis: str | None
    """Why some groups have no credit, and a remedy; None if all have."""
    aggregates: dict[str, Any]
    """See `environments.record.totals.Summary.values`."""
    cut: list[str]
    """Phrases that name the omissions of the page."""
    live: bool
    generation: int
    """Changes when a live record was replaced: everything known about it is void."""
    groups: list[GroupEntry]
    credit: NotRequired[CreditReport]


@dataclass(slots=True, kw_only=True)
class TextCutter:
    max_chars: int
    cut: int = 0

    def text(self, text: str) -> Text:
        if len(text) <= self.max_chars:
            return text
        self.cut += 1
        tail = self.max_chars // 4
        return CutText(head=text[: self.max_chars - tail], tail=text[len(text) - tail :], chars=len(text))

    def json(self, value: Any) -> Any:
        """Cut the long texts in JSON values; if the result is still too long, return it as one cut text."""
        if len(orjson.dumps(value)) <= self.max_chars:
            return value
        shorter = self._shorter(value)
        text = orjson.dumps(shorter)
        return shorter if len(text) <= 2 * self.max_chars else self._in_words(text.decode())

    def _shorter(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._in_words(value)
        if isinstance(value, dict):
            return {name: self._shorter(each) for name, each in cast("Values", value).items()}
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
        shown: Values = {"role": message.role, "content": self.text(message.content)}
        if message.reasoning is not None:
            shown["reasoning"] = self.text(message.reasoning)
        if message.tool_calls:
            shown["calls"] = [
                pick_fields(call, "id", "name", "status") | {"arguments": self.text(call.arguments)}
                for call in message.tool_calls
            ]
        return shown

    def second_model_calls(self, rollout: Trajectory | Failure) -> list[Values]:
        roles = ("judge", "user", "summariser", "other")  # other: calls of a recorded agent
        return [call for role in roles for call in self.judge_calls(role, getattr(rollout, f"{role}_calls"))]

    def judge_calls(self, role: str, calls: Iterable[JudgeCall]) -> list[Values]:
        return [
            pick_fields(call, "hook", "turn", "model")
            | {"role": role, "messages": [self.message(each) for each in call.messages]}
            | {"answer": None if call.answer is None else self.text(call.answer)}
            for call in calls
        ]


_UNFINISHED = "\ufffd"
_LONGEST_CHARACTER = 8
"""Tokens that one character may have."""
_SPACE = "\u2581"


class TokenTexts:
    def __init__(self, tokenizer: Tokenizer, *, is_named: bool) -> None:
        """Trust a tokenizer that the user named; otherwise its texts must match the recorded ones."""
        self._tokenizer = tokenizer
        self._is_named = is_named
        self._text_of = cache(self._decode_one)

    @classmethod
    def of(cls, name: str | None) -> Self:
        return cls(load_tokenizer(EMBEDDED if name is None else name), is_named=name is not None)

    def texts(self, ids: Sequence[int], content: str) -> list[str] | None:
        """Return a text per token, or None if the tokens of another tokenizer sampled `content`."""
        is_known = bool(ids) and max(ids) < self._tokenizer.get_vocab_size()
        if not (is_known or self._is_named):
            return None
        texts = [self._text_of(token) for token in ids]
        if _UNFINISHED in "".join(texts):
            texts = self._join_characters(ids)
        return texts if self._is_named or content.strip()[:200] in "".join(texts) else None

    def _join_characters(self, ids: Sequence[int]) -> list[str]:
        """Return one text per token. A character of several tokens stands at the last of them."""
        texts: list[str] = []
        waiting: list[int] = []
        for token in ids:
            text = self._text_of(token)
            if waiting or text.endswith(_UNFINISHED):
                waiting.append(token)
                text = self._decode(waiting)
                if text.endswith(_UNFINISHED) and len(waiting) < _LONGEST_CHARACTER:
                    texts.append("")
                    continue
                waiting = []
            texts.append(text)
        if waiting:
            texts[-1] = self._decode(waiting)
        return texts

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def _decode_one(self, token: int) -> str:
        text = self._decode((token,))
        piece = self._tokenizer.id_to_token(token) or ""
        # A SentencePiece piece loses its leading space when it is decoded alone.
        return f" {text}" if piece.startswith(_SPACE) and not text.startswith(" ") else text


LARGEST_SHOWN = 1 << 20
_MOST_VERSIONS_OF_FILES = 500


class KeptFile(TypedDict):
    turn: int | None
    path: str
    bytes: int
    note: str
    """`new`, `changed`, or why the text is missing."""
    text: Text


def collect_kept_files(trajectory: Trajectory, cut: Callable[[str], Text]) -> list[KeptFile]:
    """Return each version of a file that differs from the one before, in order of time."""
    versions: dict[str, bytes | str] = {}
    shown: list[KeptFile] = []
    for each, version in _artefact_contents(trajectory):
        before = versions.get(each.path)
        if version == before or len(shown) == _MOST_VERSIONS_OF_FILES:
            continue
        versions[each.path] = version
        note, text = "new" if before is None else "changed", ""
        if isinstance(version, str):
            note = version
        else:
            with suppress(UnicodeDecodeError):
                text = "" if b"\0" in version else version.decode()
            note += "" if text or not version else ", no text"
        shown.append(KeptFile(turn=each.turn, path=each.path, bytes=each.size, note=note, text=cut(text)))
    return shown


def _artefact_contents(trajectory: Trajectory) -> Iterator[tuple[Artefact, bytes | str]]:
    """Yield artefacts with their content, or with the reason for its absence; folders as their files."""
    for each in trajectory.artefacts:
        if each.error == "EISDIR":  # the folder is an artefact as well
            continue
        data = trajectory.contents.get(each.digest or "")
        if each.error is not None:
            yield each, f"could not be read: {each.error}"
        elif data is None:
            large = "too large to show" if each.size > LARGEST_SHOWN else "missing beside the record"
            yield each, large if each.digest else "left out, see --env.artefacts_mb"
        else:
            try:
                files = unpack(data) if each.is_folder else {"": ArchivedFile(data=data)}
            except OSError as error:
                yield each, f"no folder: {error}"
                continue
            for name, file in files.items():
                path = utf8_text(normpath(f"{each.path}/{name}"))
                yield replace(each, path=path, size=len(file.data)), file.data


BLOCK_BYTES = 1 << 20


@dataclass(slots=True, kw_only=True)
class PageContent:
    cutter: TextCutter
    tokens: bool = True
    token_texts: TokenTexts | None = None
    turns_without_texts: int = 0

    def texts_of(self, ids: Sequence[int], text: str) -> list[str] | None:
        if not self.tokens:
            return None
        texts = None if self.token_texts is None else self.token_texts.texts(ids, text)
        self.turns_without_texts += texts is None and bool(ids)
        return texts


def rollout_blocks(
    trajectory: Trajectory, ledgers: Sequence[TurnLedger], content: PageContent
) -> Iterator[Values]:
    """Yield the blocks of a rollout, some turns in each; the first has the values of the rollout."""
    cutter, rewards, agent = content.cutter, trajectory.rewards, trajectory.agent
    calls, kept = cutter.second_model_calls(trajectory), collect_kept_files(trajectory, cutter.text)
    indices = {turn.index for turn in trajectory.turns}
    block: Values = {
        "prompt": [cutter.message(each) for each in trajectory.prompt],
        "turns": [],
        "outcome_parts": {} if rewards is None else rewards.outcome_parts,
        "metrics": trajectory.metrics,
        "judge_calls": [each for each in calls if each["turn"] not in indices],
        "artefacts": [each for each in kept if each["turn"] not in indices],
        # None for our own agent loop, and in later blocks.
        "agent": agent
        and pick_fields(agent, "exit_code", "wall_s", "counts")
        | {"error": cutter.text(agent.error), "output": cutter.text(agent.output)},
    }
    size = len(orjson.dumps(block["prompt"]))
    for position, entry in enumerate(ledgers):
        turn = page_turn(trajectory, position, entry, content)
        turn["judge_calls"] = [each for each in calls if each["turn"] == turn["index"]]
        turn["artefacts"] = [each for each in kept if each["turn"] == turn["index"]]
        data = orjson.dumps(turn)
        if size >= BLOCK_BYTES and block["turns"]:
            yield block
            block, size = Values(prompt=[], turns=[], outcome_parts={}, metrics={}, agent=None), 0
            block.update(judge_calls=[], artefacts=[])
        block["turns"].append(orjson.Fragment(data))
        size += len(data)
    yield block


_COPIED = (
    "index", "kind", "finish_reason", "trained", "noted", "fork", "weight_version", "sampling", "model_s",
    "tools_s",
)  # fmt: skip


def page_turn(trajectory: Trajectory, position: int, entry: TurnLedger, content: PageContent) -> Values:
    turn, rewards, cutter = trajectory.turns[position], trajectory.rewards, content.cutter
    row, sampled = trajectory.rows[turn.span.row], slice(turn.span.start, turn.span.end)
    ids = row.token_ids[sampled] if content.tokens else ()
    logprobs = row.logprobs[sampled] if content.tokens and row.logprobs is not None else None
    return pick_fields(turn, *_COPIED) | {
        # None if the trajectory has one thread.
        "thread": turn.thread if any(each.thread for each in trajectory.turns) else None,
        "message": cutter.message(turn.message),
        "results": [
            pick_fields(result, "name", "error", "exit_code", "timed_out", "duration_s")
            | {"content": cutter.text(result.content)}
            for result in turn.tool_results
        ],
        "replies": [cutter.message(each) for each in turn.replies],
        "anchor": None if turn.anchor is None else cutter.text(turn.anchor),
        "parts": rewards.turn_components[position] if rewards and rewards.turn_components else {},
        "raw": rewards.turn_raw[position] if rewards and rewards.turn_raw else {},
        "ledger": entry,
        "condensed": None if turn.condensed is None else asdict(turn.condensed),
        # A condensed context: parts of the conversation, or other messages. None for the whole conversation.
        "saw": None
        if turn.context is None
        else [
            asdict(each) if isinstance(each, Kept) else {"message": cutter.message(each)}
            for each in turn.context
        ],
        "row": turn.span.row,
        "span": (turn.span.start, turn.span.end),
        "token_texts": content.texts_of(ids, turn.message.content),
        "token_ids": list(ids),
        "logprobs": None if logprobs is None else np.round(logprobs, 4).tolist(),
    }


AddBlock = Callable[[str, Any], None]
_LINE_CHARS = 300
_MOST_VERSIONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEstimator:
    name: str
    params: Mapping[str, Any]

    def advantages(self, credited: CreditedGroup) -> list[list[float]] | None:
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
    """Return the index entry of a group, and pass its blocks to `add`; `number` is its line, from 1."""
    group, cutter = credited.group, content.cutter
    beside = [other.advantages(credited) for other in others]
    rollouts: list[Values] = []
    for position, (trajectory, entries) in enumerate(zip(group.trajectories, ledger(credited), strict=True)):
        names: list[str] = []
        starts = [0]
        for block in rollout_blocks(trajectory, entries, content):
            names.append(f"g{number}r{position}p{len(names)}")
            starts.append(starts[-1] + len(block["turns"]))
            add(names[-1], block)
        own = [None if rows is None else rows[position] for rows in beside]
        columns = _columns(trajectory, entries, own)
        rollouts.append(_rollout(trajectory) | {"turns": columns, "blocks": names, "starts": starts[:-1]})
    name = f"g{number}"
    tools = {tool.name: tool for trajectory in group.trajectories for tool in trajectory.tools}
    block = {
        "item": cutter.json(group.item),
        "tools": [
            {"name": each.name, "description": each.description, "parameters": cutter.json(each.parameters)}
            for each in tools.values()
        ],
        "failures": [
            {"sibling": each.sibling, "judge_calls": cutter.second_model_calls(each)}
            | {"error": cutter.text(each.error), "traceback": cutter.text(each.traceback)}
            for each in group.failures
        ],
        "judge_calls": cutter.judge_calls("judge", group.judge_calls),
        "error": group.error,
    }
    add(name, block)
    failures = [
        pick_fields(each, "sibling", "turns") | {"error": _line(each.error), "kind": _line(each.kind)}
        for each in group.failures
    ]
    return GroupEntry(
        id=group.group_id,
        env=group.env,
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
    turns = trajectory.turns
    single = [entry.terms[0] if len(entry.terms) == 1 else None for entry in ledgers]
    return {
        "kind": "".join(turn.kind[0] for turn in turns),
        "rewards": [entry.reward for entry in ledgers],
        # Reward plus later rewards; None if the estimator has no such sum, or it is unknown.
        "returns": [
            None if term is None or entry.follows is None else term.value
            for term, entry in zip(single, ledgers, strict=True)
        ],
        "advantages": [entry.advantage for entry in ledgers],
        # By the estimators of `RunIndex.others`; None if one refuses this group.
        "others": others,
        # Values in the baseline; None for several baselines, or none on purpose.
        "peers": [
            None if term is None or (term.baseline is None and not term.has_no_peer) else term.peer_count
            for term in single
        ],
        # 1 if an act has no peer and keeps its raw return, 0 if it was compared, None if neither is known.
        "alone": [_alone(turn, entry.terms) for turn, entry in zip(turns, ledgers, strict=True)],
        "tokens": [turn.sampled_tokens for turn in turns],
        "trained": [int(turn.trained) for turn in turns],
        "forks": _forks(turns),
        "condensed": [int(turn.condensed is not None) for turn in turns],
        "tool_errors": [sum(each.error is not None for each in turn.tool_results) for turn in turns],
    }


def _forks(turns: Sequence[Turn]) -> list[int]:
    """Return 1 for each turn in another row than its predecessor of the same thread, else 0."""
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


def _rollout(trajectory: Trajectory) -> Values:
    rewards, parts = trajectory.rewards, Counter[str]()
    for each in () if rewards is None else (*rewards.turn_components, rewards.outcome_parts):
        parts.update(each)
    names = ("sibling", "trunk", "replayed", "score", "passed", "exact", "wall_s", "metrics")
    return pick_fields(trajectory, *names) | {
        "outcome": None if rewards is None else rewards.outcome,
        "stop": trajectory.stop_reason.value,
        "end": None if trajectory.ended_by is None else _line(trajectory.ended_by),
        "rows": len(trajectory.rows),
        "parts": parts,  # summed over the turns and the outcome
    }


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LINE_CHARS else f"{line[:_LINE_CHARS]}…"
