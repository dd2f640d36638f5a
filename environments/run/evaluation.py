"""Statistics of an evaluation: mean score, pass@k and turns by outcome, with 95 % intervals."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from environments.record.summary import print_rows
from environments.record.totals import summed_parts
from environments.trajectory import Trajectory, TrajectoryGroup

RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemResult:
    """The rollouts of one evaluation item that did not break, as one number each."""

    item_id: str
    scores: tuple[float, ...]
    """Of those rollouts of which anything was scored."""
    passed: tuple[bool, ...]
    turns: tuple[int, ...]
    dropped: int = 0
    """Rollouts that broke: they count neither as passed nor as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over items with its 95 % interval."""

    value: float
    low: float | None
    """`None` with fewer than two items: one item says nothing about the spread between items."""
    high: float | None
    items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What the results of all items come to."""

    score: Estimate | None
    """Mean over items of the item's mean score; `None` when nothing was scored."""
    pass_at: tuple[Estimate, ...]
    """`pass_at[k - 1]` is pass@k, over the items with at least k rollouts; ends where there are none."""
    pass_at_least: tuple[float, ...]
    """The same over all items that were tried, each lost rollout as one that failed: a lower bound."""
    turns_passed: float | None
    """Mean turns of the rollouts that passed; `None` when none did."""
    turns_failed: float | None
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
        """How many items the numbers speak of, for files."""
        lost = {"lost_items": self.lost_items, "lost_rollouts": self.dropped}
        return {"planned": self.planned, "tried": self.tried, "complete": self.complete, **lost}

    def in_short(self) -> dict[str, Any]:
        """For `summary.json`: its score is the mean over items, too."""
        return {
            "evaluation": self.completeness(),
            "pass@1": self.pass_at[0].value,
            "score": None if self.score is None else self.score.value,
        }


def item_result(group: TrajectoryGroup) -> ItemResult:
    """The numbers of one item's rollouts, each with its verdict."""
    return ItemResult(
        item_id=group.item_id,
        scores=tuple(each.score for each in group.trajectories if each.score is not None),
        passed=tuple(bool(each.passed) for each in group.trajectories),
        turns=tuple(len(trajectory.acts) for trajectory in group.trajectories),
        dropped=len(group.failures),
    )


def pass_at_k(rollouts: int, passed: int, k: int) -> float:
    """Chance that one of `k` rollouts passes, estimated without bias from `rollouts` ≥ k of them.

    The estimator 1 - C(n - c, k) / C(n, k) of Chen et al., "Evaluating Large Language Models Trained on
    Code" (2021), equation 1.
    """
    if not 1 <= k <= rollouts:
        raise ValueError(f"k must be between 1 and the {rollouts} rollouts, got {k}")
    return 1.0 - math.comb(rollouts - passed, k) / math.comb(rollouts, k)


def evaluate_results(
    results: Sequence[ItemResult], *, max_k: int, seed: int = 0, planned: int | None = None
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
    counted = [result for result in results if result.passed]
    if not counted:
        return None
    pass_at: list[Estimate] = []
    for k in range(1, max_k + 1):
        values = [pass_at_k(len(r.passed), sum(r.passed), k) for r in counted if len(r.passed) >= k]
        if not values:
            break
        pass_at.append(_estimate(values, seed))
    scores = [math.fsum(r.scores) / len(r.scores) for r in counted if r.scores]
    return Evaluation(
        score=_estimate(scores, seed) if scores else None,
        pass_at=tuple(pass_at),
        pass_at_least=tuple(_pass_at_least(results, k) for k in range(1, len(pass_at) + 1)),
        turns_passed=_mean_turns(counted, lambda passed: passed),
        turns_failed=_mean_turns(counted, lambda passed: not passed),
        items=len(counted),
        rollouts=sum(len(r.passed) for r in counted),
        passed=sum(sum(r.passed) for r in counted),
        dropped=sum(r.dropped for r in results),
        lost_items=len(results) - len(counted),
        planned=len(results) if planned is None else planned,
        tried=len(results),
    )


def evaluation_metrics(evaluation: Evaluation) -> dict[str, float]:
    """The statistics as flat numbers, for `metrics.json`; what is unknown is left out."""
    metrics: dict[str, float | None] = {}
    if evaluation.score is not None:
        metrics["eval/mean_score"] = evaluation.score.value
        metrics |= _interval("eval/mean_score", evaluation.score)
    for k, estimate in enumerate(evaluation.pass_at, start=1):
        metrics[f"eval/pass@{k}"] = estimate.value
        metrics |= _interval(f"eval/pass@{k}", estimate)
        metrics[f"eval/pass@{k}_at_least"] = evaluation.pass_at_least[k - 1]
    metrics |= {
        "eval/turns_passed": evaluation.turns_passed,
        "eval/turns_failed": evaluation.turns_failed,
        "eval/items": evaluation.items,
        "eval/rollouts": evaluation.rollouts,
        "eval/passed": evaluation.passed,
        "eval/dropped_rollouts": evaluation.dropped,
        "eval/lost_items": evaluation.lost_items,
        "eval/planned_items": evaluation.planned,
        "eval/tried_items": evaluation.tried,
    }
    return {name: value for name, value in metrics.items() if value is not None}


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
        "metrics": dict(trajectory.metrics),
    }


