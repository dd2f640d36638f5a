"""A group in a terminal: its siblings turn by turn, how each turn was credited, and against whom."""

import unicodedata
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson
from rich import box
from rich import text as rich_text
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table

from environments.credit.ledger import LedgerPeer, LedgerTerm, TurnLedger
from environments.record.summary import weights_text
from environments.viewer.page_values import (
    CutText,
    GroupBlock,
    GroupEntry,
    PageFailure,
    PageJudgeCall,
    PageMessage,
    PageResult,
    PageTurn,
    RolloutBlock,
    RolloutEntry,
    RunIndex,
    Text,
)

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that do something instead of being seen: escapes, marks of direction, joiners."""
_MARKS = frozenset({"Mn", "Me"})
_MOST_MARKS = 4
"""On one character; a terminal may take its time for more."""
_TAB = "    "


def shown(text: Text) -> str:
    """The text, where what would not be seen is written as in Python, such as an escape; lines stay lines.

    Of a text that was cut, it says how much is missing.
    """
    if isinstance(text, str):
        return _shown(text)
    return f"{_shown(text['head'])} … ({_left_out(text):,} characters left out) … {_shown(text['tail'])}"


def in_line(text: Text) -> str:
    """The same in one line."""
    return " ".join(shown(text).split())


def json_line(value: Any) -> str:
    """JSON values in one line."""
    return _shown(orjson.dumps(value).decode())


def number(value: float | None) -> str:
    """A number in a few digits, `-` where there is none."""
    return "-" if value is None else f"{value + 0.0:.4g}"


def precise(value: float) -> str:
    """A number of a sum, which nearly cancel out now and then."""
    return f"{value + 0.0:.6g}"


def signed(value: float) -> str:
    """A number with its sign; 0 has none."""
    return f"{value:+.4g}" if value else "0"


def numbers(named: Mapping[str, float]) -> str:
    """Names with their numbers."""
    return ", ".join(f"{in_line(name)} {number(value)}" for name, value in named.items())


def _left_out(text: CutText) -> int:
    return text["chars"] - len(text["head"]) - len(text["tail"])


def _shown(text: str) -> str:
    text = text.replace("\r\n", "\n")
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    pieces: list[str] = []
    marks = 0
    for each in text:
        category = unicodedata.category(each)
        marks = marks + 1 if category in _MARKS else 0
        if each == "\n":
            pieces.append(each)
        elif each == "\t":
            pieces.append(_TAB)
        elif category in _UNSEEN or marks > _MOST_MARKS:
            pieces.append(each.encode("unicode_escape").decode())
        else:
            pieces.append(each)
    return "".join(pieces)


_MOST_PEERS = 8


def credit_lines(turn: PageTurn) -> Iterator[tuple[str, str]]:
    """Names and texts: the sum, whom it was compared with, and what is to be said of it."""
    ledger = turn["ledger"]
    yield "credit", _sum(ledger)
    for term in ledger.terms:
        if term.peers:
            several = f"{in_line(term.name)}: " if len(ledger.terms) > 1 else ""
            yield "compared", several + _peers(term)
    for note in ledger.notes:
        yield "note", in_line(note)


def _sum(ledger: TurnLedger) -> str:
    reward = "not scored" if ledger.reward is None else f"reward {precise(ledger.reward)}"
    follows = "" if ledger.follows is None else f" {_added(ledger.follows)} what follows"
    terms = [_term(each) for each in ledger.terms]
    compared = f" → {' + '.join(terms)}" if terms else ""
    tokens = f"{ledger.tokens:,} trained token{'s' * (ledger.tokens != 1)}"
    return f"{reward}{follows}{compared} → advantage {signed(ledger.advantage)} → {tokens}"


def _added(value: float) -> str:
    return f"- {precise(-value)}" if value < 0 else f"+ {precise(value)}"


def _subtracted(value: float) -> str:
    return f"+ {precise(-value)}" if value < 0 else f"- {precise(value)}"


def _term(term: LedgerTerm) -> str:
    text = f"{in_line(term.name)} {precise(term.value)}"
    if term.baseline is not None:
        text += f" {_subtracted(term.baseline)} baseline"
    if term.divisor is not None or term.weight != 1:
        text = f"({text})"
    if term.divisor is not None:
        text += f" / {precise(term.divisor)}"
    return text if term.weight == 1 else f"{precise(term.weight)} * {text}"


def _peers(term: LedgerTerm) -> str:
    peers = [_peer(each) for each in term.peers[:_MOST_PEERS]]
    more = term.peer_count - len(peers)
    whole = "; its own is in the baseline" if term.whole_group else ""
    spread = "" if term.spread is None else f"; spread {number(term.spread)}"
    return ", ".join(peers) + (f" and {more} more" if more > 0 else "") + spread + whole


def _peer(peer: LedgerPeer) -> str:
    turn = "" if peer.turn is None else f" turn {peer.turn + 1}"
    return f"sibling {peer.sibling}{turn}: {precise(peer.value)}"


_MOST_INDICES = 32
_STATUS = {"ok": "green", "no_credit": "yellow", "failed": "red"}
_HEALTH: Mapping[str, str] = {
    "turn": "turn",
    "rollouts": "rollouts",
    "scored": "scored",
    "reward": "reward",
    "advantage": "adv. sd",
    "tokens": "tokens",
    "without_peer": "no peer",
    "groups": "groups",
    "groups_without_spread": "no spread",
    "tool_errors": "tool errors",
}
"""What is shown of each turn index, and how the column is called."""


def run_parts(index: RunIndex) -> Iterator[RenderableType]:
    """What is printed of a run, part by part."""
    yield rich_text.Text(in_line(index["title"]), style="bold")
    for name in ("env", "policy", "estimator"):
        yield _named(name, in_line(index[name]))
    yield rich_text.Text()
    yield _groups(index["groups"])
    yield from _aggregates(index["aggregates"])
    yield from _health(index["aggregates"]["by_turn"])


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """An empty table whose columns fold what is too wide; those in `right` hold numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in columns:
        made.add_column(name, overflow="fold", justify="right" if name in right else "left")
    return made


