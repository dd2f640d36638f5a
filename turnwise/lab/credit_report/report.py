"""The credit report of a record: one row per arm, and sentences about the certain differences."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TypedDict

from environments.trajectory import CreditedGroup
from turnwise.lab.credit_report.arms import REFERENCE, Arm, ReportData, read_for_report
from turnwise.lab.credit_report.gradients import model_gradients, proxy_gradients
from turnwise.lab.credit_report.signal_noise import Comparison, Measured, measure

_LEAST_TIMES = 1.05
"""A smaller ratio of groups is not reported, even if it is certain: it would read 1.0 ×."""


class CreditRow(TypedDict):
    estimator: str
    gamma: float | None
    baseline: str | None
    snr: float
    """Signal to noise per group, as in `signal_noise`."""
    snr_low: float
    snr_high: float
    groups_per_step: int | None
    """⌈1/snr²⌉; None without a signal."""
    bias: float | None
    """1 - cosine to the unbiased gradient; None if noise hides it."""
    tier: str


class CreditReport(TypedDict):
    rows: list[CreditRow]
    groups: int
    sentences: list[str]


def credit_report(record: Iterable[CreditedGroup], model: Path | None = None) -> CreditReport:
    """Measure the signal and noise of every estimator, γ and baseline on the groups of a record.

    With `model`, the folder of the model that sampled them, gradients are measured; else the proxy's.

    Raises:
        CreditError: if the record has no tokens or too few items, or was not sampled by the model.
        ConfigError: if the model cannot be loaded.
    """
    data = read_for_report(record)
    gradients = proxy_gradients(data) if model is None else model_gradients(data, model)
    measured = measure(gradients, [group.unit for group in data.groups])
    rows = [
        CreditRow(
            estimator=arm.estimator,
            gamma=arm.gamma,
            baseline=arm.baseline,
            **asdict(figures),
            groups_per_step=figures.groups_per_step,
            tier="proxy" if model is None else "measured",
        )
        for arm, figures in zip(data.arms, measured.figures, strict=True)
    ]
    return CreditReport(rows=rows, groups=len(data.groups), sentences=_sentences(data, measured))


def _sentences(data: ReportData, measured: Measured) -> list[str]:
    if not measured.is_signal:
        more = measured.more_groups
        return [f"cannot tell: {more:,} groups more; {REFERENCE} has no gradient above its noise here"]

    def rank(comparison: Comparison) -> tuple[bool, float]:
        # Users choose γ first, so another estimator is named only if no γ is certain.
        return _is_near(data.arms[comparison.arm]), comparison.times

    certain = [each for each in measured.comparisons if each.is_certain]
    better = max((each for each in certain if each.times >= _LEAST_TIMES), key=rank, default=None)
    worse = min(
        (each for each in certain if each.times <= 1 / _LEAST_TIMES),
        key=lambda each: each.times,
        default=None,
    )
    sentences = [_sentence(data, measured, each) for each in (better, worse) if each is not None]
    unclear = [each for each in measured.comparisons if not each.is_certain and each.more_groups is not None]
    if better is None and unclear:
        best = max(unclear, key=rank)
        name = _name(data.arms[best.arm])
        sentences.append(
            f"cannot tell: {best.more_groups:,} groups more, whether {name} differs from γ = 1 here"
        )
    return sentences or ["cannot tell: no estimator differs enough from γ = 1 here"]


def _sentence(data: ReportData, measured: Measured, comparison: Comparison) -> str:
    times = comparison.times
    factor = max(times, 1 / times)
    shown = f"{factor:.1f}" if factor < 3 else f"{factor:,.0f}"
    needs = f"{shown} × fewer groups than" if times > 1 else f"{shown} × as many groups as"
    bias = measured.figures[comparison.arm].bias
    bend = "" if bias is None else f"; it bends the gradient by {max(0.0, 100 * bias):.0f} %"
    return f"{_name(data.arms[comparison.arm])} needs {needs} γ = 1 here{bend}"


def _name(arm: Arm) -> str:
    return f"γ = {arm.gamma:g}" if _is_near(arm) else str(arm)


def _is_near(arm: Arm) -> bool:
    return (arm.estimator, arm.baseline) == (REFERENCE.estimator, REFERENCE.baseline)