def print_evaluation(console: Console, evaluation: Evaluation) -> None:
    """The statistics for people."""
    items = f"{evaluation.tried} of {evaluation.planned} tried"
    if not evaluation.complete:
        items += "; INCOMPLETE: the numbers below speak only of these"
    if evaluation.lost_items:
        items += f"; {evaluation.lost_items} lost, of which no rollout is left: they are in no number below"
    score = "nothing was scored" if evaluation.score is None else _shown(evaluation.score)
    rows = [("items", items), ("mean score", score)]
    for k, estimate in enumerate(evaluation.pass_at, start=1):
        least = evaluation.pass_at_least[k - 1]
        lost = f"; at least {least:.3f}, with lost rollouts as failed" if evaluation.dropped else ""
        rows.append((f"pass@{k}", _shown(estimate) + lost))
    for name, turns, count in (
        ("passed", evaluation.turns_passed, evaluation.passed),
        ("failed", evaluation.turns_failed, evaluation.rollouts - evaluation.passed),
    ):
        shown = "" if turns is None else f", {turns:.2f} turns on average"
        rows.append((name, f"{count} of {evaluation.rollouts} rollouts{shown}"))
    rows.append(("dropped", f"{evaluation.dropped} rollouts"))
    print_rows(console, rows)


def _pass_at_least(results: Sequence[ItemResult], k: int) -> float:
    tries = [(len(r.passed) + r.dropped, sum(r.passed)) for r in results]
    values = [pass_at_k(rollouts, passed, k) for rollouts, passed in tries if rollouts >= k]
    return math.fsum(values) / len(values)


def bootstrap_interval(values: Sequence[float], seed: int) -> tuple[float | None, float | None]:
    """95 % percentile bootstrap of a mean (Efron & Tibshirani 1993); `None` with fewer than two values."""
    if len(values) < 2:
        return None, None
    sample = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    # One resample at a time: all of them at once would need RESAMPLES times the memory of the sample.
    means = [sample[rng.integers(len(sample), size=len(sample))].mean() for _ in range(RESAMPLES)]
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


def _estimate(values: Sequence[float], seed: int) -> Estimate:
    low, high = bootstrap_interval(values, seed)
    return Estimate(
        value=float(np.mean(np.asarray(values, np.float64))), low=low, high=high, items=len(values)
    )


def _mean_turns(results: Sequence[ItemResult], wanted: Callable[[bool], bool]) -> float | None:
    turns = [
        count
        for result in results
        for count, passed in zip(result.turns, result.passed, strict=True)
        if wanted(passed)
    ]
    return sum(turns) / len(turns) if turns else None


def _interval(name: str, estimate: Estimate) -> dict[str, float | None]:
    return {f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _shown(estimate: Estimate) -> str:
    interval = "" if estimate.low is None else f"  95 % interval {estimate.low:.3f} to {estimate.high:.3f}"
    return f"{estimate.value:.3f}{interval}  ({estimate.items} items)"
