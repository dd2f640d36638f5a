"""Two runs or evaluations compared: items paired by id and content, differences with their intervals."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from rich.console import Console

from environments.policy.inference.http_client import one_line
from environments.record.recorder import Record, read_contents
from environments.record.summary import flat
from environments.record.totals import Summary
from environments.run.evaluation import RESAMPLES, ItemTotals, estimated, mean_of
from environments.run.run_log import counted_groups
from environments.trajectory import CreditedGroup, Trajectory
from tools.errors import RecordError

MOST_K = 16
"""The largest k of pass@k that is compared."""
SHOWN_ITEMS = 20
_COMPARED = re.compile(
    r"turns/mean|turn/\d+/reward|tool_calls|(part|metric|stop_reason|failure|tool_error|tokens|cost)/.*"
)

ItemKey = tuple[str, str | None]
"""Id and content (`item_hash`) of an item; `None`: the record does not have its content."""
Measure = Callable[[ItemTotals], float | None]
Row = tuple[str, str, str, str]


@dataclass(slots=True, kw_only=True)
class Side:
    """A record as far as it is compared; it grows with its items, not with its rollouts."""

    place: str
    record: Record
    envs: set[str] = field(default_factory=set[str])
    policies: set[str] = field(default_factory=set[str])
    evaluations: int = 0
    """Groups that an evaluation rolled out."""
    items: dict[ItemKey, ItemTotals] = field(default_factory=dict[ItemKey, ItemTotals])
    summary: Summary = field(default_factory=Summary)
    pass_score: float | None = None
    by_pass_score: int = 0
    """Rollouts without a verdict of their own, judged by `pass_score`."""

    def add(self, credited: CreditedGroup) -> None:
        """Take one more group in."""
        group = credited.group
        self.envs.add(group.env)
        self.policies.add(credited.policy)
        self.evaluations += group.is_evaluation
        self.summary.add(credited)
        totals = self.items.setdefault((group.item_id, group.item_hash), ItemTotals())
        totals.lost += len(group.failures)
        for trajectory in group.trajectories:
            totals.add(trajectory, self._verdict(trajectory))

    def values(self) -> dict[str, Any]:
        """As JSON: who played, and the aggregates of all groups."""
        totals = self.items.values()
        return {
            "place": self.place,
            "record": str(self.record),
            "env": sorted(self.envs),
            "policy": sorted(self.policies),
            "evaluation": self.evaluations > 0,
            "items": len(self.items),
            "rollouts": sum(each.rollouts for each in totals),
            "lost_rollouts": sum(each.lost for each in totals),
            "lost_items": sum(not each.rollouts for each in totals),
            "passed_by_pass_score": self.by_pass_score,
            "aggregates": self.summary.values(),
        }

    def _verdict(self, trajectory: Trajectory) -> bool | None:
        if trajectory.passed is not None or self.pass_score is None:
            return trajectory.passed
        self.by_pass_score += 1
        outcome = None if trajectory.rewards is None else trajectory.rewards.outcome
        reached = trajectory.score if outcome is None else outcome
        return reached is not None and reached >= self.pass_score


def read_side(place: str, record: Record, *, pass_score: float | None = None) -> Side:
    """Reads a record once; `place` is what the user calls it.

    `pass_score` is the outcome, or score where there is none, from which a rollout without a verdict has
    passed. Raises RecordError if it is unreadable, malformed or empty.
    """
    if pass_score is not None and not math.isfinite(pass_score):
        raise RecordError(f"--pass-score {pass_score} is no finite number")
    side = Side(place=place, record=record, pass_score=pass_score)
    # Of an index where there is one: a group that failed and was done again counts once.
    for credited in counted_groups(record, read_contents(record).finished):
        side.add(credited)
    if not side.items:
        raise RecordError(f"{record} holds no group, so there is nothing to compare")
    return side


def compared(a: Side, b: Side, *, seed: int = 0, all_items: bool = False) -> dict[str, Any]:
    """Returns the comparison as JSON values: exact numbers, and `None` where one is unknown.

    Means of a side are over all its items, each of which counts once however many rollouts it has. A
    difference is B minus A over the pairs alone; its 95 % interval is the percentile bootstrap over pairs, so
    that what is hard about an item is hard on both sides (Efron & Tibshirani 1993). The same seed gives the
    same intervals. `all_items` lists every pair; else only flips are.
    """
    # In the order of their ids, never by position.
    keys = sorted(key for key in a.items.keys() & b.items.keys() if key[1] is not None)
    pairs = [_pair_values(key, a.items[key], b.items[key]) for key in keys]

    def measured(measure: Measure) -> dict[str, Any]:
        both = [(measure(a.items[key]), measure(b.items[key])) for key in keys]
        values = {
            "a": [measure(item) for item in a.items.values()],
            "b": [measure(item) for item in b.items.values()],
            "difference": [None if one is None or other is None else other - one for one, other in both],
        }
        return {name: asdict(estimated(each, seed)) for name, each in values.items()}

    most = [max((item.judged for item in side.items.values()), default=0) for side in (a, b)]
    # Where one side has no verdicts, the other is shown all the same.
    largest_k = min(MOST_K, min(most) or max(most))
    pass_at: dict[str, Any] = {}
    for k in range(1, largest_k + 1):
        at_least = [mean_of([item.pass_at_least(k) for item in side.items.values()]) for side in (a, b)]
        bounds = dict(zip(("a_at_least", "b_at_least"), at_least, strict=True))
        pass_at[str(k)] = measured(partial(ItemTotals.pass_at, k=k)) | bounds
    numbers: dict[str, Any] = {
        "a": a.values(),
        "b": b.values(),
        "seed": seed,
        "resamples": RESAMPLES,
        "items": {"paired": len(pairs), **_unpaired(a, b)},
        "score": measured(lambda item: item.mean_score),
        "pass_at": pass_at,
        "flips": [pair for pair in pairs if pair["flip"] is not None],
    }
    return numbers | ({"pairs": pairs} if all_items else {})


def _pair_values(key: ItemKey, before: ItemTotals, after: ItemTotals) -> dict[str, Any]:
    """One item that both sides have; a flip passes by at least half of its rollouts on one side alone."""
    a, b = before.pass_at(1), after.pass_at(1)
    is_flip = a is not None and b is not None and (a >= 0.5) != (b >= 0.5)
    return {
        "item_id": key[0],
        "item_hash": key[1],
        **{
            side: {
                "rollouts": item.rollouts,
                "lost": item.lost,
                "score": item.mean_score,
                "passed": item.passed if item.judged else None,
                "judged": item.judged,
            }
            for side, item in (("a", before), ("b", after))
        },
        "flip": ("lost" if a is not None and a >= 0.5 else "gained") if is_flip else None,
    }


def _unpaired(a: Side, b: Side) -> dict[str, list[str]]:
    """The items that cannot be compared, by why not."""
    hashes: list[dict[str, set[str | None]]] = [defaultdict(set), defaultdict(set)]
    for side, of_side in zip((a, b), hashes, strict=True):
        for identity, content in side.items:
            of_side[identity].add(content)
    of_a, of_b = hashes
    common = [each for each in sorted(of_a.keys() & of_b.keys()) if not (of_a[each] & of_b[each]) - {None}]
    unknown = [each for each in common if None in of_a[each] | of_b[each]]
    return {
        "changed": [each for each in common if each not in unknown],
        "unknown": unknown,
        "only_a": sorted(of_a.keys() - of_b.keys()),
        "only_b": sorted(of_b.keys() - of_a.keys()),
    }


def print_comparison(console: Console, numbers: Mapping[str, Any]) -> None:
    """Shows what `compared` gave."""
    rows = [("", "A", "B", "B - A"), *_rows(numbers)]
    widths = [max(len(row[index]) for row in rows) for index in range(4)]
    texts = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    for line in (*texts, *_notes(numbers)):
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
    before, after = flat(a["aggregates"]), flat(b["aggregates"])
    for name in dict.fromkeys((*before, *after)):
        one, other = before.get(name), after.get(name)
        if _COMPARED.fullmatch(name) and (one or other):
            moved = "" if one is None or other is None else f"{other - one:+,.4g}"
            yield one_line(name.replace("_", " ")), _number(one), _number(other), moved


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
            if of_kind[SHOWN_ITEMS:]:
                yield f"  and {len(of_kind) - SHOWN_ITEMS} more (--json has all)"
    if "pairs" in numbers:
        yield "all pairs:"
        yield from map(_item_line, numbers["pairs"])


def _item_line(pair: Mapping[str, Any]) -> str:
    sides = [
        f"{_number(side['score'])}"
        + (f" ({side['passed']} of {side['judged']} passed)" if side["judged"] else "")
        for side in (pair["a"], pair["b"])
    ]
    return f"  {one_line(pair['item_id'])}: {sides[0]} -> {sides[1]}"


def _estimates(name: str, of: Mapping[str, Any]) -> Row:
    return name, _estimate(of["a"]), _estimate(of["b"]), _estimate(of["difference"], sign="+")


def _estimate(of: Mapping[str, Any], *, sign: str = "") -> str:
    if of["mean"] is None:
        return "-"
    interval = "" if of["low"] is None else f" [{of['low']:{sign}.3f}, {of['high']:{sign}.3f}]"
    return f"{of['mean']:{sign}.3f}{interval}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value.is_integer() and abs(value) >= 10 else f"{value:,.3f}"


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - SHOWN_ITEMS} more" if names[SHOWN_ITEMS:] else ""
    return ", ".join(map(one_line, names[:SHOWN_ITEMS])) + more


def _text(value: str | Sequence[str]) -> str:
    return one_line(value if isinstance(value, str) else ", ".join(value))
