"""Each arm's gradient beside the reference's: noise, direction, groups needed, and their intervals.

With g_i,e the gradient of arm e in group i of n, and r the reference, whose mean gradient is unbiased:
U(e) = mean over i ≠ i' of ⟨g_i,e, g_i',r⟩, V(e) = Σ_i ‖g_i,e - ḡ_e‖² / (n - 1), z(e) = U(e) / √V(e).
Noise is V, the direction is the sign of U(e), and e needs (z(e) / z(r))² × fewer groups than r. That this
ratio is not 1 is read from z(e) - z(r), whose errors stay symmetric where z(r) is close to 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from turnwise.lab.credit_report.arms import Numbers

MIN_UNITS = 8
"""With credit in fewer items than this, nothing is stated."""
_NOISE_LEVEL, _LEVEL = 0.99, 0.95
"""Joint confidence in all arms (Holm): in statements about noise, and in those about direction and groups."""
_POWER = 0.84
"""Normal quantile of a power of 80 %."""
_ROUNDING = 1e-12
"""Variances and errors below this share of their terms are rounding errors of float64."""
_TINY = 1e-300
"""Stands for a variance of 0, so that ratios and logarithms stay finite."""
_MOST_DEGREES = 1000
_SHIFTS = 8
"""Partners of each group whose products give their variance."""
Gradients = NDArray[np.float32]
"""[group][arm][feature]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    value: float
    low: float
    high: float | None
    """None: unbounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The certain differences of an arm from the reference; None or 0 where nothing is certain."""

    noise: Interval | None
    """Variance of the reference's gradient over that of this arm."""
    direction: int
    """1: points the same way; -1: against."""
    groups: Interval | None
    """Groups that the reference needs, over those that this arm needs."""
    groups_until: Interval
    """Groups with which `groups` is known with a probability of 80 %, at 50 % confidence."""


def measure(
    gradients: Gradients, units: Sequence[int], in_rewards: Sequence[bool]
) -> dict[int, Comparison | int]:
    """Compare each arm with arm 0, with intervals by the jackknife that deletes one of the groups' `units`.

    Noise is compared between arms whose advantages are `in_rewards`, the unit of rewards.

    Returns:
        By arm the comparison, or the earlier arm of which it is a multiple; an arm without a gradient is
        missing, and all are if arm 0 has none or fewer than `MIN_UNITS` units have one.
    """
    earlier = _find_multiples(gradients)
    if 0 not in earlier or count_units(gradients, units) < MIN_UNITS:
        return {}
    found: dict[int, Comparison | int] = {arm: first for arm, first in earlier.items() if arm != first}
    arms = [arm for arm, first in earlier.items() if 0 < arm == first]
    u, v = _sums(gradients, np.asarray(units))
    z, pairs = u / np.sqrt(v), _products(gradients)
    others = [arm for arm in arms if in_rewards[arm]]
    logs = np.log(v[:, :1] / v[:, others])
    noise = dict(zip(others, _estimate(logs, _NOISE_LEVEL), strict=True))
    direction = _estimate(u[:, arms], _LEVEL, pairs[:, arms])
    scaled = pairs / np.sqrt(v[0])
    difference = _estimate(z[:, arms] - z[:, :1], _LEVEL, scaled[:, arms] - scaled[:, :1])
    for arm, along, more in zip(arms, direction, difference, strict=True):
        less = noise.get(arm)
        parts = (along, more) if less is None else (along, more, less)
        is_known = all(each.is_certain for each in parts) and along.value > 0
        factor = _divide(z[:, arm], z[:, 0], more.quantile) if is_known else None
        untils = (each.until(len(units)) for each in parts)
        found[arm] = Comparison(
            noise=less.exponential() if less is not None and less.is_certain else None,
            direction=int(math.copysign(along.is_certain, along.value)),
            groups=factor,
            groups_until=max(untils, key=lambda each: each.value),
        )
    return found


def count_units(gradients: Gradients, units: Sequence[int]) -> int:
    """Count the units of which a group has a gradient."""
    return len({unit for unit, group in zip(units, gradients, strict=True) if group.any()})