def _groups(groups: Sequence[GroupEntry]) -> Table:
    made = table("item", "epoch", "status", "scores", "turns", "ended", "dropped", right=("epoch", "dropped"))
    for group in groups:
        rollouts = group["rollouts"]
        stops = Counter(_stop(each["stop"], each["end"]) for each in rollouts)
        status = rich_text.Text(group["status"], style=_STATUS.get(group["status"], ""))
        if group["reason"]:
            status.append(f": {in_line(group['reason'])}", style="default")
        made.add_row(
            rich_text.Text(in_line(group["item"])),
            str(group["epoch"]),
            status,
            " ".join(number(each["score"]) for each in rollouts),
            " ".join(str(each["turns"]["kind"].count("a")) for each in rollouts),
            rich_text.Text(_counts(stops)),
            rich_text.Text(_counts(Counter(each["error_class"] for each in group["failures"]))),
        )
    return made


def _stop(stop: str, end: str | None) -> str:
    return stop if end is None else f"{stop}: {in_line(end)}"


def _counts(counter: Mapping[str, int]) -> str:
    return ", ".join(
        f"{in_line(name)} {count}" if count > 1 else in_line(name) for name, count in counter.items()
    )


def _named(name: str, text: str) -> rich_text.Text:
    return rich_text.Text(f"{name:<14}", style="bold").append(text, style="not bold")


def _aggregates(values: Mapping[str, Any]) -> Iterator[RenderableType]:
    score, turns, credit = values["score"], values["turns"], values["credit"]
    rows = {
        "groups": numbers(values["groups"]),
        "rollouts": numbers(values["rollouts"]),
        "score": _spread(score),
        "turns": _spread(turns),
        "parts": _means(values["parts"]),
        "metrics": _means(values["metrics"]),
        "ended": numbers(values["stop_reasons"]),
        "tools": numbers({"calls": values["tools"]["calls"], **values["tools"]["errors"]}),
        "credited": f"{credit['turns']:,} turns, {credit['without_peer']:,} without a peer, "
        f"{credit['untrained']:,} not trained",
        "weights": in_line(weights_text(values)),
        "failures": numbers(values["failures"]),
        "not credited": numbers(values["reasons"]),
    }
    yield rich_text.Text()
    for name, text in rows.items():
        if text:
            yield _named(name, text)


