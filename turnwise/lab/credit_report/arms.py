"""The arms of the report: each γ and baseline of turn_return, and every other estimator."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from environments.credit import ESTIMATORS, describe, estimate
from environments.trajectory import CreditedGroup
from tools.errors import CreditError

GAMMAS = (1.0, 0.9, 0.7, 0.5, 0.0)
Numbers = NDArray[np.float64]
Ids = NDArray[np.int64]
_LEAST_UNITS = 3
"""Deleting one of fewer leaves no pair of groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to compute credit."""

    estimator: str
    gamma: float | None = None
    baseline: str | None = None

    @property
    def params(self) -> dict[str, Any]:
        """What the estimator is called with."""
        given = {"gamma": self.gamma, "baseline": self.baseline}
        return {name: value for name, value in given.items() if value is not None}

    def __str__(self) -> str:
        gamma = None if self.gamma is None else f"γ = {self.gamma:g}"
        return ", ".join(filter(None, (self.estimator, gamma, self.baseline)))


REFERENCE = Arm(estimator="turn_return", gamma=1.0, baseline="loo_index")
"""Unbiased, so that its mean gradient is the one to follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The tokens of a trained turn, and where they are."""

    trajectory: int
    turn: int
    row: int
    start: int
    before: tuple[int, ...]
    """The last two tokens that it answers: of the prompt, a tool, a user."""
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportGroup:
    """What the report reads of a group."""

    credited: CreditedGroup
    unit: int
    """Equal for the epochs of an item, whose gradients are not independent."""
    turns: tuple[Sampled, ...]
    advantages: Numbers
    """[arm][turn], over the rollouts of the group, of which withheld ones count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """The groups of a record, credited by every arm."""

    arms: tuple[Arm, ...]
    """The reference is the first."""
    groups: tuple[ReportGroup, ...]


def read_for_report(record: Iterable[CreditedGroup]) -> ReportData:
    """Credit the groups of a record by every arm.

    Failed groups, evaluations, groups of which every rollout is too old and logged sessions without a peer
    are left out: no trainer gets them. An estimator that refuses one of the others is no arm.

    Raises:
        CreditError: no tokens, groups of fewer than three items, or rewards that nothing can be made of.
    """
    groups = [each for each in record if _is_trained_on(each)]
    units: dict[str, int] = {}
    for each in groups:
        units.setdefault(each.group.item_id, len(units))
    if len(units) < _LEAST_UNITS:
        raise CreditError(
            f"the report compares the gradients of groups of different items: it needs {_LEAST_UNITS} items "
            f"with a group to train on, and has {len(units)}"
        )
    turns = [tuple(_sampled(each)) for each in groups]
    if not any(map(len, turns)):
        raise CreditError("no tokens of a trained turn are recorded, and the report is about their gradients")
    credit = {arm: rows for arm in _all_arms() if (rows := _credit(arm, groups, turns)) is not None}
    if REFERENCE not in credit:
        rows = [estimate(REFERENCE.estimator, each.group) for each in groups]  # says what is wrong
        raise CreditError(f"{REFERENCE} cannot credit {len(rows)} groups")
    arms = (REFERENCE, *(arm for arm in credit if arm != REFERENCE))
    # No figure depends on an arm's unit, and squares of large rewards would overflow.
    units_of = [
        max((float(np.abs(row).max(initial=0.0)) for row in credit[arm]), default=0.0) for arm in arms
    ]
    return ReportData(
        arms=arms,
        groups=tuple(
            ReportGroup(
                credited=each,
                unit=units[each.group.item_id],
                turns=turns[index],
                advantages=np.stack(
                    [credit[arm][index] / (unit or 1.0) for arm, unit in zip(arms, units_of, strict=True)]
                )
                / len(each.group.trajectories),
            )
            for index, each in enumerate(groups)
        ),
    )


def _is_trained_on(credited: CreditedGroup) -> bool:
    group = credited.group
    is_lone = len(group.trajectories) == 1 and group.trajectories[0].session_id is not None
    is_out = group.is_evaluation or group.stale is not None or is_lone or not group.trajectories
    return credited.status != "failed" and not is_out


def _sampled(credited: CreditedGroup) -> Iterator[Sampled]:
    for index, trajectory in enumerate(credited.group.trajectories):
        ends = defaultdict[int, int](int)
        for number, turn in enumerate(trajectory.turns):
            span = turn.span
            read, ends[span.row] = max(ends[span.row], span.start - 2), span.end
            if turn.trained and span.row < len(trajectory.rows) and span.end > span.start:
                ids = trajectory.rows[span.row].token_ids
                yield Sampled(
                    trajectory=index,
                    turn=number,
                    row=span.row,
                    start=span.start,
                    before=tuple(ids[read : span.start]),
                    tokens=tuple(ids[span.start : span.end]),
                )


def _all_arms() -> Iterator[Arm]:
    """The reference with each γ and each other baseline, and every other estimator as it is by default."""
    yield from (replace(REFERENCE, gamma=gamma) for gamma in GAMMAS)
    for each in describe(REFERENCE.estimator).parameters:
        if each.name == "baseline":
            yield from (replace(REFERENCE, baseline=choice) for choice in each.choices)
    yield from (Arm(estimator=name) for name in ESTIMATORS if name != REFERENCE.estimator)


def _credit(
    arm: Arm, groups: Iterable[CreditedGroup], turns: Iterable[tuple[Sampled, ...]]
) -> list[Numbers] | None:
    """Of each group the advantages of its sampled turns; `None` where the estimator refuses one."""
    rows: list[Numbers] = []
    try:
        for each, sampled in zip(groups, turns, strict=True):
            advantages = estimate(arm.estimator, each.group, **arm.params)
            rows.append(np.array([advantages[turn.trajectory][turn.turn] for turn in sampled], dtype=float))
    except Exception:  # noqa: BLE001  # an estimator may be anybody's code
        return None
    return rows