@cache
def student(level: float, degrees: int) -> float:
    """Return the two-sided quantile of Student's t: |t| stays below it with probability `level`."""
    degrees = min(degrees, _MOST_DEGREES)
    # t = √n tan θ, and θ has the density cos^(n-1).
    angles = np.linspace(0.0, math.pi / 2, 100_001)
    density = np.cos(angles[:-1] + angles[1] / 2) ** (degrees - 1)
    mass = np.concatenate([[0.0], np.cumsum(density)]) / density.sum()
    return math.sqrt(degrees) * math.tan(float(np.interp(level, mass, angles)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Estimate:
    value: float
    error: float
    quantile: float
    quartile: float
    pair_variance: float | None
    """Variance of the products of two groups, of which the value is a mean; None for other estimates."""
    is_certain: bool
    """Whether the interval, Holm-corrected over the arms, excludes 0."""

    def exponential(self) -> Interval:
        half = self.quantile * self.error
        return Interval(
            value=math.exp(self.value), low=math.exp(self.value - half), high=math.exp(self.value + half)
        )

    def until(self, groups: int) -> Interval:
        """Return how many groups give the interval an 80 % chance to exclude 0."""
        # error² = first / n + second / n²: a mean of products of two groups has both parts (Hoeffding).
        scaled, second = groups * self.error**2, 0.0
        if self.pair_variance is not None:
            second = 4 * (2 * self.pair_variance - scaled) / (2 - 4 / groups)
            second = min(max(second, 0.0), groups * scaled)
        first, square = scaled - second / groups, (self.quantile + _POWER) ** 2

        def solve(size: float) -> float:
            root = math.sqrt((square * first) ** 2 + 4 * size**2 * square * second)
            return (square * first + root) / (2 * size**2)

        size, half = abs(self.value), self.quartile * self.error
        return Interval(
            value=solve(max(size, _ROUNDING * self.error)),
            low=solve(size + half),
            high=solve(size - half) if size > half else None,
        )


def _estimate(replicates: Numbers, level: float, pairs: Numbers | None = None) -> list[_Estimate]:
    """Return an estimate for each column of [replicate][arm]; the first replicate is the whole record."""
    values = replicates[0]
    sizes = np.abs(values)
    errors = np.maximum(np.sqrt(_covariance(replicates, replicates)), _ROUNDING * (sizes + _ROUNDING))
    order: list[int] = np.argsort(-sizes / errors).tolist()
    degrees, is_certain = len(replicates) - 2, True
    found: dict[int, _Estimate] = {}
    for rank, arm in enumerate(order):
        quantile = student(1 - (1 - level) / (len(order) - rank), degrees)
        is_certain = is_certain and bool(sizes[arm] > quantile * errors[arm])
        found[arm] = _Estimate(
            value=float(values[arm]),
            error=float(errors[arm]),
            quantile=quantile,
            quartile=student(0.5, degrees),
            pair_variance=None if pairs is None else float(pairs[:, arm].var()),
            is_certain=is_certain,
        )
    return [found[arm] for arm in range(len(order))]


def _divide(above: Numbers, below: Numbers, quantile: float) -> Interval | None:
    """Return (above / below)² with Fieller's interval: the ratios at which above - ratio · below may be 0."""
    x, y, square = float(above[0]), float(below[0]), quantile**2
    a = y * y - square * float(_covariance(below, below))
    b = x * y - square * float(_covariance(above, below))
    c = x * x - square * float(_covariance(above, above))
    root = math.sqrt(max(0.0, b * b - a * c))
    if a == 0 or (a < 0 and b + root < 0):  # the second: two intervals of positive ratios
        return None
    # a < 0: `below` may be 0, so the ratio has no upper bound.
    low, high = (b - root) / a, (b + root) / a if a > 0 else None
    return Interval(
        value=(x / y) ** 2 if y > 0 else low**2,
        low=max(0.0, low) ** 2,
        high=None if high is None else high**2,
    )


def _sums(gradients: Gradients, units: NDArray[np.int64]) -> tuple[Numbers, Numbers]:
    """Return U(e) and V(e), [replicate][arm]: all groups first, then without each unit."""
    arms = gradients.shape[1]
    names = np.unique(units)
    total = gradients.sum(axis=0, dtype=np.float64)
    shape = (len(names) + 1, arms)
    counts = np.zeros((len(names) + 1, 1))
    tt_er, tt_ee, q_er, q_ee = (np.zeros(shape) for _ in range(4))
    counts[0], tt_er[0], tt_ee[0] = len(units), total @ total[0], np.einsum("ad,ad->a", total, total)
    for index, name in enumerate(names, start=1):
        groups = gradients[units == name].astype(np.float64)
        counts[index] = len(units) - len(groups)
        left = total - groups.sum(axis=0)
        tt_er[index], tt_ee[index] = left @ left[0], np.einsum("ad,ad->a", left, left)
        q_er[index] = np.einsum("gad,gd->a", groups, groups[:, 0])
        q_ee[index] = np.einsum("gad,gad->a", groups, groups)
    for q in (q_er, q_ee):
        q[0] = q[1:].sum(axis=0)
        q[1:] = q[0] - q[1:]
    v = (q_ee - tt_ee / counts) / (counts - 1)
    least = np.maximum(_ROUNDING * q_ee[0] / len(units), _TINY)
    return (tt_er - q_er) / (counts * (counts - 1)), np.maximum(v, least)


def _products(gradients: Gradients) -> Numbers:
    """Return products of arms' gradients with the reference's in another group, [pair of groups][arm]."""
    products: list[Numbers] = []
    for shift in range(1, min(_SHIFTS, len(gradients) - 1) + 1):
        there, back = (
            np.einsum("gad,gd->ga", gradients, np.roll(gradients[:, 0], by, axis=0)) for by in (shift, -shift)
        )
        products.append((there + np.roll(back, shift, axis=0)) / 2)
    return np.concatenate(products).astype(np.float64)


def _covariance(one: Numbers, other: Numbers) -> Numbers:
    """Return the jackknife's covariance of two estimates, [replicate] or [replicate][arm]."""
    count = len(one) - 1
    left, right = one[1:] - one[1:].mean(axis=0), other[1:] - other[1:].mean(axis=0)
    return (count - 1) / count * (left * right).sum(axis=0)


def _find_multiples(gradients: Gradients) -> dict[int, int]:
    """Return for each arm that is not 0 the first arm of which it is a multiple, itself if there is none."""
    gram: Numbers = np.zeros((gradients.shape[1],) * 2)
    for group in gradients:
        gram += group @ group.T
    sizes: Numbers = np.sqrt(np.diagonal(gram))
    earlier: dict[int, int] = {}
    for arm in np.flatnonzero(sizes).tolist():
        kept = (each for each, first in earlier.items() if each == first)
        near = (other for other in kept if gram[arm, other] >= (1 - 1e-6) * sizes[arm] * sizes[other])
        earlier[arm] = next(near, arm)
    return earlier
