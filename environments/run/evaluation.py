"""The statistics of an evaluation: mean score, pass@k and turns by outcome, with 95 % intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from environments.record.summary import print_rows
from environments.record.totals import summed_parts
from environments.trajectory import Trajectory, TrajectoryGroup

RESAMPLES = 2000


@dataclass(slots=True, kw_only=True)
class ItemTotals:
    """The rollouts of one item that did not break; only sums are kept."""

    rollouts: int = 0
    lost: int = 0
    """Rollouts that broke: they count neither as passed nor as not passed."""
    scored: int = 0
    score_total: float = 0.0
    judged: int = 0
    """Rollouts of which it is known whether they passed."""
    passed: int = 0
    turns: int = 0
    turns_passed: int = 0
    """Of the rollouts that passed."""

    def add(self, trajectory: Trajectory, passed: bool | None) -> None:
        """Add one more rollout and its verdict, where there is one."""
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
        """Of the rollouts that were scored; `None` when none was."""
        return self.score_total / self.scored if self.scored else None

    def pass_at(self, k: int) -> float | None:
        """pass@k; `None` with fewer than k verdicts."""
        return pass_at_k(self.judged, self.passed, k) if self.judged >= k else None

    def pass_at_least(self, k: int) -> float | None:
        """pass@k with each lost rollout as one that did not pass: a lower bound."""
        tries = self.judged + self.lost
        return pass_at_k(tries, self.passed, k) if tries >= k else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over items with its 95 % interval."""

    mean: float | None
    """`None` without a value."""
    low: float | None
    """`None` with fewer than two items: one item has no spread."""
    high: float | None
    items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The statistics over all items."""

    score: Estimate
    """Mean over items of the item's mean score."""
    pass_at: tuple[Estimate, ...]
    """`pass_at[k - 1]` is pass@k, over the items with at least k rollouts; ends where there are none."""
    pass_at_least: tuple[float, ...]
    """The same over all items that were tried, each lost rollout as one that did not pass: a lower bound."""
    turns_passed: float | None
    """Mean turns of the rollouts that passed; `None` when none did."""
    turns_not_passed: float | None
    items: int
    """Items with at least one rollout."""
    rollouts: int
    passed: int
    dropped: int
    lost_items: int
    """Items of which no rollout was left."""
    planned: int
    """Items that there were to try."""
    tried: int
    """Items that were rolled out, lost ones included."""

    @property
    def complete(self) -> bool:
        """Whether every item was tried."""
        return self.tried == self.planned

    def completeness(self) -> dict[str, int | bool]:
        """How many items the numbers cover, for files."""
        lost = {"lost_items": self.lost_items, "lost_rollouts": self.dropped}
        return {"planned": self.planned, "tried": self.tried, "complete": self.complete, **lost}

    def metrics(self) -> dict[str, float]:
        """Flat numbers, for `metrics.json`; what is unknown is left out."""
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
    """The numbers of one item's rollouts, of which each without a verdict has not passed."""
    totals = ItemTotals(lost=len(group.failures))
    for trajectory in group.trajectories:
        totals.add(trajectory, bool(trajectory.passed))
    return totals


def pass_at_k(rollouts: int, passed: int, k: int) -> float:
    """Chance that one of `k` rollouts passes, estimated without bias from `rollouts` ≥ k of them.

    The estimator 1 - C(n - c, k) / C(n, k) of Chen et al., "Evaluating Large Language Models Trained on
    Code" (2021), equation 1.
    """
    if not 1 <= k <= rollouts:
        raise ValueError(f"k must be between 1 and the {rollouts} rollouts, got {k}")
    return 1.0 - math.comb(rollouts - passed, k) / math.comb(rollouts, k)


def evaluate_results(
    results: Sequence[ItemTotals], *, max_k: int, seed: int = 0, planned: int | None = None
) -> Evaluation | None:
    """The statistics of an evaluation; `None` when no rollout is left to count.

    Intervals are percentile bootstraps over items, not over rollouts: rollouts of one item resemble each
    other. The same seed gives the same intervals.

    Args:
        results: one per item.
        max_k: rollouts that each item was given; pass@1 to pass@max_k are estimated.
        seed: of the resampling.
        planned: items that there were to try; unset: those of the results.
    """
    counted = [each for each in results if each.rollouts]
    if not counted:
        return None
    reached = min(max_k, max(each.judged for each in counted))
    rollouts, passed = sum(each.rollouts for each in counted), sum(each.passed for each in counted)
    turns, turns_passed = sum(each.turns for each in counted), sum(each.turns_passed for each in counted)
    return Evaluation(
        score=estimated([each.mean_score for each in counted], seed),
        pass_at=tuple(estimated([each.pass_at(k) for each in counted], seed) for k in range(1, reached + 1)),
        pass_at_least=tuple(
            mean_of([each.pass_at_least(k) for each in results]) or 0.0 for k in range(1, reached + 1)
        ),
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


def estimated(values: Sequence[float | None], seed: int) -> Estimate:
    """A mean with its 95 % percentile bootstrap (Efron & Tibshirani 1993); `None` is left out."""
    sample = np.asarray([value for value in values if value is not None], dtype=np.float64)
    low = high = None
    if len(sample) > 1:
        rng = np.random.default_rng(seed)
        # One resample at a time: all of them at once would need RESAMPLES times the memory of the sample.
        means = [float(sample[rng.integers(len(sample), size=len(sample))].mean()) for _ in range(RESAMPLES)]
        low, high = map(float, np.percentile(means, (2.5, 97.5)))
    return Estimate(mean=mean_of(values), low=low, high=high, items=len(sample))


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of what is known; `None` where nothing is."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def sample_row(trajectory: Trajectory) -> dict[str, Any]:
    """One rollout as a line of `samples.jsonl`: messages, score and how it went."""
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
        "parts": {} if rewards is None else summed_parts(rewards),
        "stop_reason": trajectory.stop_reason.value,
        "end_reason": trajectory.end_reason,
        "agent_caused": None if trajectory.agent_caused is None else trajectory.agent_caused.error,
        "metrics": dict(trajectory.metrics),
    }


def print_evaluation(console: Console, evaluation: Evaluation) -> None:
    """Shows the statistics."""
    items = f"{evaluation.tried} of {evaluation.planned} tried"
    if not evaluation.complete:
        items += "; INCOMPLETE: the numbers below speak only of these"
    if evaluation.lost_items:
        items += f"; {evaluation.lost_items} lost, of which no rollout is left: they are in no number below"
    rows = [("items", items), ("mean score", _shown(evaluation.score))]
    for k, least in enumerate(evaluation.pass_at_least, start=1):
        lost = f"; at least {least:.3f}, with lost rollouts as not passed" if evaluation.dropped else ""
        rows.append((f"pass@{k}", _shown(evaluation.pass_at[k - 1]) + lost))
    for name, turns, count in (
        ("passed", evaluation.turns_passed, evaluation.passed),
        ("not passed", evaluation.turns_not_passed, evaluation.rollouts - evaluation.passed),
    ):
        average = "" if turns is None else f", {turns:.2f} turns on average"
        rows.append((name, f"{count} of {evaluation.rollouts} rollouts{average}"))
    rows.append(("dropped", f"{evaluation.dropped} rollouts"))
    print_rows(console, rows)


def _shown(estimate: Estimate) -> str:
    if estimate.mean is None:
        return "nothing was scored"
    interval = "" if estimate.low is None else f"  95 % interval {estimate.low:.3f} to {estimate.high:.3f}"
    return f"{estimate.mean:.3f}{interval}  ({estimate.items} items)"
