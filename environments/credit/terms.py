"""What advantages are made of: values minus a baseline that a pool of siblings' values gives, and statistics.

The statistics are of short lists: float64, the same for every order, and exact where nothing varies.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

Advantages = list[list[float]]
"""One float per turn, ordered like the group's trajectories and their turns."""

Place = tuple[int, int | None]
"""A trajectory by its position in the group, and a turn of it by its number; `None`: the whole trajectory."""

Key = TypeVar("Key")

ROUNDING = 1e-12
"""Relative spread below which values count as equal: it is rounding, and a deviation would amplify it."""


@dataclass(frozen=True)
class Pool:
    """Values of turns or of whole trajectories, each with its place."""

    places: Sequence[Place]
    values: Sequence[float]

    @classmethod
    def of_trajectories(cls, values: Sequence[float]) -> "Pool":
        return cls([(index, None) for index in range(len(values))], values)

    @classmethod
    def of_turns(cls, rows: Sequence[Sequence[float | None]]) -> "Pool":
        """One value per turn, `None` left out."""
        places = [
            (index, turn)
            for index, row in enumerate(rows)
            for turn, value in enumerate(row)
            if value is not None
        ]
        return cls(places, [value for row in rows for value in row if value is not None])

    @cached_property
    def spread(self) -> float | None:
        """The sample deviation of the values; `None` with fewer than two."""
        return deviation(self.values, 1) if len(self.values) > 1 else None

    def without(self, trajectory: int) -> "Pool":
        return self.grouped_by([index == trajectory for index, _ in self.places]).get(False, Pool((), ()))

    def grouped_by(self, keys: Iterable[Key]) -> "dict[Key, Pool]":
        """The pool in parts of equal keys, of which each value has one."""
        members: defaultdict[Key, tuple[list[Place], list[float]]] = defaultdict(lambda: ([], []))
        for key, place, value in zip(keys, self.places, self.values, strict=True):
            places, values = members[key]
            places.append(place)
            values.append(value)
        return {key: Pool(places, values) for key, (places, values) in members.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A comparison that turns share: each gets `weight * (value - baseline) / divisor` of it.

    An advantage is the sum of its turn's terms. A value of a whole trajectory is given to all of its turns.
    """

    name: str
    """What is compared: `return`, `score`, `outcome`, …"""
    values: Pool
    baselines: Sequence[float] | None = None
    """One per value; `None`: nothing is subtracted."""
    divisor: float | None = None
    weight: float = 1.0
    exact: Sequence[float] | None = None
    """The values minus their baselines, where subtracting those sums would lose digits."""
    pool: Pool | None = None
    """What the baselines are made of."""
    leaves_own_out: bool = False
    """Whether a baseline is made of the other trajectories' part of the pool alone."""
    has_no_peer: bool = False
    """Whether the values are raw because no sibling has one to compare them with."""
    is_return: bool = False
    """Whether each value is the turn's reward and, discounted, what follows it."""
    note: str = ""
    """What the numbers do not show."""

    def differences(self) -> Sequence[float]:
        differences = self.values.values
        if self.exact is not None:
            differences = self.exact
        elif self.baselines is not None:
            differences = [value - level for value, level in zip(differences, self.baselines, strict=True)]
        if self.divisor is not None:
            differences = [each / self.divisor for each in differences]
        if self.weight != 1.0:
            differences = [self.weight * each for each in differences]
        return differences

    def moved(self, positions: Sequence[int], places: Sequence[Place]) -> "Term":
        """The term with the values of those positions alone, each given to another place."""
        values, baselines, exact = self.values.values, self.baselines, self.exact
        return replace(
            self,
            values=Pool(places, [values[each] for each in positions]),
            baselines=None if baselines is None else [baselines[each] for each in positions],
            exact=None if exact is None else [exact[each] for each in positions],
        )


Part = tuple[Term, int, float]
"""A term, the position of a turn's value in it, and what it adds to the turn's advantage."""


def added_up(terms: Iterable[Term], turns: Sequence[int]) -> Advantages:
    rows = [[0.0] * count for count in turns]
    for term in terms:
        for (index, turn), difference in zip(term.values.places, term.differences(), strict=True):
            if turn is None:
                rows[index] = [each + difference for each in rows[index]]
            else:
                rows[index][turn] += difference
    return rows


def by_turn(terms: Iterable[Term], turns: Sequence[int]) -> list[list[list[Part]]]:
    """The same sums, not yet added up: what each turn's advantage is made of."""
    rows: list[list[list[Part]]] = [[[] for _ in range(count)] for count in turns]
    for term in terms:
        for position, difference in enumerate(term.differences()):
            index, turn = term.values.places[position]
            for parts in rows[index] if turn is None else (rows[index][turn],):
                parts.append((term, position, difference))
    return rows


# --- comparisons ---------------------------------------------------------------------------------------


def minus_others(name: str, pool: Pool, *, is_return: bool = False) -> Term:
    """Each value of the pool minus the mean of the others; a lone value stays raw."""
    if len(pool.values) == 1:
        return Term(name=name, values=pool, has_no_peer=True, is_return=is_return)
    return Term(
        name=name,
        values=pool,
        baselines=means_of_others(pool.values),
        pool=pool,
        leaves_own_out=True,
        is_return=is_return,
    )


def minus_mean(
    name: str,
    values: Pool,
    *,
    pool: Pool | None = None,
    ddof: int = 0,
    eps: float | None = None,
    weight: float = 1.0,
) -> Term:
    """Values minus the mean of their pool, exactly 0 where that does not vary.

    Args:
        name: what is compared.
        values: the values.
        pool: what the mean is of; `None`: of the values.
        ddof: of the pool's deviation: `len(pool.values) - ddof` is in its denominator.
        eps: added to the deviation, which the differences are divided by; `None`: they are not.
        weight: of the term.
    """
    pool = values if pool is None else pool
    numbers = pool.values
    varied = vary(numbers) and not (eps is not None and len(numbers) <= ddof)
    return Term(
        name=name,
        values=values,
        baselines=[mean(numbers)] * len(values.values) if varied else values.values,
        divisor=deviation(numbers, ddof) + eps if varied and eps is not None else None,
        weight=weight,
        pool=pool,
    )


# --- statistics ----------------------------------------------------------------------------------------


def mean(values: Sequence[float]) -> float:
    if values.count(values[0]) == len(values):
        return values[0]
    return math.fsum(values) / len(values)


def means_of_others(values: Sequence[float]) -> list[float]:
    """For each position, the mean of all other positions; not of one value."""
    if not vary(values):
        return list(values)  # so that what is left of equal values is exactly 0
    others = len(values) - 1
    without = [*values, 0.0]
    means: list[float] = []
    for value in values:
        without[-1] = -value  # fsum rounds once, so this is the exact sum of the others
        means.append(math.fsum(without) / others)
    return means


def deviation(values: Sequence[float], ddof: int) -> float:
    """The standard deviation with `len(values) - ddof` in the denominator."""
    centre = mean(values)
    return size_of([value - centre for value in values], len(values) - ddof)


def size_of(values: Sequence[float], count: int) -> float:
    """The root of the sum of squares over `count`, also where the squares leave a float's range."""
    largest = max(map(abs, values), default=0.0)
    if largest == 0.0:
        return 0.0
    return largest * math.sqrt(math.fsum((value / largest) ** 2 for value in values) / count)


def vary(values: Sequence[float]) -> bool:
    """Whether the values differ by more than rounding."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return high - low > ROUNDING * max(abs(low), abs(high))
