"""Means and deviations of short lists: float64, the same for every order, exact where nothing varies."""

import math
from collections.abc import Sequence

ROUNDING = 1e-12
"""Relative spread below which values count as equal: it is rounding, and a deviation would amplify it."""


def mean(values: Sequence[float]) -> float:
    """The correctly rounded sum over the count; exactly the common value when all are equal."""
    if _all_equal(values):
        return values[0]
    return math.fsum(values) / len(values)


def means_of_others(values: Sequence[float]) -> list[float]:
    """For each position, the mean of all other positions; at least two values."""
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
    low, high = min(values), max(values)
    return high - low > ROUNDING * max(abs(low), abs(high))


def centred(values: Sequence[float]) -> list[float]:
    """The values minus their mean; exactly 0 when they do not vary."""
    if not vary(values):
        return [0.0] * len(values)
    centre = mean(values)
    return [value - centre for value in values]


def z_scores(values: Sequence[float], *, ddof: int, eps: float) -> list[float]:
    """The values minus their mean over `deviation + eps`; exactly 0 when they do not vary."""
    if len(values) <= ddof or not vary(values):
        return [0.0] * len(values)
    unit = deviation(values, ddof) + eps
    return [value / unit for value in centred(values)]


def _all_equal(values: Sequence[float]) -> bool:
    return values.count(values[0]) == len(values)
