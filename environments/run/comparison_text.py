"""A comparison as text for people: a table of both sides, then the items that flipped and those left out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from environments.record.totals import TEXT_CHARS

SHOWN_ITEMS = 20
SHOWN_TURNS = 12
Row = tuple[str, str, str, str]


def print_comparison(console: Console, numbers: Mapping[str, Any]) -> None:
    """Show what `compared` gave."""
    rows = [("", "A", "B", "B - A"), *_rows(numbers)]
    widths = [max(len(row[index]) for row in rows) for index in range(4)]
    for row in rows:
        line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)
    for line in _notes(numbers):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _rows(numbers: Mapping[str, Any]) -> Iterator[Row]:
    a, b = numbers["a"], numbers["b"]
    for name in ("place", "policy"):
        yield name, _text(a[name]), _text(b[name]), ""
    for name in ("items", "rollouts", "lost_rollouts"):
        yield name.replace("_", " "), f"{a[name]:,}", f"{b[name]:,}", ""
    yield _estimates("score", numbers["score"])
    for k, estimate in numbers["pass_at"].items():
        yield _estimates(f"pass@{k}", estimate)
        if a["lost_rollouts"] or b["lost_rollouts"]:
            yield "  lost as failed", _number(estimate["a_at_least"]), _number(estimate["b_at_least"]), ""
    yield from _aggregated(a["aggregates"], b["aggregates"])


def _aggregated(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Row]:
    yield _means("turns", a["turns"], b["turns"])
    by_turn = [{each["turn"]: each["reward"] for each in side["by_turn"]} for side in (a, b)]
    for turn in sorted({*by_turn[0], *by_turn[1]})[:SHOWN_TURNS]:
        row = _means(f"reward of turn {turn + 1}", *(side.get(turn, {}) for side in by_turn))
        if row[1:3] != ("-", "-"):
            yield row
    for kind, name in (("parts", "part"), ("metrics", "metric")):
        for each in sorted({*a[kind], *b[kind]}):
            yield _means(f"{name} {each}", a[kind].get(each, {}), b[kind].get(each, {}))
    for kind, name in (("stop_reasons", "stop"), ("failure_classes", "lost by")):
        for each in sorted({*a[kind], *b[kind]}):
            yield _counts(f"{name}: {each}", a[kind].get(each, 0), b[kind].get(each, 0))
    yield _counts("tool calls", a["tools"]["calls"], b["tools"]["calls"])
    for each in sorted({*a["tools"]["errors"], *b["tools"]["errors"]}):
        yield _counts(f"tool error: {each}", *(side["tools"]["errors"].get(each, 0) for side in (a, b)))
    for kind in ("tokens", "cost"):
        yield from _spent(kind, dict(_leaves("", a[kind])), dict(_leaves("", b[kind])))


def _spent(kind: str, a: Mapping[str, float], b: Mapping[str, float]) -> Iterator[Row]:
    """What at least one side has any of."""
    for each in [*a, *(name for name in b if name not in a)]:
        if a.get(each) or b.get(each):
            yield _counts(f"{kind}: {each}", a.get(each, 0), b.get(each, 0))


def _notes(numbers: Mapping[str, Any]) -> Iterator[str]:
    items = numbers["items"]
    yield ""
    yield (
        f"{items['paired']} items are paired, by id and content. B - A is over these, means of a "
        f"side over all its items. 95 % intervals are bootstraps over items, {numbers['resamples']} "
        f"resamples, seed {numbers['seed']}."
    )
    if numbers["a"]["env"] != numbers["b"]["env"]:
        yield f"A is of {_text(numbers['a']['env'])}, B of {_text(numbers['b']['env'])}."
    if not numbers["pass_at"]:
        yield "Neither side says what passed: --pass-score N judges by outcome, or score where there is none."
    for name, why in (
        ("changed", "have another content on the other side, and are not paired"),
        ("unknown", "are of a record that does not say their content, and are not paired"),
        ("only_a", "are in A alone"),
        ("only_b", "are in B alone"),
    ):
        if items[name]:
            yield f"{len(items[name])} items {why}: {_some(items[name])}"
    flips = numbers["flips"]
    for kind, what in (("gained", "pass in B and not in A"), ("lost", "pass in A and not in B")):
        of_kind = [each for each in flips if each["flip"] == kind]
        if of_kind:
            yield f"{len(of_kind)} items {what}, by at least half of their rollouts:"
            yield from map(_item_line, of_kind[:SHOWN_ITEMS])
            yield from _more(of_kind)
    if "pairs" in numbers:
        yield "all pairs:"
        yield from map(_item_line, numbers["pairs"])


def _item_line(pair: Mapping[str, Any]) -> str:
    sides = [
        f"{_number(side['score'])}"
        + (f" ({side['passed']} of {side['judged']} passed)" if side["judged"] else "")
        for side in (pair["a"], pair["b"])
    ]
    return f"  {_shown(pair['item_id'])}: {sides[0]} -> {sides[1]}"


def _more(listed: Sequence[Any]) -> Iterator[str]:
    if listed[SHOWN_ITEMS:]:
        yield f"  and {len(listed) - SHOWN_ITEMS} more (--json has all)"


def _estimates(name: str, of: Mapping[str, Any]) -> Row:
    return name, _estimate(of["a"]), _estimate(of["b"]), _estimate(of["difference"], signed=True)


def _estimate(of: Mapping[str, Any], *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    if of["mean"] is None:
        return "-"
    if of["low"] is None:
        return f"{of['mean']:{sign}.3f}"
    return f"{of['mean']:{sign}.3f} [{of['low']:{sign}.3f}, {of['high']:{sign}.3f}]"


def _means(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Row:
    before, after = a.get("mean"), b.get("mean")
    moved = "" if before is None or after is None else f"{after - before:+.3f}"
    return _shown(name), _number(before), _number(after), moved


def _counts(name: str, a: float, b: float) -> Row:
    if isinstance(a, int) and isinstance(b, int):
        return _shown(name), f"{a:,}", f"{b:,}", f"{b - a:+,}"
    return _shown(name), f"{a:,.3g}", f"{b:,.3g}", f"{b - a:+,.3g}"


def _leaves(path: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(f"{path}{name} ", value)  # pyright: ignore[reportUnknownArgumentType]  # JSON
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{path}{name}".replace("_", " "), value


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - SHOWN_ITEMS} more" if names[SHOWN_ITEMS:] else ""
    return ", ".join(map(_shown, names[:SHOWN_ITEMS])) + more


def _text(value: object) -> str:
    return _shown(", ".join(map(str, value)) if isinstance(value, list) else str(value))  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]  # JSON


def _shown(text: str) -> str:
    """Text of a record, as a terminal may have it."""
    plain = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return plain if len(plain) <= TEXT_CHARS else f"{plain[: TEXT_CHARS - 1]}…"
