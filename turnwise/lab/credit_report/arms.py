"""The arms of the report: each γ with each baseline of turn_return, and every other estimator."""

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

_GAMMAS = (1.0, 0.9, 0.7, 0.5, 0.0)
Numbers = NDArray[np.float64]
Ids = NDArray[np.int64]
_LEAST_UNITS = 3
"""With fewer, deleting one leaves no pair of groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    estimator: str
    gamma: float | None = None
    baseline: str | None = None

    @property
    def params(self) -> dict[str, Any]:
        given = {"gamma": self.gamma, "baseline": self.baseline}
        return {name: value for name, value in given.items() if value is not None}

    def __str__(self) -> str:
        gamma = None if self.gamma is None else f"γ = {self.gamma:g}"
        return ", ".join(filter(None, (self.estimator, gamma, self.baseline)))


REFERENCE = Arm(estimator="turn_return", gamma=1.0, baseline="loo_index")
"""An unbiased estimator: its mean gradient is the one to follow."""


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
    """[arm][turn], divided by the number of rollouts, withheld ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    arms: tuple[Arm, ...]
    groups: tuple[ReportGroup, ...]


def read_for_report(record: Iterable[CreditedGroup]) -> ReportData:
    """Credit the groups of a record by every arm.

    Groups that no trainer gets are left out: failed or stale ones, evaluations, and logged sessions without a
    peer. An estimator that refuses a group is left out, too.

    Raises:
        CreditError: if there are no tokens, fewer than three items, or the reference refuses a group.
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
    turns = [tuple(_find_turns(each)) for each in groups]
    if not any(map(len, turns)):
        raise CreditError("no tokens of a trained turn are recorded, and the report is about their gradients")
    credit = {arm: rows for arm in _all_arms() if (rows := _credit(arm, groups, turns)) is not None}
    if REFERENCE not in credit:
        rows = [estimate(REFERENCE.estimator, each.group) for each in groups]  # raises with the reason
        raise CreditError(f"{REFERENCE} cannot credit {len(rows)} groups")
    arms = (REFERENCE, *(arm for arm in credit if arm != REFERENCE))
    # Arms are scaled to 1: no figure depends on the unit, and squares of large rewards would overflow.
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


def _all_arms() -> Iterator[Arm]:
    for choice, gamma in product(describe(REFERENCE.estimator).parameter("baseline").choices, _GAMMAS):
        yield replace(REFERENCE, gamma=gamma, baseline=choice)
    yield from (Arm(estimator=name) for name in ESTIMATORS if name != REFERENCE.estimator)


def _credit(
    arm: Arm, groups: Iterable[CreditedGroup], turns: Iterable[tuple[TurnTokens, ...]]
) -> list[Numbers] | None:
    rows: list[Numbers] = []
    try:
        for each, sampled in zip(groups, turns, strict=True):
            advantages = estimate(arm.estimator, each.group, **arm.params)
            rows.append(np.array([advantages[turn.trajectory][turn.turn] for turn in sampled], dtype=float))
    except Exception:  # noqa: BLE001  # a registered estimator is user code
        return None
    return rows
