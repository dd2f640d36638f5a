"""A record as text for a terminal: its groups, or the rollouts of an item turn by turn with their credit."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click
import orjson

from environments.credit.ledger import LedgerTerm, TurnLedger, ledger
from environments.record.group_line import decode_group, parse_head
from environments.record.recorder import Record, groups_of, numbered_lines, read_contents
from environments.record.summary import summary_rows
from environments.record.totals import Summary
from environments.run.run_list import CountedOnce
from environments.trajectory import CreditedGroup, JudgeCall, Kept, Message, Trajectory, Turn
from tools.errors import UsageError

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that act instead of being seen: escapes, marks of direction, joiners."""
_NOTHING: Mapping[str, float] = {}
_NAMED_ITEMS = 8
_NAMED_PEERS = 8
_COLOURS = {"ok": "green", "no_credit": "yellow", "failed": "red"}


def run_lines(record: Record) -> Iterator[str]:
    """One line for each group of a record, then what they come to."""
    summary, counts = Summary(), CountedOnce(read_contents(record).finished)
    for credited in groups_of(record):
        if counts(credited):
            summary.add(credited)
        group, status = credited.group, credited.status
        stops = Counter(each.stop_reason.value for each in group.trajectories)
        facts = {
            "scores": " ".join(_number(each.score) for each in group.trajectories),
            "turns": " ".join(str(len(each.acts)) for each in group.trajectories),
            "ended": _counts(stops),
            "dropped": _counts(Counter(each.error_class or "unknown" for each in group.failures)),
            "reason": _line(credited.reason or ""),
        }
        shown = "".join(f" · {name} {text}" for name, text in facts.items() if text)
        name = f"{_line(group.item_id)} · epoch {group.epoch} · "
        yield f"{name}{click.style(status, fg=_COLOURS[status])}{shown}"
    yield ""
    for name, text in summary_rows(summary.values(), wall_s=0.0)[:-1]:
        yield from _named(name, text, width=18)


def item_lines(record: Record, item: str, *, max_chars: int) -> Iterator[str]:
    """The groups of an item, in every epoch.

    Raises:
        UsageError: the record has no such item.
    """
    names: dict[str, None] = {}  # in the order of the record
    wanted: set[tuple[Path, int]] = set()
    for path, number, line in numbered_lines(record):
        name = str(parse_head(line, path, number).get("item_id"))
        names[name] = None
        if name == item:
            wanted.add((path, number))
    if not wanted:
        more = ", …" if len(names) > _NAMED_ITEMS else ""
        known = ", ".join(map(ascii, list(names)[:_NAMED_ITEMS])) + more or "none"
        raise UsageError(f"{record} has no item {item!r}; it has {known}")
    for path, number, line in numbered_lines(record):
        if (path, number) in wanted:
            yield from _group_lines(decode_group(line, path, number), _Text(max_chars))


class _Text:
    """Texts of a record in a terminal: what would drive it is escaped, the middle of long ones left out."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars

    def block(self, text: str, indent: str = "  ") -> Iterator[str]:
        """Each line below others."""
        yield from (f"{indent}{line}" for line in _plain(self._cut(text)).split("\n"))

    def message(self, message: Message, indent: str = "  ") -> Iterator[str]:
        """A message's text, and its tool calls."""
        if message.reasoning:
            yield from (click.style(line, dim=True) for line in self.block(message.reasoning, indent))
        if message.content or not message.tool_calls:
            yield from self.block(message.content or "(no text)", indent)
        for call in message.tool_calls:
            status = "" if call.status == "ok" else f" ({call.status})"
            yield from self.block(f"→ {_line(call.name)}{status} {call.arguments}", indent)

    def with_role(self, message: Message) -> Iterator[str]:
        """A message below its role."""
        yield click.style(f"  {message.role}", fg="magenta")
        yield from self.message(message, "    ")

    def asked(self, role: str, calls: Iterable[JudgeCall]) -> Iterator[str]:
        """The last words that a second model was asked, and its answer."""
        for call in calls:
            yield from _named(f"  {role}", f"{_line(call.model)}, asked by {_line(call.hook)}")
            if call.messages:
                yield from self.block(call.messages[-1].content, "    ")
            yield from self.block(f"→ {call.answer or 'it takes no such question'}", "    ")

    def _cut(self, text: str) -> str:
        left_out = len(text) - self._max_chars
        if left_out <= 0:
            return text
        tail = self._max_chars // 4
        return f"{text[: self._max_chars - tail]} … ({left_out:,} characters left out) … {text[-tail:]}"


