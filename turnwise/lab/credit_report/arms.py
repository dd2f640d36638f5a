"""The arms of the report: γ of turn_return and the scalar by default, any other estimator on request."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from environments.credit import ESTIMATORS, describe, estimate
from environments.trajectory import CreditedGroup
from tools.errors import CreditError

_GAMMAS = (1.0, 0.7, 0.5, 0.0)
Numbers = NDArray[np.float64]
Ids = NDArray[np.int64]
_REASON_CHARS = 200
_OF_STATES = ("gigpo", "hgpo", "gagpo", "rtmc", "salt", "tree_grpo")
_NEEDS = {**dict.fromkeys(_OF_STATES, ("anchor", "no state_key")), "turn_gae": ("value", "no values")}
_IN_REWARDS = ("turn_return", "rloo", "turn_gae")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    estimator: str
    gamma: float | None = None
    baseline: str | None = None

    @property
    def params(self) -> dict[str, Any]:
        given = {"gamma": self.gamma, "baseline": self.baseline}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def in_rewards(self) -> bool:
        """Whether its advantages are returns minus a baseline: others have scales that are not comparable."""
        return self.estimator in _IN_REWARDS and self.baseline != "group_mean"

    def __str__(self) -> str:
        if (self.estimator, self.baseline) == (REFERENCE.estimator, REFERENCE.baseline):
            return f"γ = {self.gamma:g}"
        gamma = None if self.gamma is None else f"γ = {self.gamma:g}"
        return ", ".join(filter(None, (self.estimator, gamma, self.baseline)))


REFERENCE = Arm(estimator="turn_return", gamma=1.0, baseline="loo_index")
"""An unbiased estimator: its mean gradient is the one to follow."""
DEFAULT_ARMS = (*(replace(REFERENCE, gamma=gamma) for gamma in _GAMMAS), Arm(estimator="rloo"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTokens:
    trajectory: int
    turn: int
    row: int
    start: int
    before: tuple[int, ...]
    """The last two tokens before the turn, from a prompt, a tool or a user."""
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportGroup:
    credited: CreditedGroup
    unit: int
    """Index of the item: gradients of its epochs are not independent."""
    turns: tuple[TurnTokens, ...]
    advantages: Numbers
    """`[arm][turn]`, divided by the number of rollouts; withheld ones count in it, branches do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    arms: tuple[Arm, ...]
    """The first is the reference."""
    groups: tuple[ReportGroup, ...]
    left_out: dict[Arm, str]
    """Arms that cannot apply to the record, with the reason."""


def all_arms() -> tuple[Arm, ...]:
    """Return all arms: turn_return with every pair of a γ and a baseline, and each other estimator."""
    baselines = describe(REFERENCE.estimator).parameter("baseline").choices
    more = (replace(REFERENCE, gamma=gamma, baseline=choice) for choice, gamma in product(baselines, _GAMMAS))
    others = (Arm(estimator=name) for name in ESTIMATORS if name != REFERENCE.estimator)
    return tuple(dict.fromkeys((*DEFAULT_ARMS, *more, *others)))


def read_for_report(record: Iterable[CreditedGroup], wanted: Iterable[Arm] = DEFAULT_ARMS) -> ReportData:
    """Credit the groups of a record by every arm.

    Groups that no trainer gets are left out: failed or stale ones, evaluations, and logged sessions without a
    peer.

    Raises:
        CreditError: if there are no tokens, or the reference refuses a group.
    """
    groups = [each for each in record if _is_trained_on(each)]
    units: dict[str, int] = {}
    for each in groups:
        units.setdefault(each.group.item_id, len(units))
    every = [turn for each in groups for trajectory in each.group.trajectories for turn in trajectory.turns]
    turns = [tuple(_find_turns(each)) for each in groups]
    if not any(map(len, turns)):
        raise CreditError("no tokens of a trained turn are recorded, and the report is about their gradients")
    credit: dict[Arm, list[Numbers]] = {}
    left_out: dict[Arm, str] = {}
    for arm in wanted:
        needed, reason = _NEEDS.get(arm.estimator, (None, ""))
        if needed and all(getattr(turn, needed) is None for turn in every):
            left_out[arm] = reason
            continue
        try:
            estimated = [estimate(arm.estimator, each.group, **arm.params) for each in groups]
            credit[arm] = [
                np.array([advantages[turn.trajectory][turn.turn] for turn in sampled], dtype=float)
                for advantages, sampled in zip(estimated, turns, strict=True)
            ]
        except Exception as error:
            if arm == REFERENCE:
                raise
            reason = " ".join(str(error).split()) or type(error).__name__
            left_out[arm] = reason.partition(":")[0][:_REASON_CHARS]
    # Advantages are scaled to 1: no figure depends on the unit, and squares of large rewards would overflow.
    largest = {
        arm: max(float(np.abs(row).max(initial=0.0)) for row in rows) or 1.0 for arm, rows in credit.items()
    }
    in_rewards = max(size for arm, size in largest.items() if arm.in_rewards)
    scales = [in_rewards if arm.in_rewards else size for arm, size in largest.items()]
    found: list[ReportGroup] = []
    for index, each in enumerate(groups):
        scaled = [rows[index] / scale for rows, scale in zip(credit.values(), scales, strict=True)]
        advantages = np.stack(scaled) / sum(own.trunk is None for own in each.group.trajectories)
        unit = units[each.group.item_id]
        found.append(ReportGroup(credited=each, unit=unit, turns=turns[index], advantages=advantages))
    return ReportData(arms=tuple(credit), groups=tuple(found), left_out=left_out)


def _is_trained_on(credited: CreditedGroup) -> bool:
    group = credited.group
    is_lone = len(group.trajectories) == 1 and group.trajectories[0].session_id is not None
    is_out = group.is_evaluation or group.stale is not None or is_lone or not group.trajectories
    return credited.status != "failed" and not is_out


def _find_turns(credited: CreditedGroup) -> Iterator[TurnTokens]:
    for index, trajectory in enumerate(credited.group.trajectories):
        ends = defaultdict[int, int](int)
        for number, turn in enumerate(trajectory.turns):
            span = turn.span
            read, ends[span.row] = max(ends[span.row], span.start - 2), span.end
            if turn.trained and span.row < len(trajectory.rows) and span.end > span.start:
                ids = trajectory.rows[span.row].token_ids
                yield TurnTokens(
                    trajectory=index,
                    turn=number,
                    row=span.row,
                    start=span.start,
                    before=tuple(ids[read : span.start]),
                    tokens=tuple(ids[span.start : span.end]),
                )
