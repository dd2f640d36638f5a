"""Summaries in credit: estimators see the acts alone, and a summary is credited like the act it leads to.

A summary earns nothing itself, and takes no time: its return is that of the act that follows, and so is the
mean of the siblings that it is compared with. Where no act follows, it gets the advantage of the act before,
which adds only what was known when it was sampled: noise, and no bias where the estimator has none.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from environments.trajectory import Rewards, Trajectory, TrajectoryGroup

Value = TypeVar("Value")


def has_summaries(group: TrajectoryGroup) -> bool:
    """Whether a turn of the group is none of the agent's acts."""
    return any(turn.kind == "summary" for each in group.trajectories for turn in each.turns)


def acts_alone(group: TrajectoryGroup) -> TrajectoryGroup:
    """The group without its summaries, and without the entries of its rewards that belong to them."""
    return replace(group, trajectories=tuple(map(_acts_of, group.trajectories)))


def at_acts(values: Sequence[Value], trajectory: Trajectory) -> Sequence[Value]:
    """Of one value per turn, those of the acts; of another number of values, all."""
    if len(values) != len(trajectory.turns):
        return values
    return [value for value, turn in zip(values, trajectory.turns, strict=True) if turn.kind == "act"]


def over_all_turns(advantages: Sequence[Sequence[float]], group: TrajectoryGroup) -> list[list[float]]:
    """Advantages of acts as those of all turns."""
    return [_spread(row, trajectory) for row, trajectory in zip(advantages, group.trajectories, strict=True)]


def _acts_of(trajectory: Trajectory) -> Trajectory:
    rewards = trajectory.rewards
    if rewards is not None:
        rewards = _rewards_of_acts(rewards, trajectory)
    return replace(trajectory, turns=trajectory.acts, rewards=rewards)


def _rewards_of_acts(rewards: Rewards, trajectory: Trajectory) -> Rewards:
    return replace(
        rewards,
        turns=None if rewards.turns is None else tuple(at_acts(rewards.turns, trajectory)),
        turn_components=tuple(at_acts(rewards.turn_components, trajectory)),
        turn_raw=tuple(at_acts(rewards.turn_raw, trajectory)),
    )


def _spread(advantages: Sequence[float], trajectory: Trajectory) -> list[float]:
    last = len(advantages) - 1
    acts = 0
    spread: list[float] = []
    for turn in trajectory.turns:
        spread.append(advantages[min(acts, last)] if advantages else 0.0)
        acts += turn.kind == "act"
    return spread