def _group_lines(credited: CreditedGroup, text: _Text) -> Iterator[str]:
    group, ledgers = credited.group, ledger(credited)
    yield _heading(f"item {_line(group.item_id)}", f" · epoch {group.epoch} · {credited.status}")
    facts = {"group": group.group_id, "reason": credited.reason or "", "error": group.error or ""}
    for name, value in facts.items():
        yield from _named(name, _line(value)) if value else ()
    yield from text.block(f"{orjson.dumps(group.item).decode()}", "item  ")
    yield from text.asked("judge", group.judge_calls)
    for failure in group.failures:
        yield _heading(f"sibling {failure.sibling}", f" was dropped: {_line(failure.error)}")
        yield from text.block(failure.traceback)
    for prompt in dict.fromkeys(each.prompt for each in group.trajectories):
        siblings = [str(each.sibling) for each in group.trajectories if each.prompt == prompt]
        yield _heading(f"─── opening of sibling {', '.join(siblings)}")
        for message in prompt:
            yield from text.with_role(message)
    for row, turns in enumerate(_compared(group.trajectories), start=1):
        yield _heading(f"─── turn {row}")
        for sibling, number in turns:
            trajectory = group.trajectories[sibling]
            yield from _turn_lines(trajectory, number, ledgers[sibling][number], text)
    yield _heading("─── ends")
    for trajectory in group.trajectories:
        yield from _end_lines(trajectory, text)


def _compared(trajectories: Sequence[Trajectory]) -> list[list[tuple[int, int]]]:
    """Turns that are compared with each other; a summary is with the act that follows it, as in credit."""
    rows: list[list[tuple[int, int]]] = []
    for sibling, trajectory in enumerate(trajectories):
        acts = 0
        for number, turn in enumerate(trajectory.turns):
            if acts == len(rows):
                rows.append([])
            rows[acts].append((sibling, number))
            acts += turn.kind == "act"
    return rows


def _turn_lines(trajectory: Trajectory, number: int, entry: TurnLedger, text: _Text) -> Iterator[str]:
    turn, rewards = trajectory.turns[number], trajectory.rewards
    reward = "not scored" if entry.reward is None else f"reward {_number(entry.reward)}"
    kind = "" if turn.kind == "act" else f" · {turn.kind}"
    advantage = click.style(_signed(entry.advantage), fg=_colour(entry.advantage))
    yield _heading(f"sibling {trajectory.sibling}", f"{kind} · {reward} · advantage {advantage}")
    notes = {
        "thread": str(turn.thread + 1) if any(each.thread for each in trajectory.turns) else "",
        "new row": turn.fork or "",
        "condensed": _condensed(turn),
        "saw": "" if turn.context is None else ", ".join(map(_seen, turn.context)) or "nothing",
    }
    for name, value in notes.items():
        yield from _named(f"  {name}", _line(value)) if value else ()
    yield from text.message(turn.message)
    for result in turn.tool_results:
        facts = [f"exit {result.exit_code}" if result.exit_code is not None else "", result.error or ""]
        facts.append("timed out" if result.timed_out else "")
        yield f"  ← {_line(result.name)} {', '.join(filter(None, facts))}".rstrip()
        yield from text.block(result.content, "    ")
    for reply in turn.replies:
        yield from text.with_role(reply)
    parts = _at(() if rewards is None else rewards.turn_components, number)
    raw = _at(() if rewards is None else rewards.turn_raw, number)
    notes = {
        "finished": "" if turn.finish_reason in ("stop", "tool_calls") else turn.finish_reason,
        "parts": _numbers(parts),
        "raw": "" if raw == parts else _numbers(raw),
        "noted": _numbers(turn.noted),
        "weights": turn.weight_version or "",
    }
    for name, value in (*notes.items(), *_credit(entry)):
        yield from _named(f"  {name}", _line(value)) if value else ()
    for role, calls in _second_models(trajectory, lambda call: call.turn == turn.index):
        yield from text.asked(role, calls)


def _end_lines(trajectory: Trajectory, text: _Text) -> Iterator[str]:
    end = f": {_line(trajectory.ended_by)}" if trajectory.ended_by else ""
    rest = f" · {trajectory.stop_reason.value}{end} · score {_number(trajectory.score)}"
    yield _heading(f"sibling {trajectory.sibling}", rest)
    rewards = trajectory.rewards
    outcome = _NOTHING if rewards is None else rewards.outcome_parts
    for name, values in {"outcome": outcome, "metrics": trajectory.metrics}.items():
        yield from _named(f"  {name}", _numbers(values)) if values else ()
    if (agent := trajectory.agent) is not None:
        ended = "" if agent.exit_code is None else f"exit {agent.exit_code}"
        facts = filter(None, (f"{agent.wall_s:.1f} s", ended, _numbers(agent.counts)))
        yield from _named("  agent", _line(", ".join(facts)))
        for said in filter(None, (agent.error, agent.output)):
            yield from text.block(said, "    ")
    indices = {turn.index for turn in trajectory.turns}
    for role, calls in _second_models(trajectory, lambda call: call.turn not in indices):
        yield from text.asked(role, calls)


