"""The default estimator: return-to-go minus a baseline that the turn's own action cannot move."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from environments.credit.estimator_registry import Advantages, register_estimator
from environments.credit.parameters import Param
from environments.credit.scored import each_trained, read
from environments.credit.stats import mean, means_of_others, size_of
from environments.credit.terms import NO_PEER, Compared, Explanation, Explanations, Term
from environments.trajectory import TrajectoryGroup

Baseline = Literal["loo_index", "loo_total", "group_mean", "none"]


def _without_peer(group: TrajectoryGroup, *, baseline: Baseline, **_: object) -> list[list[bool]]:
    trained = each_trained(group)
    if baseline == "loo_total" and len(trained) == 1:
        return trained
    # Beyond this turn there is the longest trajectory alone.
    second = sorted([0, *map(len, trained)])[-2] if baseline == "loo_index" and trained else math.inf
    return [[each and turn >= second for turn, each in enumerate(row)] for row in trained]


def _explained(
    group: TrajectoryGroup, *, gamma: float, outcome_weight: float, baseline: Baseline, scale: str
) -> Explanations:
    returns, totals = _returns(group, gamma, outcome_weight)
    baselines = _baselines(returns, totals, baseline)
    unit = (_unit(_minus_baselines(returns, baselines)) if scale == "group_std" else 0.0) or None
    wholes = tuple(Compared(trajectory=i, turn=None, value=total) for i, total in enumerate(totals))
    own = [
        [Compared(trajectory=i, turn=turn, value=value) for turn, value in enumerate(to_go)]
        for i, to_go in enumerate(returns)
    ]
    pools = [
        tuple(row[turn] for row in own if len(row) > turn) if baseline == "loo_index" else wholes
        for turn in range(max(map(len, own), default=0))
    ]
    notes = () if unit is None else ("divided by the root mean square of the group's advantages",)

    def explained(i: int, turn: int) -> Explanation:
        left_out = {"loo_index": own[i][turn], "loo_total": wholes[i]}.get(baseline)
        level = baselines[i][turn]
        term = Term(
            name="return",
            value=returns[i][turn],
            baseline=level,
            divisor=unit,
            pool=() if level is None else pools[turn],
            own=left_out,
        )
        alone = (NO_PEER,) if level is None and baseline != "none" else ()
        return Explanation(terms=(term,), sums_forward=True, notes=alone + notes)

    return [[explained(i, turn) for turn in range(len(to_go))] for i, to_go in enumerate(returns)]


@register_estimator(
    "turn_return",
    formula="A[i,k] = Σ_{l≥k} gamma^(l-k) r[i,l] + gamma^(K-k) w O[i] - b[i,k],  K the last turn",
    bias="none at gamma=1 with loo_index, loo_total and none; group_mean only shrinks by (G-1)/G; "
    "group_std weighs groups by 1/std; a reward that depends on what siblings did (score_group) is outside "
    "this proof",
    source="leave-one-out baseline: arXiv 2402.14740, applied to per-turn returns",
    without_peer=_without_peer,
    explained=_explained,
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
    returns, totals = _returns(group, gamma, outcome_weight)
    advantages = _minus_baselines(returns, _baselines(returns, totals, baseline))
    unit = _unit(advantages) if scale == "group_std" else None
    return [[value / unit for value in row] for row in advantages] if unit else advantages


def _returns(group: TrajectoryGroup, gamma: float, outcome_weight: float) -> tuple[Advantages, list[float]]:
    """The return of each turn, and of each trajectory."""
    scored = read(group)
    returns = [trajectory.returns(gamma, outcome_weight) for trajectory in scored]
    totals = [
        to_go[0] if to_go else outcome_weight * (trajectory.outcome or 0.0)
        for to_go, trajectory in zip(returns, scored, strict=True)
    ]
    return returns, totals


def _baselines(
    returns: Sequence[Sequence[float]], totals: Sequence[float], baseline: Baseline
) -> list[list[float | None]]:
    """One per turn; `None`: there is nothing to compare it with."""
    if baseline == "loo_index":
        return _index_means(returns)
    levels: Sequence[float | None] = [None] * len(totals)
    if baseline == "group_mean" and totals:
        levels = [mean(totals)] * len(totals)
    elif baseline == "loo_total" and len(totals) > 1:
        levels = means_of_others(totals)
    return [[level] * len(to_go) for to_go, level in zip(returns, levels, strict=True)]


def _index_means(returns: Sequence[Sequence[float]]) -> list[list[float | None]]:
    means: list[list[float | None]] = [[None] * len(to_go) for to_go in returns]
    for turn in range(max(map(len, returns), default=0)):
        alive = [index for index, to_go in enumerate(returns) if len(to_go) > turn]
        if len(alive) == 1:
            continue
        levels = means_of_others([returns[index][turn] for index in alive])
        for index, level in zip(alive, levels, strict=True):
            means[index][turn] = level
    return means


def _minus_baselines(
    returns: Sequence[Sequence[float]], baselines: Sequence[Sequence[float | None]]
) -> Advantages:
    return [
        [value if level is None else value - level for value, level in zip(*rows, strict=True)]
        for rows in zip(returns, baselines, strict=True)
    ]


def _unit(advantages: Advantages) -> float:
    flat = [value for row in advantages for value in row]
    return size_of(flat, len(flat))
