"""The numbers that credit is made of, read from a group and checked."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from environments.trajectory import LARGEST_REWARD, Trajectory, TrajectoryGroup
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
        if not self.turns or self.outcome is None:
            return self.turns
        return (*self.turns[:-1], (self.turns[-1] or 0.0) + self.outcome)

    @property
    def turn_sum(self) -> float:
        """The turn rewards added up."""
        return math.fsum(reward for reward in self.turns if reward is not None)

    def returns(self, gamma: float, outcome_weight: float = 1.0) -> list[float]:
        """Discounted return-to-go per turn; the outcome belongs to the last turn, unscored turns add 0."""
        weighed = replace(self, outcome=outcome_weight * (self.outcome or 0.0))
        return summed_forward(weighed.steps, gamma)


def summed_forward(values: Sequence[float | None], gamma: float) -> list[float]:
    """Each value plus those that follow it, discounted; `None` adds nothing."""
    following = 0.0
    sums: list[float] = []
    for value in reversed(values):
        following = (value or 0.0) + gamma * following
        sums.append(following)
    sums.reverse()
    return sums


def read(group: TrajectoryGroup) -> list[Scored]:
    """The group's rewards in its order.

    Raises:
        CreditError: a trajectory without rewards, with rewards that do not match its turns, or with one
            that is NaN, infinite or beyond `LARGEST_REWARD`.
    """
    return [_read(trajectory, index) for index, trajectory in enumerate(group.trajectories)]


def _read(trajectory: Trajectory, index: int) -> Scored:
    rewards, count = trajectory.rewards, len(trajectory.turns)
    if rewards is None:
        raise CreditError(f"trajectory {index} has no rewards; score the group before it gets credit")
    if rewards.turns is not None:
        if len(rewards.turns) != count:
            raise CreditError(
                f"trajectory {index} has {len(rewards.turns)} turn rewards for its {count} turns"
            )
        check_turns(rewards.turns, index, "reward")
    _check(rewards.outcome, f"outcome of trajectory {index}")
    _check(rewards.score, f"score of trajectory {index}")
    if rewards.turns is None:
        return Scored(turns=(None,) * count, outcome=rewards.score, score=rewards.score or 0.0)
    return Scored(turns=rewards.turns, outcome=rewards.outcome, score=rewards.score or 0.0)


def check_turns(values: Sequence[float | None], index: int, what: str) -> None:
    """Refuse a value per turn that no return can be made of, naming trajectory and turn."""
    for turn, value in enumerate(values):
        if value is not None and not -LARGEST_REWARD <= value <= LARGEST_REWARD:
            _check(value, f"{what} of trajectory {index}, turn {turn + 1}")


def _check(value: float | None, name: str) -> None:
    """Refuse NaN, infinity and sizes that overflow."""
    if value is None or abs(value) <= LARGEST_REWARD:
        return
    if not math.isfinite(value):
        raise CreditError(f"{name} is {value}; it must be a finite number (None means not scored)")
    raise CreditError(f"{name} is {value:g}; sizes up to {LARGEST_REWARD:g} are possible")