def _at(parts: Sequence[Mapping[str, float]], number: int) -> Mapping[str, float]:
    return parts[number] if parts else _NOTHING


def _second_models(
    trajectory: Trajectory, wanted: Callable[[JudgeCall], bool]
) -> Iterator[tuple[str, list[JudgeCall]]]:
    yield "judge", list(filter(wanted, trajectory.judge_calls))
    yield "user", list(filter(wanted, trajectory.user_calls))
    yield "summariser", list(filter(wanted, trajectory.summariser_calls))
    yield "other", list(filter(wanted, trajectory.other_calls))


def _condensed(turn: Turn) -> str:
    if turn.condensed is None:
        return ""
    about = "about " if turn.condensed.is_estimate else ""
    return (
        f"{turn.condensed.cause}: {about}{turn.condensed.tokens_before:,} → "
        f"{turn.condensed.tokens_after:,} tokens"
    )


def _seen(part: Kept | Message) -> str:
    return f"messages {part.start + 1} to {part.end}" if isinstance(part, Kept) else part.content


def _credit(entry: TurnLedger) -> Iterator[tuple[str, str]]:
    """Names and texts: the sum, whom a turn was compared with, and what the numbers do not show."""
    reward = "not scored" if entry.reward is None else f"reward {_precise(entry.reward)}"
    follows = "" if entry.follows is None else f" {_added(entry.follows)} what follows"
    compared = f" → {' + '.join(map(_term, entry.terms))}" if entry.terms else ""
    tokens = f"{entry.tokens:,} trained token{'s' * (entry.tokens != 1)}"
    yield "credit", f"{reward}{follows}{compared} → advantage {_signed(entry.advantage)} → {tokens}"
    for term in entry.terms:
        if term.peers:
            name = f"{term.name}: " if len(entry.terms) > 1 else ""
            yield "compared", name + _peers(term)
    for note in entry.notes:
        yield "note", note


def _term(term: LedgerTerm) -> str:
    text = f"{term.name} {_precise(term.value)}"
    if term.baseline is not None:
        sign, baseline = ("+", -term.baseline) if term.baseline < 0 else ("-", term.baseline)
        text += f" {sign} {_precise(baseline)} baseline"
    if term.divisor is not None or term.weight != 1:
        text = f"({text})"
    if term.divisor is not None:
        text += f" / {_precise(term.divisor)}"
    return text if term.weight == 1 else f"{_precise(term.weight)} * {text}"


def _peers(term: LedgerTerm) -> str:
    turns = ["" if each.turn is None else f" turn {each.turn + 1}" for each in term.peers]
    values = [
        f"sibling {each.sibling}{turn}: {_precise(each.value)}"
        for each, turn in zip(term.peers, turns, strict=True)
    ]
    peers = values[:_NAMED_PEERS]
    more = term.peer_count - len(peers)
    spread = "" if term.spread is None else f"; spread {_number(term.spread)}"
    whole = "; its own is in the baseline" if term.whole_group else ""
    return ", ".join(peers) + (f" and {more} more" if more > 0 else "") + spread + whole


def _heading(name: str, rest: str = "") -> str:
    return click.style(name, bold=True) + rest


def _named(name: str, text: str, width: int = 11) -> Iterator[str]:
    """A name, and a text that stays in its column."""
    for number, line in enumerate(_plain(text).split("\n")):
        yield f"{'' if number else name:<{width}}  {line}".rstrip()


def _plain(text: str) -> str:
    """The text, where what would not be seen is written as in Python, such as an escape; lines stay lines."""
    text = text.replace("\r\n", "\n").expandtabs(4)
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(
        each.encode("unicode_escape").decode()
        if each != "\n" and unicodedata.category(each) in _UNSEEN
        else each
        for each in text
    )


def _line(text: str) -> str:
    return " ".join(_plain(text).split())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value + 0.0:.4g}"


def _precise(value: float) -> str:
    """A number of a sum, whose parts may nearly cancel out."""
    return f"{value + 0.0:.6g}"


def _signed(value: float) -> str:
    return f"{value:+.4g}" if value else "0"


def _added(value: float) -> str:
    return f"- {_precise(-value)}" if value < 0 else f"+ {_precise(value)}"


def _numbers(named: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in named.items())


def _counts(counter: Mapping[str, int]) -> str:
    return ", ".join(f"{_line(name)} {count}" for name, count in counter.items())


def _colour(value: float) -> str | None:
    return "green" if value > 0 else "red" if value < 0 else None
