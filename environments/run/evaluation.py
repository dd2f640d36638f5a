"""Statistics of rollouts by item (score, pass@k, turns by outcome), and comparison of two records."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console

from environments.record.recorder import Record, read_contents
from environments.record.summary import flat, print_rows
from environments.record.totals import Summary, sum_parts
from environments.run.run_list import unique_groups
from environments.trajectory import CreditedGroup, Trajectory, TrajectoryGroup
from tools.errors import RecordError
from tools.plain_text import decimals, one_line

RESAMPLES = 2000


@dataclass(slots=True, kw_only=True)
class ItemTotals:
    rollouts: int = 0
    lost: int = 0
    """Failed rollouts, which count neither as passed nor as not passed."""
    scored: int = 0
    score_total: float = 0.0
    judged: int = 0
    passed: int = 0
    turns: int = 0
    turns_passed: int = 0

    def add(self, trajectory: Trajectory, passed: bool | None) -> None:
        self.rollouts += 1
        if trajectory.score is not None:
            self.scored += 1
            self.score_total += trajectory.score
        self.judged += passed is not None
        self.passed += bool(passed)
        self.turns += len(trajectory.acts)
        self.turns_passed += len(trajectory.acts) if passed else 0

    @property
    def mean_score(self) -> float | None:
        return self.score_total / self.scored if self.scored else None

    def pass_at(self, k: int) -> float | None:
        return pass_at_k(self.judged, self.passed, k) if self.judged >= k else None

    def pass_at_least(self, k: int) -> float | None:
        """Return pass@k with lost rollouts as not passed: a lower bound."""
        tries = self.judged + self.lost
        return pass_at_k(tries, self.passed, k) if tries >= k else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    mean: float | None
    low: float | None
    """`None` with fewer than two items."""
    high: float | None
    items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    score: Estimate
    pass_at: tuple[Estimate, ...]
    """`pass_at[k - 1]` is pass@k over the items with at least k rollouts."""
    pass_at_least: tuple[float, ...]
    """Lower bounds: pass@k over all tried items, with lost rollouts as not passed."""
    turns_passed: float | None
    turns_not_passed: float | None
    items: int
    rollouts: int
    passed: int
    dropped: int
    lost_items: int
    planned: int
    tried: int

    @property
    def complete(self) -> bool:
        return self.tried == self.planned

    def completeness(self) -> dict[str, int | bool]:
        lost = {"lost_items": self.lost_items, "lost_rollouts": self.dropped}
        return {"planned": self.planned, "tried": self.tried, "complete": self.complete, **lost}

    def metrics(self) -> dict[str, float]:
        estimates = {"mean_score": self.score}
        estimates |= {f"pass@{k}": estimate for k, estimate in enumerate(self.pass_at, start=1)}
        numbers: dict[str, float | None] = {}
        for name, estimate in estimates.items():
            numbers |= {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        for k, least in enumerate(self.pass_at_least, start=1):
            numbers[f"pass@{k}_at_least"] = least
        counted = ("turns_passed", "turns_not_passed", "items", "rollouts", "passed", "lost_items")
        numbers |= {name: getattr(self, name) for name in counted}
        numbers["dropped_rollouts"] = self.dropped
        numbers |= {"planned_items": self.planned, "tried_items": self.tried}
        return {f"eval/{name}": value for name, value in numbers.items() if value is not None}


def item_totals(group: TrajectoryGroup) -> ItemTotals:
    """Return the totals of an evaluated item; a rollout without a verdict has not passed."""
    totals = ItemTotals(lost=len(group.failures))
    for trajectory in group.trajectories:
        totals.add(trajectory, bool(trajectory.passed))
    return totals


def pass_at_k(rollouts: int, passed: int, k: int) -> float:
    """Return an unbiased estimate of the chance that one of `k` rollouts passes; `rollouts` ≥ k.

    The estimator 1 - C(n - c, k) / C(n, k) of Chen et al., "Evaluating Large Language Models Trained on Code"
    (2021), equation 1.
    """
    if not 1 <= k <= rollouts:
        raise ValueError(f"k must be between 1 and the {rollouts} rollouts, got {k}")
    return 1.0 - math.comb(rollouts - passed, k) / math.comb(rollouts, k)


def evaluate_results(
    results: Sequence[ItemTotals], *, max_k: int, seed: int = 0, planned: int | None = None
) -> Evaluation | None:
    """Return the statistics of an evaluation, or None without rollouts.

    Intervals are percentile bootstraps over items, since rollouts of one item are correlated. The same seed
    gives the same intervals.
    """
    counted = [each for each in results if each.rollouts]
    if not counted:
        return None
    ks = range(1, min(max_k, max(each.judged for each in counted)) + 1)
    rollouts, passed = sum(each.rollouts for each in counted), sum(each.passed for each in counted)
    turns, turns_passed = sum(each.turns for each in counted), sum(each.turns_passed for each in counted)
    return Evaluation(
        score=estimate_mean([each.mean_score for each in counted], seed),
        pass_at=tuple(estimate_mean([each.pass_at(k) for each in counted], seed) for k in ks),
        pass_at_least=tuple(mean_of([each.pass_at_least(k) for each in results]) or 0.0 for k in ks),
        turns_passed=turns_passed / passed if passed else None,
        turns_not_passed=(turns - turns_passed) / (rollouts - passed) if rollouts > passed else None,
        items=len(counted),
        rollouts=rollouts,
        passed=passed,
        dropped=sum(each.lost for each in results),
        lost_items=len(results) - len(counted),
        planned=len(results) if planned is None else planned,
        tried=len(results),
    )


def estimate_mean(values: Sequence[float | None], seed: int) -> Estimate:
    """Return the mean with its 95 % percentile bootstrap (Efron & Tibshirani 1993), ignoring None."""
    sample = np.asarray([value for value in values if value is not None], dtype=np.float64)
    low = high = None
    if len(sample) > 1:
        rng = np.random.default_rng(seed)
        # One resample at a time saves RESAMPLES times the memory.
        means = [float(sample[rng.integers(len(sample), size=len(sample))].mean()) for _ in range(RESAMPLES)]
        low, high = map(float, np.percentile(means, (2.5, 97.5)))
    return Estimate(mean=mean_of(values), low=low, high=high, items=len(sample))


def mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def sample_row(trajectory: Trajectory) -> dict[str, Any]:
    rewards = trajectory.rewards
    return {
        "item_id": trajectory.item_id,
        "sibling": trajectory.sibling,
        "messages": [message.to_openai() for message in trajectory.messages],
        "score": trajectory.score,
        "passed": bool(trajectory.passed),
        "turns": len(trajectory.acts),
        "summaries": len(trajectory.turns) - len(trajectory.acts),
        "turn_rewards": None if trajectory.act_rewards is None else list(trajectory.act_rewards),
        "outcome": None if rewards is None else rewards.outcome,
        "parts": {} if rewards is None else sum_parts(rewards),
        "stop_reason": trajectory.stop_reason.value,
        "end_reason": trajectory.end_reason,
        "agent_caused": None if trajectory.agent_caused is None else trajectory.agent_caused.error,
        "metrics": dict(trajectory.metrics),
    }


def print_evaluation(console: Console, evaluation: Evaluation) -> None:
    items = f"{evaluation.tried} of {evaluation.planned} tried"
    if not evaluation.complete:
        items += "; INCOMPLETE: the numbers below speak only of these"
    if evaluation.lost_items:
        items += f"; {evaluation.lost_items} lost, of which no rollout is left: they are in no number below"
    rows = [("items", items), ("mean score", _interval_text(evaluation.score))]
    for k, least in enumerate(evaluation.pass_at_least, start=1):
        lost = f"; at least {least:.3f}, with lost rollouts as not passed" if evaluation.dropped else ""
        rows.append((f"pass@{k}", _interval_text(evaluation.pass_at[k - 1]) + lost))
    for name, turns, count in (
        ("passed", evaluation.turns_passed, evaluation.passed),
        ("not passed", evaluation.turns_not_passed, evaluation.rollouts - evaluation.passed),
    ):
        average = "" if turns is None else f", {turns:.2f} turns on average"
        rows.append((name, f"{count} of {evaluation.rollouts} rollouts{average}"))
    rows.append(("dropped", f"{evaluation.dropped} rollouts"))
    print_rows(console, rows)


def _interval_text(estimate: Estimate) -> str:
    if estimate.mean is None:
        return "nothing was scored"
    interval = (
        ""
        if estimate.low is None
        else f"  95 % interval {decimals(estimate.low)} to {decimals(estimate.high)}"
    )
    return f"{decimals(estimate.mean)}{interval}  ({estimate.items} items)"


MOST_K = 16
SHOWN_ITEMS = 20
_COMPARED = re.compile(
    r"turns/mean|turn/\d+/reward|tool_calls|(part|metric|stop_reason|failure|tool_error|tokens|cost)/.*"
)

ItemKey = tuple[str, str | None]
"""Id and content hash of an item; `None` if the record lacks the content."""
Measure = Callable[[ItemTotals], float | None]
Row = tuple[str, str, str, str]


@dataclass(slots=True, kw_only=True)
class Side:
    place: str
    record: Record
    envs: set[str] = field(default_factory=set[str])
    policies: set[str] = field(default_factory=set[str])
    evaluations: int = 0
    items: dict[ItemKey, ItemTotals] = field(default_factory=dict[ItemKey, ItemTotals])
    summary: Summary = field(default_factory=Summary)
    pass_score: float | None = None
    by_pass_score: int = 0

    def add(self, credited: CreditedGroup) -> None:
        group = credited.group
        self.envs.add(group.env)
        self.policies.add(credited.policy)
        self.evaluations += group.is_evaluation
        self.summary.add(credited)
        totals = self.items.setdefault((group.item_id, group.item_hash), ItemTotals())
        totals.lost += len(group.failures)
        for trajectory in group.trajectories:
            passed = trajectory.passed
            if passed is None and self.pass_score is not None:
                self.by_pass_score += 1
                outcome = None if trajectory.rewards is None else trajectory.rewards.outcome
                reached = trajectory.score if outcome is None else outcome
                passed = reached is not None and reached >= self.pass_score
            totals.add(trajectory, passed)

    def values(self) -> dict[str, Any]:
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


def read_side(place: str, record: Record, *, pass_score: float | None = None) -> Side:
    """Read a record once; `place` is the user's name for it.

    A rollout without a verdict passes if its outcome, or else its score, reaches `pass_score`. Raises
    RecordError if the record is unreadable, malformed or empty.
    """
    if pass_score is not None and not math.isfinite(pass_score):
        raise RecordError(f"--pass-score {pass_score} is not a finite number")
    side = Side(place=place, record=record, pass_score=pass_score)
    for credited in unique_groups(record, read_contents(record).finished):
        side.add(credited)
    if not side.items:
        raise RecordError(f"{record} holds no group, so there is nothing to compare")
    return side


def compare_sides(a: Side, b: Side, *, seed: int = 0, all_items: bool = False) -> dict[str, Any]:
    """Return the comparison as JSON values, with None for unknown numbers.

    Means of a side weigh all its items equally. A difference is B minus A over paired items; its 95 %
    interval is the percentile bootstrap over pairs, so that an item's difficulty cancels. `all_items` lists
    every pair instead of flips only.
    """
    keys = sorted(key for key in a.items.keys() & b.items.keys() if key[1] is not None)
    pairs = [_pair_values(key, a.items[key], b.items[key]) for key in keys]

    def measure_both(measure: Measure) -> dict[str, Any]:
        both = [(measure(a.items[key]), measure(b.items[key])) for key in keys]
        values = {
            "a": [measure(item) for item in a.items.values()],
            "b": [measure(item) for item in b.items.values()],
            "difference": [None if one is None or other is None else other - one for one, other in both],
        }
        return {name: asdict(estimate_mean(each, seed)) for name, each in values.items()}

    most = [max((item.judged for item in side.items.values()), default=0) for side in (a, b)]
    # If one side has no verdicts, show the other.
    largest_k = min(MOST_K, min(most) or max(most))
    pass_at: dict[str, Any] = {}
    for k in range(1, largest_k + 1):
        at_least = [mean_of([item.pass_at_least(k) for item in side.items.values()]) for side in (a, b)]
        bounds = dict(zip(("a_at_least", "b_at_least"), at_least, strict=True))
        pass_at[str(k)] = measure_both(partial(ItemTotals.pass_at, k=k)) | bounds
    numbers: dict[str, Any] = {
        "a": a.values(),
        "b": b.values(),
        "seed": seed,
        "resamples": RESAMPLES,
        "items": {"paired": len(pairs), **_list_unpaired(a, b)},
        "score": measure_both(lambda item: item.mean_score),
        "pass_at": pass_at,
        "flips": [pair for pair in pairs if pair["flip"] is not None],
    }
    return numbers | ({"pairs": pairs} if all_items else {})


def _pair_values(key: ItemKey, before: ItemTotals, after: ItemTotals) -> dict[str, Any]:
    """Return one paired item; in a flip, only one side passes at least half of its rollouts."""
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


def _list_unpaired(a: Side, b: Side) -> dict[str, list[str]]:
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
            more = f", and {len(items[name]) - SHOWN_ITEMS} more" if items[name][SHOWN_ITEMS:] else ""
            shown = ", ".join(map(one_line, items[name][:SHOWN_ITEMS]))
            yield f"{len(items[name])} items {why}: {shown}{more}"
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
    interval = "" if of["low"] is None else f" [{decimals(of['low'], sign)}, {decimals(of['high'], sign)}]"
    return f"{decimals(of['mean'], sign)}{interval}"


def _number(value: float | None) -> str:
    is_count = value is not None and value.is_integer() and 10 <= abs(value) < 1e15
    return f"{value:,.0f}" if is_count else decimals(value, ",")


def _text(value: str | Sequence[str]) -> str:
    return one_line(value if isinstance(value, str) else ", ".join(value))
