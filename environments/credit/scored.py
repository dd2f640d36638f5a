"""The numbers that credit is made of, read from a group and checked."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from environments.trajectory import LARGEST_REWARD, Trajectory, TrajectoryGroup, TurnClock
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
    clocks: tuple[TurnClock, ...] | None = None
    """Of each turn; `None`: no turn was requested before the one before it was scored."""

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

    @property
    def first(self) -> int:
        """The turn that was handed out before all others, so that its return is that of the whole."""
        clocks = self.clocks
        return 0 if clocks is None else min(range(len(clocks)), key=lambda turn: clocks[turn].handed_out)

    def returns(self, gamma: float, outcome_weight: float = 1.0) -> list[float]:
        """Per turn the rewards that were given after its completion was handed out, the outcome last.

        Each is discounted once for every turn that was requested in between; unscored turns add 0.
        """
        outcome = outcome_weight * (self.outcome or 0.0)
        if self.clocks is None:
            return summed_forward(replace(self, outcome=outcome).steps, gamma)
        events = [
            (time, event, turn)
            for turn, clock in enumerate(self.clocks)
            for event, time in (
                ("request", clock.requested),
                ("hand-out", clock.handed_out),
                ("reward", clock.scored),
            )
        ]
        following, returns = outcome, [0.0] * len(self.turns)
        for _, event, turn in sorted(events, reverse=True):
            match event:
                case "reward":
                    following += self.turns[turn] or 0.0
                case "hand-out":
                    returns[turn] = following
                case _:
                    following *= gamma
        return returns


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
            that is NaN, infinite or beyond `LARGEST_REWARD`, or with clocks of some turns only.
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
    turns, outcome = (
        (rewards.turns, rewards.outcome) if rewards.turns is not None else ((None,) * count, rewards.score)
    )
    return Scored(turns=turns, outcome=outcome, score=rewards.score or 0.0, clocks=_clocks(trajectory, index))


def _clocks(trajectory: Trajectory, index: int) -> tuple[TurnClock, ...] | None:
    """Of its turns, where some overlapped."""
    clocks = tuple(turn.clock for turn in trajectory.turns if turn.clock is not None)
    if clocks and len(clocks) != len(trajectory.turns):
        raise CreditError(
            f"trajectory {index} has clocks on {len(clocks)} of {len(trajectory.turns)} turns; give all one"
        )
    return clocks if any(later.requested < turn.scored for turn, later in pairwise(clocks)) else None


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
