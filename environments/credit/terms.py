"""Parts of advantages: values minus a baseline made of siblings' values.

Statistics are float64, independent of order, and exact where nothing varies.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

Advantages = list[list[float]]
"""`[trajectory][turn]`, in the group's order."""

Place = tuple[int, int | None]
"""(index of a trajectory, index of its turn or None for all turns)."""

Key = TypeVar("Key")

ROUNDING = 1e-12
"""Relative spread below which values count as equal: it is rounding."""


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
        places = [
            (index, turn)
            for index, row in enumerate(rows)
            for turn, value in enumerate(row)
            if value is not None
        ]
        return cls(places, [value for row in rows for value in row if value is not None])

    @cached_property
    def spread(self) -> float | None:
        return deviation(self.values, 1) if len(self.values) > 1 else None

    def without(self, trajectory: int) -> "Pool":
        return self.grouped_by([index == trajectory for index, _ in self.places]).get(False, Pool((), ()))

    def grouped_by(self, keys: Iterable[Key | None]) -> "dict[Key, Pool]":
        """Return the values with equal keys, one key per value; those without a key are left out."""
        members: defaultdict[Key, tuple[list[Place], list[float]]] = defaultdict(lambda: ([], []))
        for key, place, value in zip(keys, self.places, self.values, strict=True):
            if key is None:
                continue
            places, values = members[key]
            places.append(place)
            values.append(value)
        return {key: Pool(places, values) for key, (places, values) in members.items()}

    def averaged_by(self, keys: Sequence[Hashable]) -> "Pool":
        """Return this pool with means for values: each value becomes the mean of those that share its key."""
        means = {key: mean(pool.values) for key, pool in self.grouped_by(keys).items()}
        return Pool(self.places, [means[key] for key in keys])


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A comparison: each value adds `weight * (value - baseline) / divisor` to its turn's advantage.

    A value of a whole trajectory counts for all of its turns.
    """

    name: str
    """The compared quantity: `return`, `score`, `outcome`, …"""
    values: Pool
    baselines: Sequence[float] | None = None
    """One per value, or None to subtract nothing."""
    divisor: float | None = None
    weight: float = 1.0
    exact: Sequence[float] | None = None
    """Values minus baselines, where computing that difference would lose digits."""
    pool: Pool | None = None
    leaves_own_out: bool = False
    """Whether a baseline uses the other trajectories' values only."""
    has_no_peer: bool = False
    """Whether values are raw because no sibling has a comparable one."""
    is_return: bool = False
    """Whether values include the discounted rewards that follow."""
    note: str = ""

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
        """Return the term with the values at `positions` alone, assigned to `places`."""
        values, baselines, exact = self.values.values, self.baselines, self.exact
        return replace(
            self,
            values=Pool(places, [values[each] for each in positions]),
            baselines=None if baselines is None else [baselines[each] for each in positions],
            exact=None if exact is None else [exact[each] for each in positions],
        )


Part = tuple[Term, int, float]
"""(term, position of a turn's value in it, what it adds to the turn's advantage)."""


def add_up(terms: Iterable[Term], turns: Sequence[int]) -> Advantages:
    rows = [[0.0] * count for count in turns]
    for term in terms:
        for (index, turn), difference in zip(term.values.places, term.differences(), strict=True):
            if turn is None:
                rows[index] = [each + difference for each in rows[index]]
            else:
                rows[index][turn] += difference
    return rows


def by_turn(terms: Iterable[Term], turns: Sequence[int]) -> list[list[list[Part]]]:
    rows: list[list[list[Part]]] = [[[] for _ in range(count)] for count in turns]
    for term in terms:
        for position, difference in enumerate(term.differences()):
            index, turn = term.values.places[position]
            for parts in rows[index] if turn is None else (rows[index][turn],):
                parts.append((term, position, difference))
    return rows


# --- comparisons ---------------------------------------------------------------------------------------


def minus_others(name: str, pool: Pool, *, is_return: bool = False) -> Term:
    """Subtract from each value the mean of the others; a single value stays raw."""
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
    """Subtract the mean of a pool from values; exactly 0 if the pool does not vary.

    Args:
        name: the compared quantity.
        values: the values.
        pool: by default `values`.
        ddof: the deviation divides by `len(pool.values) - ddof`.
        eps: added to the deviation that divides differences; None: not divided.
        weight: the term's weight.
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


def minus_mean_unless_single(
    name: str, values: Pool, *, pool: Pool | None = None, ddof: int = 0, eps: float | None = None
) -> Term:
    """Return `minus_mean`, but a value that is alone in its pool stays raw, divided by `1 + eps`."""
    if len((values if pool is None else pool).values) == 1:
        return Term(name=name, values=values, divisor=None if eps is None else 1.0 + eps, has_no_peer=True)
    return minus_mean(name, values, pool=pool, ddof=ddof, eps=eps)


def standardise(terms: Sequence[Term], turns: Sequence[int], *, centre: float, unit: float) -> list[Term]:
    """Return terms whose sum is the sum of `terms`, minus `centre`, divided by `unit`."""
    shift = Term(
        name="mean of all",
        values=Pool.of_turns([[0.0] * count for count in turns]),
        baselines=[centre] * sum(turns),
        divisor=unit,
    )
    return [*(replace(term, divisor=unit * (term.divisor or 1.0)) for term in terms), shift]


# --- statistics ----------------------------------------------------------------------------------------


def mean(values: Sequence[float]) -> float:
    if values.count(values[0]) == len(values):
        return values[0]
    return math.fsum(values) / len(values)


def means_of_others(values: Sequence[float]) -> list[float]:
    if not vary(values):
        return list(values)  # exactly 0 remains of equal values
    others = len(values) - 1
    without = [*values, 0.0]
    means: list[float] = []
    for value in values:
        without[-1] = -value  # fsum rounds once: the exact sum of the others
        means.append(math.fsum(without) / others)
    return means


def deviation(values: Sequence[float], ddof: int) -> float:
    centre = mean(values)
    return size_of([value - centre for value in values], len(values) - ddof)


def size_of(values: Sequence[float], count: int) -> float:
    """Return the root of the sum of squares over `count`, also if squares exceed a float's range."""
    largest = max(map(abs, values), default=0.0)
    if largest == 0.0:
        return 0.0
    return largest * math.sqrt(math.fsum((value / largest) ** 2 for value in values) / count)


def vary(values: Sequence[float]) -> bool:
    """Whether the values differ by more than rounding."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return high - low > ROUNDING * max(abs(low), abs(high))
