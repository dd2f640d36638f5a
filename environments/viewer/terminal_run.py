"""A run in a terminal: its groups, what they come to, and the health of their credit by turn index."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from environments.record.summary import weights_text
from environments.viewer.page_values import GroupEntry, RunIndex
from environments.viewer.terminal_text import in_line, number, numbers

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
    yield Text(in_line(index["title"]), style="bold")
    for name in ("env", "policy", "estimator"):
        yield _named(name, in_line(index[name]))
    yield Text()
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
        status = Text(group["status"], style=_STATUS.get(group["status"], ""))
        if group["reason"]:
            status.append(f": {in_line(group['reason'])}", style="default")
        made.add_row(
            Text(in_line(group["item"])),
            str(group["epoch"]),
            status,
            " ".join(number(each["score"]) for each in rollouts),
            " ".join(str(each["turns"]["kind"].count("a")) for each in rollouts),
            Text(_counts(stops)),
            Text(_counts(Counter(each["error_class"] for each in group["failures"]))),
        )
    return made


def _stop(stop: str, end: str | None) -> str:
    return stop if end is None else f"{stop}: {in_line(end)}"


def _counts(counter: Mapping[str, int]) -> str:
    return ", ".join(
        f"{in_line(name)} {count}" if count > 1 else in_line(name) for name, count in counter.items()
    )


def _named(name: str, text: str) -> Text:
    return Text(f"{name:<14}", style="bold").append(text, style="not bold")


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
    yield Text()
    for name, text in rows.items():
        if text:
            yield _named(name, text)


def _health(by_turn: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Whom turns of each index were compared with, and what that left to learn from."""
    if not by_turn:
        return
    yield Text()
    made = table(*_HEALTH.values(), right=tuple(_HEALTH.values()))
    made.padding = 0  # so that it fits into 80 columns
    for each in by_turn[:_MOST_INDICES]:
        made.add_row(*(_cell(each[name], name) for name in _HEALTH))
    yield made
    if by_turn[_MOST_INDICES:]:
        yield Text(f"and {len(by_turn) - _MOST_INDICES} later turns", style="dim")


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