def _health(by_turn: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Whom turns of each index were compared with, and what that left to learn from."""
    if not by_turn:
        return
    yield rich_text.Text()
    made = table(*_HEALTH.values(), right=tuple(_HEALTH.values()))
    made.padding = 0  # so that it fits into 80 columns
    for each in by_turn[:_MOST_INDICES]:
        made.add_row(*(_cell(each[name], name) for name in _HEALTH))
    yield made
    if by_turn[_MOST_INDICES:]:
        yield rich_text.Text(f"and {len(by_turn) - _MOST_INDICES} later turns", style="dim")


def _cell(value: Any, name: str) -> str:
    if name == "turn":
        return str(value + 1)
    if isinstance(value, Mapping):
        return number(value["sd" if name == "advantage" else "mean"])  # pyright: ignore[reportUnknownArgumentType]  # JSON
    return "-" if value is None else f"{value:,}"


def _spread(values: Mapping[str, Any]) -> str:
    if not values["count"]:
        return ""
    return f"mean {number(values['mean'])}, from {number(values['min'])} to {number(values['max'])}"


def _means(spreads: Mapping[str, Mapping[str, Any]]) -> str:
    return numbers({name: spread["mean"] for name, spread in spreads.items()})


INDENT = (0, 0, 0, 2)
UNKNOWN = "unknown"
"""A version of the weights that nobody said."""
_DEEPER = (0, 0, 0, 4)
_NAME_WIDTH = 9


def turn_cell(entry: RolloutEntry, turn: PageTurn, row: int, *, weights: bool = False) -> RenderableType:
    """A turn of a sibling, which names itself where summaries made it another than its row's.

    With `weights` it says which version of them sampled it.
    """
    own = turn["index"] + 1
    version = turn["weight_version"]
    said = [note_line("weights", UNKNOWN if version is None else in_line(version))] if weights else []
    return Group(*_turn_parts(entry, turn, "" if own == row else f" · turn {own}"), *said, rich_text.Text())


def _turn_parts(entry: RolloutEntry, turn: PageTurn, which: str) -> Iterator[RenderableType]:
    ledger = turn["ledger"]
    reward = "not scored" if ledger.reward is None else f"reward {number(ledger.reward)}"
    kind = "" if turn["kind"] == "act" else f" · {turn['kind']}"
    heading = rich_text.Text(f"sibling {entry['sibling']}", style="bold cyan")
    heading.append(f"{which}{kind} · {reward} · advantage ", style="not bold default")
    yield heading.append(signed(ledger.advantage), style=_colour(ledger.advantage))
    if turn["fork"]:
        yield note_line("new row", in_line(turn["fork"]))
    yield from _condensed(turn)
    yield from _spoken(turn["message"])
    for result in turn["results"]:
        yield from _result(result)
    for reply in turn["replies"]:
        yield from message_lines(reply)
    if turn["finish_reason"] not in ("stop", "tool_calls"):
        yield note_line("finished", in_line(turn["finish_reason"]))
    if turn["parts"]:
        yield note_line("parts", numbers(turn["parts"]))
    if turn["raw"] and turn["raw"] != turn["parts"]:
        yield note_line("raw", numbers(turn["raw"]))
    if turn["noted"]:
        yield note_line("noted", numbers(turn["noted"]))
    yield from (note_line(name, text) for name, text in credit_lines(turn))
    yield from judged_lines(turn["judge_calls"])


def _condensed(turn: PageTurn) -> Iterator[RenderableType]:
    condensed = turn["condensed"]
    if condensed is not None:
        about = "about " if condensed["is_estimate"] else ""
        yield note_line(
            "condensed",
            f"{in_line(condensed['cause'])}: {about}{condensed['tokens_before']:,} → "
            f"{condensed['tokens_after']:,} tokens",
        )
    if turn["saw"] is not None:
        parts = [
            f"messages {part['start'] + 1} to {part['end']}" if "start" in part else "what was put in"
            for part in turn["saw"]
        ]
        yield note_line("saw", ", ".join(parts) or "nothing")
        for part in turn["saw"]:
            if "message" in part:
                yield from message_lines(part["message"])


def _spoken(message: PageMessage) -> Iterator[RenderableType]:
    if "reasoning" in message:
        yield Padding(rich_text.Text(shown(message["reasoning"]), style="dim italic"), INDENT)
    if message["content"]:
        yield Padding(rich_text.Text(shown(message["content"])), INDENT)
    elif not message.get("calls"):
        yield Padding(rich_text.Text("(no text)", style="dim"), INDENT)
    for call in message.get("calls", ()):
        status = "" if call["status"] == "ok" else f" ({call['status']})"
        yield Padding(
            rich_text.Text(f"→ {in_line(call['name'])}{status} ", style="bold").append(
                shown(call["arguments"]), style="not bold"
            ),
            INDENT,
        )


def _result(result: PageResult) -> Iterator[RenderableType]:
    facts = [
        f"exit {result['exit_code']}" if result["exit_code"] is not None else "",
        result["error"] or "",
        "timed out" if result["timed_out"] else "",
    ]
    said = ", ".join(filter(None, facts))
    failed = result["error"] or result["timed_out"] or result["exit_code"]
    yield Padding(
        rich_text.Text(f"← {in_line(result['name'])} {said}".rstrip(), style="red" if failed else "green"),
        INDENT,
    )
    yield Padding(rich_text.Text(shown(result["content"])), _DEEPER)


def message_lines(message: PageMessage) -> Iterator[RenderableType]:
    """A message below its role."""
    yield Padding(rich_text.Text(message["role"], style="magenta"), INDENT)
    yield from (Padding(each, INDENT) for each in _spoken(message))


def judged_lines(calls: Sequence[PageJudgeCall]) -> Iterator[RenderableType]:
    """What second models were asked last, and their answers."""
    for call in calls:
        yield note_line(call["role"], f"{in_line(call['model'])}, asked by {in_line(call['hook'])}")
        if call["messages"]:
            yield Padding(rich_text.Text(shown(call["messages"][-1]["content"]), style="dim"), _DEEPER)
        answer = "it takes no such question" if call["answer"] is None else shown(call["answer"])
        yield Padding(rich_text.Text(f"→ {answer}"), _DEEPER)


def note_line(name: str, text: str) -> RenderableType:
    """A name with a text that stays in its column."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=_NAME_WIDTH)
    grid.add_column(overflow="fold")
    grid.add_row(rich_text.Text(name, style="bold dim"), rich_text.Text(text))
    return Padding(grid, INDENT)


def _colour(value: float) -> str:
    return "green" if value > 0 else "red" if value < 0 else "default"


COLUMN = 72
"""Least width of a sibling beside another."""
_ITEM_CHARS = 300
"""Of a field of an item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownGroup:
    """A group with all of its blocks, as far as they are to be shown."""

    entry: GroupEntry
    block: GroupBlock
    rollouts: Sequence[tuple[RolloutEntry, RolloutBlock]]
    """Each with its blocks as one."""
    turns: Container[int] | None = None
    """Which turns, counted from 1; `None`: all."""

    @classmethod
    def of(
        cls,
        entry: GroupEntry,
        blocks: Mapping[str, Any],
        *,
        siblings: Container[int] | None = None,
        turns: Container[int] | None = None,
    ) -> "ShownGroup":
        """The siblings and turns that are wanted, `None`: all, with their blocks by name."""
        wanted = [each for each in entry["rollouts"] if siblings is None or each["sibling"] in siblings]
        block = cast("GroupBlock", blocks[entry["block"]])
        failures = [each for each in block["failures"] if siblings is None or each["sibling"] in siblings]
        return cls(
            entry=entry,
            block={**block, "failures": failures},
            rollouts=[(each, _joined([blocks[name] for name in each["blocks"]])) for each in wanted],
            turns=turns,
        )


def group_parts(group: ShownGroup, *, width: int) -> Iterator[RenderableType]:
    """What is printed of a group, part by part.

    Args:
        group: the group.
        width: of the terminal; where it is wide, siblings stand beside each other.
    """
    yield from _heading(group)
    for failure in group.block["failures"]:
        yield from _failure(failure)
    if group.turns is None:
        yield from _opening(group.rollouts)
    for row, there in enumerate(_rows(group.rollouts), start=1):
        wanted = [(e, turn) for e, turn in there if group.turns is None or turn["index"] + 1 in group.turns]
        if wanted:
            yield Rule(rich_text.Text(f"turn {row}"), align="left", style="dim")
            several = len(group.entry["weights"]) > 1
            yield _beside([turn_cell(entry, turn, row, weights=several) for entry, turn in wanted], width)
    if group.turns is None:
        yield Rule(rich_text.Text("ends"), align="left", style="dim")
        yield _beside([_end(entry, block) for entry, block in group.rollouts], width)


def _rows(rollouts: Sequence[tuple[RolloutEntry, RolloutBlock]]) -> list[list[tuple[RolloutEntry, PageTurn]]]:
    """Turns that are compared with each other; a summary is with the act that follows it, as in credit."""
    rows: list[list[tuple[RolloutEntry, PageTurn]]] = []
    for entry, block in rollouts:
        acts = 0
        for turn in block["turns"]:
            if acts == len(rows):
                rows.append([])
            rows[acts].append((entry, turn))
            acts += turn["kind"] == "act"
    return rows


def _joined(blocks: Sequence[RolloutBlock]) -> RolloutBlock:
    return {**blocks[0], "turns": [turn for block in blocks for turn in block["turns"]]}


def _beside(cells: Sequence[RenderableType], width: int) -> Table:
    columns = max(1, min(len(cells), width // COLUMN))
    grid = Table.grid(padding=(0, 2), expand=True)
    for _ in range(columns):
        grid.add_column(ratio=1, overflow="fold")
    for start in range(0, len(cells), columns):
        grid.add_row(*cells[start : start + columns])
    return grid


def _heading(group: ShownGroup) -> Iterator[RenderableType]:
    entry, block = group.entry, group.block
    yield rich_text.Text(f"item {in_line(entry['item'])}", style="bold").append(
        f" · epoch {entry['epoch']} · {entry['status']} · group {in_line(entry['id'])}", style="not bold"
    )
    facts = {
        "reason": in_line(entry["reason"] or ""),
        "error": in_line(block["error"] or ""),
        "weights": _several(entry["weights"]),
        "tools": ", ".join(in_line(tool["name"]) for tool in block["tools"]),
    }
    for name, text in facts.items():
        if text:
            yield rich_text.Text(f"{name:<8}", style="bold").append(text, style="not bold")
    if group.turns is None:
        yield from _item(block["item"])
    made = table(
        "sibling",
        "score",
        "outcome",
        "turns",
        "tokens",
        "ended",
        right=("score", "outcome", "turns", "tokens"),
    )
    for each, _ in group.rollouts:
        turns, end = each["turns"], f": {in_line(each['end'])}" if each["end"] else ""
        made.add_row(
            str(each["sibling"]),
            number(each["score"]),
            number(each["outcome"]),
            str(turns["kind"].count("a")),
            f"{sum(turns['tokens']):,}",
            rich_text.Text(f"{each['stop']}{end}"),
        )
    yield rich_text.Text()
    yield made
    yield from judged_lines(block["judge_calls"])


def _several(versions: Sequence[str | None]) -> str:
    """The versions of the weights, where there are several."""
    names = [UNKNOWN if each is None else in_line(each) for each in versions]
    return f"several versions: {', '.join(names)}" if len(names) > 1 else ""


def _item(item: Any) -> Iterator[RenderableType]:
    """Each field in a line, or a few."""
    fields: Mapping[str, Any] = cast("Mapping[str, Any]", item) if isinstance(item, dict) else {"": item}
    if item is not None:
        yield rich_text.Text("item", style="bold")
    for name, value in fields.items():
        text = json_line(value)
        if value is not None:
            short = text if len(text) <= _ITEM_CHARS else f"{text[:_ITEM_CHARS]}… ({len(text):,} characters)"
            yield Padding(
                rich_text.Text(f"{in_line(name)} ", style="bold dim").append(short, style="not bold not dim"),
                INDENT,
            )


def _failure(failure: PageFailure) -> Iterator[RenderableType]:
    yield rich_text.Text(f"sibling {failure['sibling']} was dropped: ", style="bold red").append(
        in_line(failure["error"]), style="not bold"
    )
    if failure["traceback"]:
        yield Padding(rich_text.Text(shown(failure["traceback"]), style="dim"), INDENT)
    yield from judged_lines(failure["judge_calls"])


def _opening(rollouts: Sequence[tuple[RolloutEntry, RolloutBlock]]) -> Iterator[RenderableType]:
    """The prompt; where siblings have others, each."""
    prompts: list[tuple[list[int], list[PageMessage]]] = []
    for entry, block in rollouts:
        same = next((siblings for siblings, prompt in prompts if prompt == block["prompt"]), None)
        if same is None:
            prompts.append(([entry["sibling"]], block["prompt"]))
        else:
            same.append(entry["sibling"])
    for siblings, prompt in prompts:
        whose = "" if len(prompts) == 1 else f" of sibling {', '.join(map(str, siblings))}"
        yield Rule(rich_text.Text(f"opening{whose}"), align="left", style="dim")
        for message in prompt:
            yield from message_lines(message)


def _end(entry: RolloutEntry, block: RolloutBlock) -> RenderableType:
    end = f": {in_line(entry['end'])}" if entry["end"] else ""
    lines: list[RenderableType] = [
        rich_text.Text(f"sibling {entry['sibling']}", style="bold cyan").append(
            f" · {entry['stop']}{end} · score {number(entry['score'])}", style="not bold default"
        )
    ]
    if block["outcome_parts"]:
        lines.append(note_line("outcome", numbers(block["outcome_parts"])))
    if block["metrics"]:
        lines.append(note_line("metrics", numbers(block["metrics"])))
    return Group(*lines, *judged_lines(block["judge_calls"]), rich_text.Text())
