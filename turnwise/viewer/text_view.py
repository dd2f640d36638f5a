"""A record as text for a terminal: its groups, or the rollouts of one item with the credit of each turn."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from unicodedata import category

import click
import orjson

from environments.credit.ledger import TurnLedger, ledger
from environments.record.group_line import decode_group, parse_head
from environments.record.recorder import Record, groups_of, iterate_lines, read_contents
from environments.record.summary import summary_rows
from environments.record.totals import Summary
from environments.run.run_list import CountedOnce
from environments.trajectory import CreditedGroup, Message, Trajectory
from tools.errors import UsageError

_NOTHING: Mapping[str, float] = {}
_NAMED_ITEMS = 8
_COLOURS = {"ok": "green", "no_credit": "yellow", "alone": "yellow", "failed": "red"}


def run_lines(record: Record) -> Iterator[str]:
    summary, counts = Summary(), CountedOnce(read_contents(record).finished)
    for credited in groups_of(record):
        if counts(credited):
            summary.add(credited)
        group, status = credited.group, credited.status
        facts = {
            "scores": " ".join(_number(each.score) for each in group.trajectories),
            "turns": " ".join(str(len(each.acts)) for each in group.trajectories),
            "ended": _counts(each.stop_reason.value for each in group.trajectories),
            "dropped": _counts(each.error_class or "unknown" for each in group.failures),
            "reason": _line(credited.reason or ""),
        }
        shown = "".join(f" · {name} {text}" for name, text in facts.items() if text)
        name = f"{_line(group.item_id)} · epoch {group.epoch} · "
        yield f"{name}{click.style(status, fg=_COLOURS[status])}{shown}"
    yield ""
    for name, text in summary_rows(summary.values(), wall_s=0.0)[:-1]:
        yield from _label(name, text, width=18)


def item_lines(record: Record, item: str, *, max_chars: int) -> Iterator[str]:
    names: dict[str, None] = {}  # in the order of the record
    wanted: set[tuple[Path, int]] = set()
    for path, number, line in iterate_lines(record):
        name = str(parse_head(line, path, number).get("item_id"))
        names[name] = None
        if name == item:
            wanted.add((path, number))
    if not wanted:
        more = ", …" if len(names) > _NAMED_ITEMS else ""
        known = ", ".join(map(ascii, list(names)[:_NAMED_ITEMS])) + more or "none"
        raise UsageError(f"{record} has no item {item!r}; it has {known}")
    for path, number, line in iterate_lines(record):
        if (path, number) in wanted:
            yield from _group_lines(decode_group(line, path, number), max_chars)


def _group_lines(credited: CreditedGroup, max_chars: int) -> Iterator[str]:
    group, ledgers = credited.group, ledger(credited)
    yield _heading(f"item {_line(group.item_id)}", f" · epoch {group.epoch} · {credited.status}")
    for name, value in (("reason", credited.reason), ("error", group.error)):
        yield from _label(name, _line(value)) if value else ()
    yield from _block(orjson.dumps(group.item).decode(), max_chars, "item  ")
    for failure in group.failures:
        yield _heading(f"sibling {failure.sibling}", f" was dropped: {_line(failure.error)}")
        yield from _block(failure.traceback, max_chars)
    for prompt in dict.fromkeys(each.prompt for each in group.trajectories):
        siblings = [str(each.sibling) for each in group.trajectories if each.prompt == prompt]
        yield _heading(f"─── opening of sibling {', '.join(siblings)}")
        yield from _with_roles(prompt, max_chars)
    for row, turns in enumerate(_align(group.trajectories), start=1):
        yield _heading(f"─── turn {row}")
        for sibling, number in turns:
            yield from _turn_lines(group.trajectories[sibling], number, ledgers[sibling][number], max_chars)
    yield _heading("─── ends")
    for each in group.trajectories:
        end = f": {_line(each.ended_by)}" if each.ended_by else ""
        branch = (
            "" if each.trunk is None else f" · branch of {each.trunk} at turn {(each.branch_turn or 0) + 1}"
        )
        yield _heading(
            f"sibling {each.sibling}",
            f"{branch} · {each.stop_reason.value}{end} · score {_number(each.score)}",
        )
        outcome = _NOTHING if each.rewards is None else each.rewards.outcome_parts
        for name, values in (("outcome", outcome), ("metrics", each.metrics)):
            yield from _label(f"  {name}", _numbers(values)) if values else ()
        if each.agent is not None:
            yield from _block(f"{each.agent.error}\n{each.agent.output}".strip(), max_chars, "    ")


def _align(trajectories: Sequence[Trajectory]) -> list[list[tuple[int, int]]]:
    """Return the turns by the number of acts before them: a summary is in the row of the next act."""
    rows: list[list[tuple[int, int]]] = []
    for sibling, trajectory in enumerate(trajectories):
        acts = 0
        for number, turn in enumerate(trajectory.turns):
            if acts == len(rows):
                rows.append([])
            rows[acts].append((sibling, number))
            acts += turn.kind == "act"
    return rows


def _turn_lines(trajectory: Trajectory, number: int, entry: TurnLedger, max_chars: int) -> Iterator[str]:
    turn, rewards = trajectory.turns[number], trajectory.rewards
    reward = "not scored" if entry.reward is None else f"reward {_number(entry.reward)}"
    kind = "" if turn.kind == "act" else f" · {turn.kind}"
    colour = "green" if entry.advantage > 0 else "red" if entry.advantage < 0 else None
    advantage = click.style(_with_sign(entry.advantage), fg=colour)
    yield _heading(f"sibling {trajectory.sibling}", f"{kind} · {reward} · advantage {advantage}")
    yield from _message(turn.message, max_chars, "  ")
    for result in turn.tool_results:
        exit_code = "" if result.exit_code is None else f" exit {result.exit_code}"
        error = "" if result.error is None else f" {_line(result.error)}"
        yield f"  ← {_line(result.name)}{exit_code}{error}"
        yield from _block(result.content, max_chars, "    ")
    yield from _with_roles(turn.replies, max_chars)
    parts = rewards.turn_components[number] if rewards and rewards.turn_components else _NOTHING
    notes = (
        ("parts", _numbers(parts)),
        ("credit", _credit(entry)),
        *(("note", each) for each in entry.notes),
    )
    for name, value in notes:
        yield from _label(f"  {name}", _line(value)) if value else ()


def _credit(entry: TurnLedger) -> str:
    reward = "not scored" if entry.reward is None else f"reward {_precise(entry.reward)}"
    follows = "" if entry.follows is None else f" {_as_term(entry.follows)} what follows"
    terms: list[str] = []
    for term in entry.terms:
        baseline = "" if term.baseline is None else f" {_as_term(-term.baseline)} baseline"
        divisor = "" if term.divisor is None else f" / {_precise(term.divisor)}"
        weight = "" if term.weight == 1 else f"{_precise(term.weight)} * "
        text = f"{term.name} {_precise(term.value)}{baseline}"
        terms.append(f"{weight}({text}){divisor}" if weight or divisor else text)
    compared = f" → {' + '.join(terms)}" if terms else ""
    return f"{reward}{follows}{compared} → advantage {_with_sign(entry.advantage)}"


def _with_roles(messages: Iterable[Message], max_chars: int) -> Iterator[str]:
    for message in messages:
        yield click.style(f"  {message.role}", fg="magenta")
        yield from _message(message, max_chars, "    ")


def _message(message: Message, max_chars: int, indent: str) -> Iterator[str]:
    if message.reasoning:
        for line in _block(message.reasoning, max_chars, indent):
            yield click.style(line, dim=True)
    if message.content or not message.tool_calls:
        yield from _block(message.content or "(no text)", max_chars, indent)
    for call in message.tool_calls:
        status = "" if call.status == "ok" else f" ({call.status})"
        yield from _block(f"→ {_line(call.name)}{status} {call.arguments}", max_chars, indent)


def _block(text: str, max_chars: int, indent: str = "  ") -> Iterator[str]:
    left_out, tail = len(text) - max_chars, max_chars // 4
    if left_out > 0:
        text = f"{text[: max_chars - tail]} … ({left_out:,} characters left out) … {text[-tail:]}"
    yield from (f"{indent}{line}" for line in _plain(text).split("\n"))


def _heading(name: str, rest: str = "") -> str:
    return click.style(name, bold=True) + rest


def _label(name: str, text: str, width: int = 11) -> Iterator[str]:
    for number, line in enumerate(_plain(text).split("\n")):
        yield f"{'' if number else name:<{width}}  {line}".rstrip()


def _plain(text: str) -> str:
    """Replace invisible characters, such as an escape, by their Python notation; keep line breaks."""
    text = text.replace("\r\n", "\n").expandtabs(4)
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(
        each if each == "\n" or each.isprintable() or category(each) == "Zs" else ascii(each)[1:-1]
        for each in text
    )


def _line(text: str) -> str:
    return " ".join(_plain(text).split())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value + 0.0:.4g}"


def _precise(value: float) -> str:
    """Format a term of a sum; terms may nearly cancel out."""
    return f"{value + 0.0:.6g}"


def _with_sign(value: float) -> str:
    return f"{value:+.4g}" if value else "0"


def _as_term(value: float) -> str:
    return f"- {_precise(-value)}" if value < 0 or str(value) == "-0.0" else f"+ {_precise(value)}"


def _numbers(named: Mapping[str, float]) -> str:
    return ", ".join(f"{_line(name)} {_number(value)}" for name, value in named.items())


def _counts(names: Iterable[str]) -> str:
    return ", ".join(f"{_line(name)} {count}" for name, count in Counter(names).items())
