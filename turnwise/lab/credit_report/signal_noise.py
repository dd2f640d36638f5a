"""Signal and noise of the arms' gradients, their intervals, and comparisons of arms.

With g_i,e the gradient of arm e in group i of n, and r the unbiased reference:
U(e, f) = mean over i ≠ i' of ⟨g_i,e, g_i',f⟩, V(e) = Σ_i ‖g_i,e - ḡ_e‖² / (n - 1),
snr = max(0, U(e, r)) / √(U(r, r) V(e)), bias = 1 - U(e, r) / √(U(e, e) U(r, r)).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnwise.lab.credit_report.arms import Numbers

_LEVEL = 0.9
_LEAST_NOISE = 1e-12
"""Share of a gradient's mean square below which its variance is rounding."""
_MOST_DEGREES = 1000
Gradients = NDArray[np.float32]
"""[group][arm][feature]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    snr: float
    """The mean gradient's component along the unbiased one, over the noise of one group's gradient."""
    snr_low: float
    snr_high: float
    bias: float | None
    """1 - cosine to the unbiased gradient, which noise can raise above 1; None if unknown."""

    @property
    def groups_per_step(self) -> int | None:
        """Groups for a mean with as much signal as noise; None without a signal."""
        return math.ceil(1 / self.snr**2) if self.snr > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    arm: int
    times: float
    """Groups per step of the reference, divided by those of this arm: above 1, this arm needs fewer."""
    is_certain: bool
    """Whether the interval of ln(snr/snr_r), Holm-corrected, excludes 0."""
    more_groups: int | None
    """Further groups until the difference is certain, if the figures stay; None for never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    figures: tuple[Figures, ...]
    comparisons: tuple[Comparison, ...]
    """Arms that are multiples of the reference or of an earlier arm are left out."""
    is_signal: bool
    """Whether the reference's gradient exceeds its noise; otherwise no comparison is certain."""
    more_groups: int


def measure(gradients: Gradients, units: Sequence[int]) -> Measured:
    """Measure every arm, with intervals by the jackknife that deletes one of the groups' `units`.

    Arm 0 of `gradients` is the reference.
    """
    u_er, u_ee, v = _sums(gradients, np.asarray(units))
    count = len(u_er) - 1
    u_rr = u_er[:, :1]
    noise = np.sqrt(np.maximum(u_rr, 0.0) * v)
    signed = np.divide(u_er, noise, out=np.zeros_like(u_er), where=noise > 0)
    snr, spread = np.maximum(signed[0], 0.0), student(_LEVEL, count - 1) * _errors(signed)
    both = np.sqrt(np.maximum(u_ee, 0.0) * np.maximum(u_rr, 0.0))[0]
    cosine = np.divide(u_er[0], both, out=np.full(len(both), np.nan), where=both > 0)
    cosine[0] = 1.0 if u_rr[0, 0] > 0 else math.nan
    needed = student(_LEVEL, count - 1) * float(_errors(u_rr)[0])
    signal = float(u_rr[0, 0])
    is_signal = signal > needed and signal > 0
    return Measured(
        figures=tuple(
            Figures(
                snr=float(snr[arm]),
                snr_low=float(max(0.0, signed[0, arm] - spread[arm])),
                snr_high=float(max(0.0, signed[0, arm] + spread[arm])),
                bias=None if math.isnan(cosine[arm]) else float(1.0 - cosine[arm]),
            )
            for arm in range(len(snr))
        ),
        comparisons=_compare(signed, _distinct(gradients), is_signal=is_signal) if signal > 0 else (),
        is_signal=is_signal,
        more_groups=_more_groups(count, needed, signal) or count,
    )


def student(level: float, degrees: int) -> float:
    """Return the two-sided quantile of Student's t: |t| stays below it with probability `level`."""
    # t = √n tan θ, and θ has the density cos^(n-1).
    angles = np.linspace(0.0, math.pi / 2, 100_001)
    density = np.cos(angles[:-1] + angles[1] / 2) ** (min(degrees, _MOST_DEGREES) - 1)
    mass = np.concatenate([[0.0], np.cumsum(density)]) / density.sum()
    return math.sqrt(min(degrees, _MOST_DEGREES)) * math.tan(float(np.interp(level, mass, angles)))


def _sums(gradients: Gradients, units: NDArray[np.int64]) -> tuple[Numbers, Numbers, Numbers]:
    """Return U(e, r), U(e, e) and V(e), [replicate][arm]: all groups first, then without each unit."""
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
    pairs = counts * (counts - 1)
    least = _LEAST_NOISE * q_ee / counts
    v = np.maximum((q_ee - tt_ee / counts) / (counts - 1), least)
    return (tt_er - q_er) / pairs, (tt_ee - q_ee) / pairs, v


def _errors(replicates: Numbers) -> Numbers:
    left_out = replicates[1:]
    count = len(left_out)
    return np.sqrt((count - 1) / count * ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0))


def _distinct(gradients: Gradients) -> list[int]:
    """Return the arms that are neither zero nor a multiple of the reference or an earlier arm."""
    gram: Numbers = np.zeros((gradients.shape[1],) * 2)
    for group in gradients:
        gram += group @ group.T
    sizes: Numbers = np.sqrt(np.diagonal(gram))
    kept = [0]
    for arm in np.flatnonzero(sizes).tolist():
        if all(gram[arm, other] < (1 - 1e-6) * sizes[arm] * sizes[other] for other in kept):
            kept.append(arm)
    return kept[1:]


def _compare(signed: Numbers, arms: Sequence[int], *, is_signal: bool) -> tuple[Comparison, ...]:
    count = len(signed) - 1
    known = [arm for arm in arms if (signed[:, [0, arm]] > 0).all()]
    logs = np.log(signed[:, known]) - np.log(signed[:, :1]) if known else np.zeros((len(signed), 0))
    errors = np.maximum(_errors(logs), 1e-12)
    ratios = np.abs(logs[0]) / errors
    done: list[Comparison] = []
    is_certain = is_signal
    order: list[int] = np.argsort(-ratios).tolist()
    for rank, index in enumerate(order):
        quantile = student(1 - (1 - _LEVEL) / (len(arms) - rank), count - 1)
        is_certain = is_certain and bool(ratios[index] > quantile)
        more = _more_groups(count, quantile * float(errors[index]), abs(float(logs[0, index])))
        times = float(np.exp(np.clip(2 * logs[0, index], -700, 700)))
        done.append(Comparison(arm=known[index], times=times, is_certain=is_certain, more_groups=more))
    return tuple(done)


def _more_groups(count: int, needed: float, seen: float) -> int | None:
    """Return how many more groups shrink an interval's half width `needed` to `seen`."""
    if seen <= 0 or needed / seen > 1e6:
        return None
    return max(1, math.ceil(count * (needed / seen) ** 2) - count)
