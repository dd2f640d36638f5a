"""How a number differs between two policies that played the same items, and whether that is no noise."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from environments.learning.rollout_numbers import PART, Numbers

Direction = Literal["up", "down", "unclear"]
Played = Sequence[Mapping[str, Numbers]]
"""[seed] item → the means over its rollouts."""

_ERRORS = 2.0
"""Standard errors that a clear change is larger than."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Of one number, from one policy to another."""

    before: float
    after: float
    by_seed: tuple[float, ...]
    """The mean difference of each seed."""
    error: float
    """Standard error of the mean difference over items and seeds; infinite with fewer than two of them."""

    @property
    def direction(self) -> Direction:
        """`up` and `down` where the difference is larger than its noise, and no seed says otherwise."""
        size = abs(self.after - self.before)
        if size <= 1e-9 or size <= _ERRORS * self.error:
            return "unclear"
        if all(each > 0 for each in self.by_seed):
            return "up"
        return "down" if all(each < 0 for each in self.by_seed) else "unclear"

    @property
    def is_no_better(self) -> bool:
        """Whether it does not even lean upwards: by less than its noise."""
        return self.after - self.before <= (self.error if math.isfinite(self.error) else 0.0)


def changes(before: Played, after: Played) -> dict[str, Change]:
    """The change of each number, compared item by item and seed by seed; in no order.

    A number that only one side has of an item is left out there; a part is 0 where nobody earned it.
    """
    names = dict.fromkeys(
        name for played in (after, before) for seed in played for item in seed.values() for name in item
    )
    found = {name: _change(name, before, after) for name in names}
    return {name: change for name, change in found.items() if change is not None}


def _change(name: str, before: Played, after: Played) -> Change | None:
    pairs = [
        [
            (_value(start[item], name), _value(end[item], name))
            for item in start
            if item in end and (name.startswith(PART) or (name in start[item] and name in end[item]))
        ]
        for start, end in zip(before, after, strict=True)
    ]
    pairs = [seed for seed in pairs if seed]
    every = [pair for seed in pairs for pair in seed]
    if not every:
        return None
    differences = [end - start for start, end in every]
    mean = sum(differences) / len(every)
    squares = sum((each - mean) ** 2 for each in differences)
    known = len(every) > 1
    return Change(
        before=sum(start for start, _ in every) / len(every),
        after=sum(end for _, end in every) / len(every),
        by_seed=tuple(sum(end - start for start, end in seed) / len(seed) for seed in pairs),
        error=math.sqrt(squares / (len(every) - 1) / len(every)) if known else math.inf,
    )


def _value(numbers: Numbers, name: str) -> float:
    return numbers.get(name, 0.0)
