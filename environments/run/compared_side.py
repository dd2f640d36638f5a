"""One side of a comparison: what a record comes to, by item and in all, in one pass over its groups."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environments.record.recorder import read_contents
from environments.record.totals import Summary
from environments.run.run_summary import counted_groups
from environments.trajectory import CreditedGroup, Trajectory
from tools.errors import RecordError

ItemKey = tuple[str, str | None]
"""Id and content (`item_hash`) of an item; `None`: the record does not say its content."""


@dataclass(slots=True, kw_only=True)
class ItemTotals:
    """The rollouts of one item, over all its groups; only sums are kept."""

    rollouts: int = 0
    lost: int = 0
    scored: int = 0
    score_total: float = 0.0
    judged: int = 0
    """Rollouts of which it is known whether they passed."""
    passed: int = 0

    @property
    def mean_score(self) -> float | None:
        """Of the rollouts that were scored; `None` when none was."""
        return self.score_total / self.scored if self.scored else None

    @property
    def pass_rate(self) -> float | None:
        """Of the rollouts that were judged; `None` when none was."""
        return self.passed / self.judged if self.judged else None

    def values(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "rollouts": self.rollouts,
            "lost": self.lost,
            "score": self.mean_score,
            "passed": self.passed if self.judged else None,
            "judged": self.judged,
        }


@dataclass(slots=True, kw_only=True)
class Side:
    """A record as far as it is compared; it grows with its items, not with its rollouts."""

    place: str
    path: Path
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
            totals.rollouts += 1
            if trajectory.score is not None:
                totals.scored += 1
                totals.score_total += trajectory.score
            verdict = self._verdict(trajectory)
            if verdict is not None:
                totals.judged += 1
                totals.passed += verdict

    def values(self) -> dict[str, Any]:
        """As JSON: who played, and the aggregates of all groups."""
        totals = self.items.values()
        return {
            "place": self.place,
            "record": str(self.path),
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


def read_side(place: str, path: Path, *, pass_score: float | None = None) -> Side:
    """A record, read once.

    Args:
        place: what the user calls it.
        path: the record.
        pass_score: outcome, or score where there is none, from which a rollout without a verdict has passed.

    Raises:
        RecordError: unreadable, malformed or empty.
    """
    if pass_score is not None and not math.isfinite(pass_score):
        raise RecordError(f"--pass-score {pass_score} is no finite number")
    side = Side(place=place, path=path, pass_score=pass_score)
    # Of an index where there is one: a group that failed and was done again counts once.
    for credited in counted_groups(path, read_contents(path).finished):
        side.add(credited)
    if not side.items:
        raise RecordError(f"{path} holds no group, so there is nothing to compare")
    return side
