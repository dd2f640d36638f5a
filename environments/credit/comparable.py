"""Which siblings can be compared: nothing is known of one without an outcome, or without any reward."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import cast

from environments.dropped_sibling import dropped
from environments.trajectory import (
    LARGEST_REWARD,
    MissingOutcome,
    Rewards,
    Trajectory,
    TrajectoryGroup,
)
from tools.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules:
    """What a group must have to be credited."""

    min_trajectories: int = 0
    """Of several siblings, so many must be left."""
    missing_outcome: MissingOutcome = "refuse"


ANY_GROUP = GroupRules()
_STATED = "missing_outcome"
"""The component of an outcome that was stated, not given: a group that is credited again is the same."""


def comparable(group: TrajectoryGroup, rules: GroupRules) -> tuple[TrajectoryGroup, str | None]:
    """The group as its siblings can be compared, and why it has to fail where they cannot.

    A trajectory is incomparable when it has no outcome beside siblings with one, or, where none has an
    outcome, when nothing of it was scored beside siblings of which something was; or when `score_group` gave
    it no part beside siblings with one. It gets the stated outcome, or is dropped, which makes it one of the
    failures. A failure that refuses its group (`GroupRefused`) fails it.
    """
    if refusal := next((failure for failure in group.failures if failure.refuses_group), None):
        return group, f"sibling {refusal.sibling}: {refusal.error}"
    if group.error is not None:
        return group, group.error
    what, missing = _missing(group.trajectories)
    if missing and rules.missing_outcome == "refuse":
        names = ", ".join(str(group.trajectories[index].sibling) for index in missing)
        return group, f"{what}: siblings {names}; missing_outcome says what is to count, drop or a number"
    if missing and rules.missing_outcome == "drop":
        without = [dropped(group.trajectories[index], "RewardError", what) for index in missing]
        failures = sorted((*group.failures, *without), key=lambda failure: failure.sibling)
        left = tuple(each for index, each in enumerate(group.trajectories) if index not in missing)
        group = replace(group, trajectories=left, failures=tuple(failures))
    elif missing:
        stated = tuple(
            _with_outcome(each, float(rules.missing_outcome)) if index in missing else each
            for index, each in enumerate(group.trajectories)
        )
        group = replace(group, trajectories=stated)
    return group, _too_few(group, rules.min_trajectories)


def missing_outcome_of(value: object, name: str) -> MissingOutcome:
    """What `missing_outcome` was set to, checked; a number may be text.

    Raises:
        ConfigError: it is no such thing; `name` says what was set.
    """
    if value in ("refuse", "drop"):
        return cast("MissingOutcome", value)
    number = math.nan
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            number = float(value)
    if not abs(number) <= LARGEST_REWARD:
        raise ConfigError(f"{name} is {value!r:.100}; choose refuse, drop or a finite number")
    return number


def _missing(trajectories: Sequence[Trajectory]) -> tuple[str, list[int]]:
    """What is missing, and the positions of those that miss it; none where all of them do."""
    rewards = [Rewards(score=None) if each.rewards is None else each.rewards for each in trajectories]
    if any(each.outcome is not None and _STATED not in each.outcome_components for each in rewards):
        missing = [index for index, each in enumerate(rewards) if each.outcome is None]
        if missing:
            return "no outcome beside siblings with one", missing
    missing = [index for index, each in enumerate(rewards) if each.score is None]
    if 0 < len(missing) < len(rewards):
        return "nothing scored beside siblings with rewards", missing
    missing = [
        index
        for index, each in enumerate(rewards)
        if each.group is None and _STATED not in each.outcome_components
    ]
    has_parts = any(each.group is not None for each in rewards)
    return "no part from score_group beside siblings with one", missing if has_parts else []


def _too_few(group: TrajectoryGroup, min_trajectories: int) -> str | None:
    size = len(group.trajectories) + len(group.failures)
    needed = min(min_trajectories, size)
    if len(group.trajectories) >= needed:
        return None
    return f"{len(group.trajectories)} of {size} rollouts survived, at least {needed} are needed"


def _with_outcome(trajectory: Trajectory, outcome: float) -> Trajectory:
    """The trajectory with a stated outcome, or part of one, which its components name as such."""
    rewards = trajectory.rewards
    if rewards is None:
        return trajectory
    rewards = replace(
        rewards,
        outcome=(rewards.outcome or 0.0) + outcome,
        score=(rewards.score or 0.0) + outcome,
        outcome_components={**rewards.outcome_parts, _STATED: outcome},
    )
    return replace(trajectory, rewards=rewards)
