"""Checks of the values that reward hooks return: finite, bounded, and one for each turn or sibling."""

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


def reward_list(given: Any, length: int, where: str, *, each: str) -> list[Reward | None]:
    # The keys of a mapping, or a set, would put credit in the wrong places.
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
    """Return the rewards of a hook for the acts, with `None` at turns of another kind.

    Raises:
        RewardError: if they are not a list with one entry for each of `trajectory.acts`.
        GroupRefused: if so, and there are turns of another kind. The agent decides whether there are any, so
            dropping only those siblings would bias the group.
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
    return (None, {}) if reward is None else number_and_parts(reward, where)


def number_and_parts(reward: Any, where: str) -> tuple[float, dict[str, float]]:
    if isinstance(reward, Mapping):
        if not reward:
            raise RewardError(
                f"{where}: {{}} is not a reward; give its components by name, or None where nothing is scored"
            )
        parts = {
            check_text(name, f"{where}: the name of a component"): _finite(
                part, f"{where}, component {name!r}"
            )
            for name, part in cast("Mapping[Any, Any]", reward).items()
        }
        try:
            total = math.fsum(parts.values())
        except OverflowError:
            total = math.inf
        return check_reward(total, f"{where}: the sum of components"), parts
    return check_reward(reward, where), {}


def check_reward(value: Any, where: str) -> float:
    number = _finite(value, where)
    if abs(number) > LARGEST_REWARD:
        raise RewardError(f"{where}: a reward is at most {LARGEST_REWARD:g} either way, got {value!r}")
    return number


def raw_parts(reward: Reward | None) -> Mapping[str, float]:
    return reward.raw if isinstance(reward, WeightedParts) else {}


def check_metrics(ctx: RolloutContext) -> dict[str, float]:
    where = where_of(ctx)
    return {
        check_text(name, f"{where}: the name of a metric"): _finite(
            value, f"{where}: metric {name!r}", "a metric is a finite number"
        )
        for name, value in ctx.metrics.items()
    }


def check_text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise RewardError(f"{where} is {value!r}; it must be text")
    if not is_utf8(value):
        raise RewardError(f"{where} is {value!r}, which is not UTF-8 text")
    return value


def where_of(ctx: RolloutContext) -> str:
    return f"environment {ctx.env!r}, item {ctx.item_id!r}"


def _finite(value: Any, where: str, wanted: str = "a reward is a finite number or None") -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise RewardError(f"{where}: {wanted}, got {value!r}") from None
    if isinstance(value, str | bytes) or not math.isfinite(number):
        raise RewardError(f"{where}: {wanted}, got {value!r}")
    return number + 0.0  # -0.1 * 0 is -0.0, which reads as a loss
