"""Generalised advantage estimation over turns, with a critic's values or without."""

from collections.abc import Sequence
from typing import Annotated

from environments.credit.estimator_registry import Advantages, register_estimator
from environments.credit.parameters import Param, PerTurn
from environments.credit.scored import check_turns, read
from environments.credit.terms import Explanation, Explanations, Term
from environments.trajectory import TrajectoryGroup
from tools.errors import CreditError


def _explained(group: TrajectoryGroup, *, gamma: float, lam: float, values: PerTurn) -> Explanations:
    scored = read(group)
    levels = values or [[0.0] * len(trajectory.turns) for trajectory in scored]
    advantages = [
        _gae(trajectory.steps, row, gamma, lam) for trajectory, row in zip(scored, levels, strict=True)
    ]
    notes = () if values is None else ("the baseline is the critic's value",)
    return [
        [
            Explanation(
                terms=(Term(name="return", value=value + level, baseline=None if values is None else level),),
                sums_forward=True,
                notes=notes,
            )
            for value, level in zip(*rows, strict=True)
        ]
        for rows in zip(advantages, levels, strict=True)
    ]


@register_estimator(
    "turn_gae",
    formula="A[i,k] = d[k] + gamma lam A[i,k+1],  d[k] = r[i,k] + gamma V[i,k+1] - V[i,k]",
    bias="none at gamma=lam=1, below it that of the critic; without values there is no baseline",
    source="arXiv 1506.02438 over turns, reference mll-lab-nu/VAGEN (before its batch whitening)",
    explained=_explained,
)
def turn_gae(
    group: TrajectoryGroup,
    *,
    gamma: Annotated[float, Param("discount per turn", low=0, high=1)] = 1.0,
    lam: Annotated[float, Param("trust in the rewards (1) or in the values (0)", low=0, high=1)] = 1.0,
    values: Annotated[PerTurn, Param("a critic's value of the state before each turn; none: 0")] = None,
) -> Advantages:
    """Turn-level GAE; the outcome is added to the last turn's reward, unscored turns earn 0.

    Raises:
        CreditError: rewards or values that are missing, NaN or infinite, or values that do not match the
            group's turns.
    """
    scored = read(group)
    if values is None:
        values = [[0.0] * len(trajectory.turns) for trajectory in scored]
    _check(values, [len(trajectory.turns) for trajectory in scored])
    return [_gae(trajectory.steps, row, gamma, lam) for trajectory, row in zip(scored, values, strict=True)]


def _gae(steps: Sequence[float | None], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    advantages: list[float] = []
    following = next_value = 0.0
    for reward, value in zip(reversed(steps), reversed(values), strict=True):
        following = (reward or 0.0) + gamma * next_value - value + gamma * lam * following
        next_value = value
        advantages.append(following)
    advantages.reverse()
    return advantages


def _check(values: Sequence[Sequence[float]], turns: Sequence[int]) -> None:
    if len(values) != len(turns):
        raise CreditError(f"turn_gae got values for {len(values)} trajectories; the group has {len(turns)}")
    for index, (row, count) in enumerate(zip(values, turns, strict=True)):
        if len(row) != count:
            raise CreditError(f"turn_gae got {len(row)} values for the {count} turns of trajectory {index}")
        check_turns(row, index, "value")
