"""Rewards that compare siblings, for `score_group`: by a number that each has, or pair by pair."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from itertools import permutations

from tools.errors import RewardError

ALONE = 0.5
"""The share of one that has nobody to be compared with."""


def rank_rewards(values: Sequence[float]) -> list[float]:
    """Per value, the share of the others that are smaller; an equal one counts half. 0 to 1, 0.5 on average.

    Raises:
        RewardError: a value is no finite number.
    """
    if not all(map(math.isfinite, values)):
        raise RewardError(f"rank_rewards compares finite numbers, got {list(values)!r:.200}")
    return [
        _share([(value > other) + 0.5 * (value == other) for at, other in enumerate(values) if at != index])
        for index, value in enumerate(values)
    ]


def novelty_rewards(values: Sequence[object]) -> list[float]:
    """Per value, the share of the others that are not equal to it, from 0 to 1."""
    return [
        _share([float(value != other) for at, other in enumerate(values) if at != index])
        for index, value in enumerate(values)
    ]


async def pairwise_rewards(
    count: int, first_wins: Callable[[int, int], Awaitable[float]], *, at_once: int = 8
) -> list[float]:
    """Per sibling, the mean of its comparisons with each other one. 0 to 1, 0.5 on average.

    Each pair is compared twice, once in each order, since judges prefer a place.

    Args:
        count: siblings.
        first_wins: `await first_wins(i, j)`, from 0 to 1: 1 where sibling i is better, 0.5 where neither is.
        at_once: comparisons that go on side by side.

    Raises:
        RewardError: a comparison gave something else, or none may go on.
        Exception: the first that a comparison raised; the others are cancelled.
    """
    if at_once < 1:
        raise RewardError(f"pairwise_rewards: at_once is {at_once}; give 1 or more")
    slots = asyncio.Semaphore(at_once)

    async def compared(first: int, second: int) -> float:
        async with slots:
            given = await first_wins(first, second)
        if not 0.0 <= given <= 1.0:
            raise RewardError(f"pairwise_rewards: a comparison is a number from 0 to 1, got {given!r:.100}")
        return float(given)

    pairs = list(permutations(range(count), 2))
    try:
        async with asyncio.TaskGroup() as comparing:
            tasks = [comparing.create_task(compared(*pair)) for pair in pairs]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # as if it had been asked here
    wins = {pair: task.result() for pair, task in zip(pairs, tasks, strict=True)}
    return [
        _share(
            [
                part
                for other in range(count)
                if other != index
                for part in (wins[index, other], 1.0 - wins[other, index])
            ]
        )
        for index in range(count)
    ]


def _share(parts: Sequence[float]) -> float:
    return math.fsum(parts) / len(parts) if parts else ALONE
