"""Checks of what reward hooks give: finite, bounded, and one for each turn or sibling."""

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Any, cast

from environments.rewards.reward_context import Reward, RolloutContext
from environments.rewards.rubric import WeightedParts
from environments.trajectory import LARGEST_REWARD, Trajectory
from tools.errors import GroupRefused, RewardError
from tools.plain_text import is_utf8

_NO_LIST = (Mapping, Set, str, bytes, bytearray)
"""Iterable, but not in the order of turns, or not of rewards."""


def reward_list(given: Any, length: int, where: str, *, each: str) -> list[Reward | None]:
    """What a hook gave for several turns or siblings, one entry for each; user code may give anything.

    Raises:
        RewardError: it is no list, or one of another length.
    """
    # A mapping's keys or a set would be credit in the wrong places.
    if not isinstance(given, Iterable) or isinstance(given, _NO_LIST):
        raise RewardError(f"{where} gave {given!r}; give a list with one entry per {each}")
    entries = list(cast("Iterable[Reward | None]", given))
    if len(entries) != length:
        raise RewardError(
            f"{where} gave {len(entries)} rewards for {length} {each}s; give one entry per {each}, None for "
            f"one that is not scored"
        )
    return entries


def reward_per_turn(given: Any, trajectory: Trajectory, where: str) -> list[Reward | None]:
    """What a hook gave for each act, spread over all turns: `None` at those of another kind.

    Raises:
        RewardError: it is no list, or has not one entry for each of `trajectory.acts`.
        GroupRefused: likewise, where turns of another kind were counted among them: whether there are any is
            the agent's doing, so dropping those siblings alone would select on it.
    """
    summaries = len(trajectory.turns) - len(trajectory.acts)
    if not summaries:
        return reward_list(given, len(trajectory.acts), where, each="turn")
    where = f"{where} (loop over trajectory.acts: {summaries} of {len(trajectory.turns)} turns sum up)"
    try:
        rewards = iter(reward_list(given, len(trajectory.acts), where, each="act"))
    except RewardError as error:
        raise GroupRefused(str(error)) from error
    return [next(rewards) if turn.kind == "act" else None for turn in trajectory.turns]


def turn_values(given: Any, trajectory: Trajectory, where: str) -> Trajectory:
    """The trajectory with what a critic gave for each of its turns, summaries too.

    Raises:
        RewardError: one is no finite number.
        GroupRefused: it is no list of one for each, which may be so of some siblings alone.
    """
    length = len(trajectory.turns)
    values = list(cast("Iterable[Any]", given)) if isinstance(given, Iterable) else []
    if len(values) != length or isinstance(given, _NO_LIST):
        raise GroupRefused(f"{where} gave {given!r:.200}; give one number for each of the {length} turns")
    numbers = [
        _finite(value, f"{where}, turn {number}", "a value is a finite number")
        for number, value in enumerate(values, 1)
    ]
    turns = (replace(turn, value=value) for turn, value in zip(trajectory.turns, numbers, strict=True))
    return replace(trajectory, turns=tuple(turns))


def optional_reward(reward: Any, where: str) -> tuple[float | None, dict[str, float]]:
    """A reward as a finite float, with its named parts; `None` where nothing was scored.

    Raises:
        RewardError: it is something else.
    """
    return (None, {}) if reward is None else number_and_parts(reward, where)


def number_and_parts(reward: Any, where: str) -> tuple[float, dict[str, float]]:
    """A reward as a finite float, with its components by name.

    Raises:
        RewardError: it is none.
    """
    if isinstance(reward, Mapping):
        if not reward:
            raise RewardError(
                f"{where}: {{}} is no reward; give its components by name, or None where nothing is scored"
            )
        parts = {
            checked_text(name, f"{where}: the name of a component"): _finite(
                part, f"{where}, component {name!r}"
            )
            for name, part in cast("Mapping[Any, Any]", reward).items()
        }
        return bounded_reward(_sum(parts.values()), f"{where}: the sum of components"), parts
    return bounded_reward(reward, where), {}


def bounded_reward(value: Any, where: str) -> float:
    """A number that credit can be computed from, so that a reward gone wild costs its sibling alone.

    Raises:
        RewardError: it is none.
    """
    number = _finite(value, where)
    if abs(number) > LARGEST_REWARD:
        raise RewardError(f"{where}: a reward is at most {LARGEST_REWARD:g} either way, got {value!r}")
    return number


def raw_parts(reward: Reward | None) -> Mapping[str, float]:
    """The parts of a `Rubric`'s reward before they were weighted; of any other reward none."""
    return reward.raw if isinstance(reward, WeightedParts) else {}


def checked_metrics(ctx: RolloutContext) -> dict[str, float]:
    """The numbers that the environment noted, as the record can keep them.

    Raises:
        RewardError: one is no finite number, or its name is no text.
    """
    where = where_of(ctx)
    return {
        checked_text(name, f"{where}: the name of a metric"): _finite(
            value, f"{where}: metric {name!r}", "a metric is a finite number"
        )
        for name, value in ctx.metrics.items()
    }


def checked_text(value: object, where: str) -> str:
    """A string that can be written as UTF-8.

    Raises:
        RewardError: it is something else, or has a lone surrogate (part of an undecodable file name).
    """
    if not isinstance(value, str):
        raise RewardError(f"{where} is {value!r}; it must be text")
    if not is_utf8(value):
        raise RewardError(f"{where} is {value!r}, which is no UTF-8 text")
    return value


def where_of(ctx: RolloutContext) -> str:
    """Whose code it was, for messages."""
    return f"environment {ctx.env!r}, item {ctx.item_id!r}"


def _finite(value: Any, where: str, wanted: str = "a reward is a finite number or None") -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise RewardError(f"{where}: {wanted}, got {value!r}") from None
    if isinstance(value, str | bytes) or not math.isfinite(number):
        raise RewardError(f"{where}: {wanted}, got {value!r}")
    return number + 0.0  # -0.1 * 0 is -0.0, which reads as a loss


def _sum(parts: Iterable[float]) -> float:
    try:
        return math.fsum(parts)
    except OverflowError:
        return math.inf
