"""MT-GRPO: the outcome and the turn reward normalised apart, then added. Biased; here for comparison."""

from collections.abc import Sequence
from typing import Annotated, Literal

from environments.credit.estimator_registry import Advantages, register_estimator
from environments.credit.parameters import Param
from environments.credit.scored import read
from environments.credit.stats import z_scores
from environments.trajectory import Trajectory, TrajectoryGroup


@register_estimator(
    "mt_grpo",
    formula="two: A = z(O) + lambda z(sum r) up to the first tool result, z(O) after it, z(O + sum r) where "
    "there is none; per_turn: A[i,k] = z(O)[i] + lambda z(r[.,k])[i]",
    bias="strong: separate normalisation replaces the weights of outcome and turns by 1/std of each group, "
    "and per_turn ignores what a turn sets up for later ones",
    source="arXiv 2505.11821 v1, reference SiliangZeng/Multi-Turn-RL-Agent (two segments only)",
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
            rewards = {
                index: reward
                for index, t in enumerate(scored)
                if turn < len(t.turns) and (reward := t.turns[turn]) is not None
            }
            for index, value in zip(rewards, norm(list(rewards.values())) if rewards else (), strict=True):
                advantages[index][turn] += turn_coef * value
        return advantages
    turns = norm([t.turn_sum for t in scored])
    combined = norm([t.turn_sum + (t.outcome or 0.0) for t in scored])
    return [
        _two_segments(trajectory, outcome, turn_coef * turn, both)
        for trajectory, outcome, turn, both in zip(group.trajectories, outcomes, turns, combined, strict=True)
    ]


def _two_segments(trajectory: Trajectory, outcome: float, turn: float, both: float) -> list[float]:
    answered = (
        index
        for index, t in enumerate(trajectory.turns)
        if any(result.error is None for result in t.tool_results)
    )
    boundary = next(answered, None)
    if boundary is None:
        return [both] * len(trajectory.turns)
    return [outcome + turn if index <= boundary else outcome for index in range(len(trajectory.turns))]
