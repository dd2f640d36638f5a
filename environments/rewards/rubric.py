"""A rubric of weighted numbers, comparisons of siblings for `score_group`, and rewards for economy."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import permutations

from environments.trajectory import Trajectory
from tools.errors import ConfigError, RewardError

RESERVED = "group"
"""The part of an outcome from `score_group`; its parts are named `group.NAME`."""


class WeightedParts(dict[str, float]):
    """A reward as weighted parts by name, and the unweighted parts in `raw`."""

    def __init__(self, parts: Mapping[str, float], raw: Mapping[str, float]) -> None:
        super().__init__(parts)
        self.raw = dict(raw)


class Rubric:
    """Named weights, such as `Rubric(answer=1.0, format=0.2)`, called with a number for each part.

    `rubric(answer=exact_match(text, expected), format=has_text(text))` is a reward of named parts. The record
    keeps each part raw and weighted. `None` leaves a part unscored, which differs from 0; if no part is
    scored, the reward is `None`.
    """

    def __init__(self, /, **weights: float) -> None:
        """Set the weights by name; any text may be a name (`**{"too long": -1.0}`).

        Raises:
            ConfigError: if there are no parts, two names look alike, or a weight is not a finite number.
        """
        if not weights:
            raise ConfigError(
                "a Rubric without parts scores nothing; give weights by name: Rubric(answer=1.0)"
            )
        shown: dict[str, str] = {}
        for name, weight in weights.items():
            alike = " ".join(name.split()).casefold()
            if not alike or alike.partition(".")[0] == RESERVED:
                why = "taken by score_group" if alike else "no name"
                raise ConfigError(f"a Rubric's part is called {name!r}; that name is {why}")
            if alike in shown:
                raise ConfigError(
                    f"a Rubric has parts {shown[alike]!r} and {name!r}; no reader can tell them apart"
                )
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
                raise ConfigError(f"a Rubric's weight of {name!r} is {weight!r:.100}; give a finite number")
            shown[alike] = name
        self.weights: Mapping[str, float] = {name: float(weight) for name, weight in weights.items()}

    def __call__(self, /, **raw: float | None) -> WeightedParts | None:
        """Return the weighted parts, or None if no part is scored.

        Raises:
            RewardError: if a part is missing, unknown or not a finite number.
        """
        if raw.keys() != self.weights.keys():
            raise RewardError(
                f"a Rubric of {', '.join(self.weights)} was given {', '.join(raw) or 'nothing'}; give each "
                f"of its parts, None for one that is not scored"
            )
        scored = {name: _finite(name, value) for name, value in raw.items() if value is not None}
        if not scored:
            return None
        return WeightedParts({name: self.weights[name] * value for name, value in scored.items()}, scored)


def _finite(name: str, value: float) -> float:
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise RewardError(f"a Rubric's part {name!r} is {value!r:.100}; give a finite number, or None")
    return number


def rank_rewards(values: Sequence[float]) -> list[float]:
    """Return per value the share of smaller ones among the others, from 0 to 1; an equal one counts half.

    Raises:
        RewardError: if a value is not a finite number.
    """
    if not all(map(math.isfinite, values)):
        raise RewardError(f"rank_rewards compares finite numbers, got {list(values)!r:.200}")
    return [
        _share([(value > other) + 0.5 * (value == other) for at, other in enumerate(values) if at != index])
        for index, value in enumerate(values)
    ]


def novelty_rewards(values: Sequence[object]) -> list[float]:
    """Return per value the share of the others that differ from it, from 0 to 1."""
    return [
        _share([float(value != other) for at, other in enumerate(values) if at != index])
        for index, value in enumerate(values)
    ]


async def pairwise_rewards(
    count: int, first_wins: Callable[[int, int], Awaitable[float]], *, at_once: int = 8
) -> list[float]:
    """Return per sibling the mean of its comparisons with each other one, from 0 to 1.

    Each pair is compared in both orders, since judges prefer a position.

    Args:
        count: Number of siblings.
        first_wins: `await first_wins(i, j)` returns 1 if sibling i is better, 0 if j is, 0.5 for a tie.
        at_once: Number of concurrent comparisons.

    Raises:
        RewardError: if a comparison is not a number from 0 to 1, or `at_once` is less than 1.
        Exception: if a comparison raised it; the others are cancelled.
    """
    if at_once < 1:
        raise RewardError(f"pairwise_rewards: at_once is {at_once}; give 1 or more")
    slots = asyncio.Semaphore(at_once)

    async def compare(first: int, second: int) -> float:
        async with slots:
            given = await first_wins(first, second)
        if not 0.0 <= given <= 1.0:
            raise RewardError(f"pairwise_rewards: a comparison is a number from 0 to 1, got {given!r:.100}")
        return float(given)

    pairs = list(permutations(range(count), 2))
    try:
        async with asyncio.TaskGroup() as comparing:
            tasks = [comparing.create_task(compare(*pair)) for pair in pairs]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    parts: list[list[float]] = [[] for _ in range(count)]
    for (first, second), task in zip(pairs, tasks, strict=True):
        parts[first].append(task.result())
        parts[second].append(1.0 - task.result())
    return [_share(each) for each in parts]


def _share(parts: Sequence[float]) -> float:
    return math.fsum(parts) / len(parts) if parts else 0.5


def longest_context(trajectory: Trajectory) -> int:
    """Return the tokens of the longest context that the model sampled a turn or summary from."""
    return max((turn.prompt_tokens for turn in trajectory.turns), default=0)


def sampled_tokens(trajectory: Trajectory) -> int:
    """Count the sampled tokens of all turns."""
    return sum(turn.sampled_tokens for turn in trajectory.turns)


def context_efficiency(trajectory: Trajectory, *, correct: bool, well_formed: bool = True) -> float:
    """Return 1 / the longest context in tokens, or 0 for a wrong answer or a bad format.

    The numbers are small; estimators that divide by the deviation of a group scale them.
    Source: the reward of GRPO with context condensation, a fork of verl (c6829cf1, `trajectory_reward.py`).
    """
    return 1.0 / max(1, longest_context(trajectory)) if correct and well_formed else 0.0


def length_penalty(tokens: int, *, free: int, limit: int) -> float:
    """Return 0 up to `free` tokens, then fall linearly to -1 at `limit` and beyond.

    Source: soft overlong punishment, "DAPO" (arXiv 2503.14476), equation 13; there `free` is L_max - L_cache.

    Raises:
        RewardError: if `limit` is not above `free`.
    """
    if limit <= free:
        raise RewardError(f"length_penalty: limit {limit} is not above free {free}")
    return -min(1.0, max(0.0, (tokens - free) / (limit - free)))


def turn_cost(turns: int, *, each: float, free: int = 0) -> float:
    """Return `-each` for every turn beyond the first `free` ones."""
    return -each * max(0, turns - free)
