"""The numbers that credit is made of, read from a group and checked."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from environments.trajectory import LARGEST_REWARD, Rewards, Trajectory, TrajectoryGroup
from tools.errors import CreditError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One trajectory's rewards; in a scalar environment the score is the outcome and no turn is scored.

    What is `None` adds nothing to a sum. Whether a trajectory without an outcome, or without any reward, may
    be compared with others is decided before: see `comparable`.
    """

    turns: tuple[float | None, ...]
    outcome: float | None
    score: float

    @property
    def steps(self) -> tuple[float | None, ...]:
        """The turn rewards with the outcome added to the last turn's."""
        return self._with_outcome(self.outcome)

    @property
    def turn_sum(self) -> float:
        """The turn rewards added up."""
        return math.fsum(reward for reward in self.turns if reward is not None)

    def returns(self, gamma: float, outcome_weight: float = 1.0) -> list[float]:
        """Discounted return-to-go per turn; the outcome belongs to the last turn, unscored turns add 0."""
        return summed_forward(self._with_outcome(outcome_weight * (self.outcome or 0.0)), gamma)

    def _with_outcome(self, outcome: float | None) -> tuple[float | None, ...]:
        if not self.turns or outcome is None:
            return self.turns
        return (*self.turns[:-1], (self.turns[-1] or 0.0) + outcome)


def summed_forward(values: Sequence[float | None], gamma: float) -> list[float]:
    """Each value plus those that follow it, discounted; `None` adds nothing."""
    following = 0.0
    sums: list[float] = []
    for value in reversed(values):
        following = (value or 0.0) + gamma * following
        sums.append(following)
    sums.reverse()
    return sums


def trained_turns(group: TrajectoryGroup) -> int:
    """How many turns of a group are not left out of training."""
    return sum(turn.trained for trajectory in group.trajectories for turn in trajectory.turns)


def read(group: TrajectoryGroup) -> list[Scored]:
    """The group's rewards in its order.

    Raises:
        CreditError: a trajectory without rewards, with rewards that do not match its turns, or with one
            that is NaN, infinite or beyond `LARGEST_REWARD`.
    """
    return [_read(trajectory, index) for index, trajectory in enumerate(group.trajectories)]


def _read(trajectory: Trajectory, index: int) -> Scored:
    rewards = trajectory.rewards
    if rewards is None:
        raise CreditError(f"trajectory {index} has no rewards; score the group before it gets credit")
    if rewards.turns is not None and len(rewards.turns) != len(trajectory.turns):
        raise CreditError(
            f"trajectory {index} has {len(rewards.turns)} turn rewards for its {len(trajectory.turns)} turns"
        )
    _check(rewards, index)
    if rewards.turns is None:
        return Scored(
            turns=(None,) * len(trajectory.turns), outcome=rewards.score, score=rewards.score or 0.0
        )
    return Scored(turns=rewards.turns, outcome=rewards.outcome, score=rewards.score or 0.0)


def _check(rewards: Rewards, index: int) -> None:
    if rewards.turns is not None:
        check_turns(rewards.turns, index, "reward")
    if rewards.outcome is not None:
        usable(rewards.outcome, f"outcome of trajectory {index}")
    if rewards.score is not None:
        usable(rewards.score, f"score of trajectory {index}")


def check_turns(values: Sequence[float | None], index: int, what: str) -> None:
    """Refuse a value per turn that no return can be made of, naming trajectory and turn."""
    for turn, value in enumerate(values):
        if value is not None and not -LARGEST_REWARD <= value <= LARGEST_REWARD:
            usable(value, f"{what} of trajectory {index}, turn {turn + 1}")


def usable(value: float, name: str) -> None:
    """Refuse NaN, infinity and sizes that overflow."""
    if not math.isfinite(value):
        raise CreditError(f"{name} is {value}; it must be a finite number (None means not scored)")
    if abs(value) > LARGEST_REWARD:
        raise CreditError(f"{name} is {value:g}; sizes up to {LARGEST_REWARD:g} are possible")
