"""The default estimator: return-to-go minus a baseline that the turn's own action cannot move."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from environments.credit.estimator_registry import Advantages, register_estimator
from environments.credit.parameters import Param
from environments.credit.scored import each_trained, read
from environments.credit.stats import mean, means_of_others, size_of
from environments.trajectory import TrajectoryGroup

Baseline = Literal["loo_index", "loo_total", "group_mean", "none"]


def _without_peer(group: TrajectoryGroup, *, baseline: Baseline, **_: object) -> list[list[bool]]:
    trained = each_trained(group)
    if baseline == "loo_total" and len(trained) == 1:
        return trained
    # Beyond this turn there is the longest trajectory alone.
    second = sorted([0, *map(len, trained)])[-2] if baseline == "loo_index" and trained else math.inf
    return [[each and turn >= second for turn, each in enumerate(row)] for row in trained]


@register_estimator(
    "turn_return",
    formula="A[i,k] = Σ_{l≥k} gamma^(l-k) r[i,l] + gamma^(K-k) w O[i] - b[i,k],  K the last turn",
    bias="none at gamma=1 with loo_index, loo_total and none; group_mean only shrinks by (G-1)/G; "
    "group_std weighs groups by 1/std; a reward that depends on what siblings did (score_group) is outside "
    "this proof",
    source="leave-one-out baseline: arXiv 2402.14740, applied to per-turn returns",
    without_peer=_without_peer,
)
def turn_return(
    group: TrajectoryGroup,
    *,
    gamma: Annotated[float, Param("discount per turn", low=0, high=1)] = 1.0,
    outcome_weight: Annotated[float, Param("w, what one unit of outcome is worth", low=-1e6, high=1e6)] = 1.0,
    baseline: Annotated[
        Baseline,
        Param(
            "b: mean return of the other trajectories at the same turn index, of their whole trajectories, "
            "of the whole group's trajectories, or 0"
        ),
    ] = "loo_index",
    scale: Annotated[
        Literal["none", "group_std"], Param("group_std divides by the group's root mean square advantage")
    ] = "none",
) -> Advantages:
    """Discounted return-to-go per turn minus a baseline made of the other trajectories.

    Where no other trajectory reached a turn (or the group has only one), `loo_index` and `loo_total`
    subtract nothing, so that turn keeps its raw return.

    Raises:
        CreditError: rewards that are missing, NaN or infinite.
    """
    scored = read(group)
    returns = [trajectory.returns(gamma, outcome_weight) for trajectory in scored]
    totals = [
        to_go[0] if to_go else outcome_weight * (trajectory.outcome or 0.0)
        for to_go, trajectory in zip(returns, scored, strict=True)
    ]
    if baseline == "loo_index":
        advantages = _minus_index_means(returns)
    elif baseline == "none" or not totals or (baseline == "loo_total" and len(totals) == 1):
        advantages = returns
    else:
        levels = means_of_others(totals) if baseline == "loo_total" else [mean(totals)] * len(totals)
        advantages = [
            [value - level for value in to_go] for to_go, level in zip(returns, levels, strict=True)
        ]
    return _scaled(advantages) if scale == "group_std" else advantages


def _minus_index_means(returns: Sequence[Sequence[float]]) -> Advantages:
    advantages = [list(to_go) for to_go in returns]
    for turn in range(max(map(len, returns), default=0)):
        alive = [row for row in advantages if len(row) > turn]
        if len(alive) == 1:
            continue
        for row, level in zip(alive, means_of_others([row[turn] for row in alive]), strict=True):
            row[turn] -= level
    return advantages


def _scaled(advantages: Advantages) -> Advantages:
    flat = [value for row in advantages for value in row]
    unit = size_of(flat, len(flat))
    return [[value / unit for value in row] for row in advantages] if unit else advantages
