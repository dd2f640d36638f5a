"""A rubric of weighted numbers, comparisons of siblings for `score_group`, and rewards for economy."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import permutations

from environments.trajectory import Trajectory
from tools.errors import ConfigError, RewardError

RESERVED = "group"
"""The part of an outcome that compares siblings (`score_group`); its own parts are `group.NAME`."""


class WeightedParts(dict[str, float]):
    """A reward: its parts by name, weighted, whose sum it is; `raw` has them as they were."""

    def __init__(self, parts: Mapping[str, float], raw: Mapping[str, float]) -> None:
        super().__init__(parts)
        self.raw = dict(raw)


class Rubric:
    """Named weights: `Rubric(answer=1.0, format=0.2)`, called with a number for each.

    `rubric(answer=exact_match(text, expected), format=has_text(text))` is a reward of named parts. The record
    keeps each part raw and weighted. A part of weight 0 is only looked at. `None` for a part: it is not
    scored, which is not 0; where no part is scored, the reward is `None`.
    """

    def __init__(self, /, **weights: float) -> None:
        """Weights by name; any text may be a name (`**{"too long": -1.0}`).

        Raises:
            ConfigError: there is no part, two names are shown alike, or a weight is no finite number.
        """
        if not weights:
            raise ConfigError(
                "a Rubric without parts scores nothing; give weights by name: Rubric(answer=1.0)"
            )
        shown: dict[str, str] = {}
        for name, weight in weights.items():
            alike = " ".join(name.split()).casefold()
            if not alike or alike.partition(".")[0] == RESERVED:
                raise ConfigError(f"a Rubric's part is called {name!r}; that name is {_why(alike)}")
            if alike in shown:
                raise ConfigError(
                    f"a Rubric has parts {shown[alike]!r} and {name!r}; no reader can tell them apart"
                )
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
                raise ConfigError(f"a Rubric's weight of {name!r} is {weight!r:.100}; give a finite number")
            shown[alike] = name
        self.weights: Mapping[str, float] = {name: float(weight) for name, weight in weights.items()}

    def __call__(self, /, **raw: float | None) -> WeightedParts | None:
        """The weighted parts.

        Raises:
            RewardError: a part is missing or unknown, or no finite number.
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


def _why(name: str) -> str:
    return "taken by score_group" if name else "no name"


def _finite(name: str, value: float) -> float:
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise RewardError(f"a Rubric's part {name!r} is {value!r:.100}; give a finite number, or None")
    return number


ALONE = 0.5
"""The share of one without others."""


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


def longest_context(trajectory: Trajectory) -> int:
    """Tokens of the longest context that the model saw before it sampled a turn, summaries included."""
    return max((turn.span.start for turn in trajectory.turns), default=0)


def sampled_tokens(trajectory: Trajectory) -> int:
    """Count the sampled tokens of all turns."""
    return sum(turn.span.end - turn.span.start for turn in trajectory.turns)


def context_efficiency(trajectory: Trajectory, *, correct: bool, well_formed: bool = True) -> float:
    """0 for a wrong answer or a bad format, else 1 / the longest context in tokens.

    It ranks right answers by how short the context was kept. The numbers are small: an estimator that
    divides by the deviation of a group scales them up to those of any other reward.
    Source: the reward of GRPO with context condensation, a fork of verl (c6829cf1, `trajectory_reward.py`).
    """
    return 1.0 / max(1, longest_context(trajectory)) if correct and well_formed else 0.0


def length_penalty(tokens: int, *, free: int, limit: int) -> float:
    """0 up to `free` tokens, then falling evenly to -1 at `limit`, and -1 beyond.

    Source: soft overlong punishment, "DAPO" (arXiv 2503.14476), equation 13; there `free` is L_max - L_cache.

    Raises:
        RewardError: `limit` is not above `free`.
    """
    if limit <= free:
        raise RewardError(f"length_penalty: limit {limit} is not above free {free}")
    return -min(1.0, max(0.0, (tokens - free) / (limit - free)))


def turn_cost(turns: int, *, each: float, free: int = 0) -> float:
    """`-each` for every turn beyond the first `free` ones."""
    return -each * max(0, turns - free)
