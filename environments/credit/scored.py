"""A group's rewards, checked, as the numbers that estimators compute with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from environments.trajectory import LARGEST_REWARD, Trajectory, TrajectoryGroup, TurnClock
from tools.errors import CreditError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One trajectory's rewards; in a scalar environment the score is the outcome, and no turn is scored."""

    turns: tuple[float | None, ...]
    outcome: float | None
    score: float
    threads: tuple[int, ...]
    clocks: tuple[TurnClock, ...] | None = None
    """Only set if a turn was requested before the previous one was scored."""

    @property
    def steps(self) -> tuple[float | None, ...]:
        if not self.turns or self.outcome is None:
            return self.turns
        return (*self.turns[:-1], (self.turns[-1] or 0.0) + self.outcome)

    @property
    def turn_sum(self) -> float:
        return math.fsum(reward for reward in self.turns if reward is not None)

    @property
    def overlap(self) -> bool:
        return any(later.requested < turn.scored for turn, later in pairwise(self.clocks or ()))

    @property
    def indices(self) -> list[int]:
        """Requests before each turn, which no turn can change by cutting others off."""
        unfinished = (clock.unfinished_before for clock in self.clocks or ())
        return [turn + next(unfinished, 0) for turn in range(len(self.turns))]

    def returns(self, gamma: float, outcome_weight: float = 1.0) -> list[float]:
        """Return, per turn, the discounted sum of the rewards scored after its request, and the outcome.

        Rewards of all threads count, discounted once per turn that the turn's own thread requested in
        between. The request decides, since it precedes sampling; the time of the reply would depend on the
        completion's length.
        """
        outcome = outcome_weight * (self.outcome or 0.0)
        if self.clocks is None:
            return sum_forward(replace(self, outcome=outcome).steps, gamma)
        requests = ((clock.requested, True, turn) for turn, clock in enumerate(self.clocks))
        rewards = ((clock.scored, False, turn) for turn, clock in enumerate(self.clocks))
        following, returns = dict.fromkeys(self.threads, outcome), [0.0] * len(self.turns)
        for _, is_request, turn in sorted((*requests, *rewards), reverse=True):
            if is_request:
                thread = self.threads[turn]
                returns[turn] = following[thread]
                following[thread] *= gamma
            elif reward := self.turns[turn]:
                following = {thread: value + reward for thread, value in following.items()}
        return returns


def sum_forward(
    values: Sequence[float | None], gamma: float, ends: Sequence[bool] | None = None
) -> list[float]:
    """Return discounted sums from each value on; a turn that ends no step is part of the next one."""
    following = 0.0
    sums: list[float] = []
    if ends is None:  # the usual case, which a test of each value would slow down
        for value in reversed(values):
            following = (value or 0.0) + gamma * following
            sums.append(following)
    else:
        for value, is_end in zip(reversed(values), reversed(ends), strict=True):
            following = (value or 0.0) + gamma * following if is_end else following
            sums.append(following)
    sums.reverse()
    return sums


def read(group: TrajectoryGroup) -> list[Scored]:
    """Return the rewards of each trajectory, or raise CreditError for the first that cannot be credited."""
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
    clocks = tuple(turn.clock for turn in trajectory.turns if turn.clock is not None)
    if clocks and len(clocks) != count:
        raise CreditError(f"trajectory {index} has clocks on {len(clocks)} of {count} turns; give all one")
    return Scored(
        turns=(None,) * count if rewards.turns is None else rewards.turns,
        outcome=rewards.score if rewards.turns is None else rewards.outcome,
        score=rewards.score or 0.0,
        threads=tuple(turn.thread for turn in trajectory.turns),
        clocks=clocks or None,
    )


def check_turns(values: Sequence[float | None], index: int, what: str) -> None:
    for turn, value in enumerate(values):
        if value is not None and not -LARGEST_REWARD <= value <= LARGEST_REWARD:
            _check(value, f"{what} of trajectory {index}, turn {turn + 1}")


def _check(value: float | None, name: str) -> None:
    if value is None or abs(value) <= LARGEST_REWARD:
        return
    if not math.isfinite(value):
        raise CreditError(f"{name} is {value}; it must be a finite number (None means not scored)")
    raise CreditError(f"{name} is {value:g}; sizes up to {LARGEST_REWARD:g} are possible")
