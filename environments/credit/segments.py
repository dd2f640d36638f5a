"""MT-GRPO: the outcome and the turn reward normalised apart, then added. Biased; here for comparison."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal, TypeVar

from environments.credit.estimator_registry import Advantages, register_estimator
from environments.credit.parameters import Param
from environments.credit.scored import Scored, read
from environments.credit.stats import z_scores
from environments.credit.terms import Compared, Explanation, Explanations, Term, normalised
from environments.trajectory import Trajectory, TrajectoryGroup

Value = TypeVar("Value")
Terms = dict[int, Term]
"""By trajectory."""


def _explained(
    group: TrajectoryGroup, *, segments: str, turn_coef: float, eps: float, ddof: int
) -> Explanations:
    scored = read(group)

    def terms(name: str, values: dict[int, float], *, turn: int | None = None, weight: float = 1.0) -> Terms:
        pool = [Compared(trajectory=i, turn=turn, value=value) for i, value in values.items()]
        weighted = [replace(term, weight=weight) for term in normalised(name, pool, ddof=ddof, eps=eps)]
        return dict(zip(values, weighted, strict=True))

    outcomes = terms("outcome", {i: each.outcome or 0.0 for i, each in enumerate(scored)})
    if segments == "per_turn":
        parts: list[list[tuple[Term, ...]]] = [
            [(outcomes[i],) for _ in each.turns] for i, each in enumerate(scored)
        ]
        for turn in range(max((len(each.turns) for each in scored), default=0)):
            rewards = _rewards_at(turn, scored)
            for i, term in terms("reward", rewards, turn=turn, weight=turn_coef).items():
                parts[i][turn] = (outcomes[i], term)
    else:
        turns = terms("turn rewards", {i: each.turn_sum for i, each in enumerate(scored)}, weight=turn_coef)
        both = terms(
            "turn rewards and outcome",
            {i: each.turn_sum + (each.outcome or 0.0) for i, each in enumerate(scored)},
        )
        parts = [
            _by_segment(trajectory, (outcomes[i], turns[i]), (outcomes[i],), (both[i],))
            for i, trajectory in enumerate(group.trajectories)
        ]
    return [[Explanation(terms=each) for each in row] for row in parts]


@register_estimator(
    "mt_grpo",
    formula="two: A = z(O) + lambda z(sum r) up to the first tool result, z(O) after it, z(O + sum r) where "
    "there is none; per_turn: A[i,k] = z(O)[i] + lambda z(r[.,k])[i]",
    bias="strong: separate normalisation replaces the weights of outcome and turns by 1/std of each group, "
    "and per_turn ignores what a turn sets up for later ones",
    source="arXiv 2505.11821 v1, reference SiliangZeng/Multi-Turn-RL-Agent (two segments only)",
    explained=_explained,
)
def mt_grpo(
    group: TrajectoryGroup,
    *,
    segments: Annotated[
        Literal["two", "per_turn"], Param("as published, or the usual K-turn form (biased, myopic)")
    ] = "two",
    turn_coef: Annotated[float, Param("lambda, the weight of the turn advantage", low=0, high=1e6)] = 1.0,
    eps: Annotated[float, Param("added to the deviation", low=0, high=1)] = 1e-4,
    ddof: Annotated[int, Param("1: sample deviation, 0: population deviation", low=0, high=1)] = 1,
) -> Advantages:
    """Outcome advantage plus a turn advantage, each normalised on its own.

    The first segment ends with the first turn that a tool answered without an error. A group of one gets 0
    (the reference: NaN). Unscored turns count as 0 in the sum, and are left out of `per_turn` statistics.

    Raises:
        CreditError: rewards that are missing, NaN or infinite.
    """
    scored = read(group)
    if not scored:
        return []

    def norm(values: Sequence[float]) -> list[float]:
        return z_scores(values, ddof=ddof, eps=eps)

    outcomes = norm([trajectory.outcome or 0.0 for trajectory in scored])
    if segments == "per_turn":
        advantages = [[value] * len(t.turns) for value, t in zip(outcomes, scored, strict=True)]
        for turn in range(max(len(t.turns) for t in scored)):
            rewards = _rewards_at(turn, scored)
            for index, value in zip(rewards, norm(list(rewards.values())) if rewards else (), strict=True):
                advantages[index][turn] += turn_coef * value
        return advantages
    turns = norm([t.turn_sum for t in scored])
    combined = norm([t.turn_sum + (t.outcome or 0.0) for t in scored])
    return [
        _by_segment(trajectory, outcome + turn_coef * turn, outcome, both)
        for trajectory, outcome, turn, both in zip(group.trajectories, outcomes, turns, combined, strict=True)
    ]


def _rewards_at(turn: int, scored: Sequence[Scored]) -> dict[int, float]:
    """The rewards of all turns of one index, by trajectory."""
    return {
        index: reward
        for index, t in enumerate(scored)
        if turn < len(t.turns) and (reward := t.turns[turn]) is not None
    }


def _by_segment(trajectory: Trajectory, first: Value, second: Value, whole: Value) -> list[Value]:
    """What belongs to each turn: of the first segment, the second, or of a trajectory that has but one."""
    answered = (
        index
        for index, t in enumerate(trajectory.turns)
        if any(result.error is None for result in t.tool_results)
    )
    boundary = next(answered, None)
    if boundary is None:
        return [whole] * len(trajectory.turns)
    return [first if index <= boundary else second for index in range(len(trajectory.turns))]
