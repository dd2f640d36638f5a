"""The credit report of a record: a row for each arm, and sentences about what is certain."""

import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

from environments.trajectory import CreditedGroup
from turnwise.lab.credit_report.arms import DEFAULT_ARMS, REFERENCE, Arm, ReportData, read_for_report
from turnwise.lab.credit_report.gradients import model_gradients, proxy_gradients
from turnwise.lab.credit_report.signal_noise import MIN_UNITS, Comparison, Interval, count_units, measure

COLUMNS = ("beside γ = 1", "noise", "direction", "groups needed")
"""The titles of the columns of `CreditReport.table`."""
_FAR = 10
"""More than this many times as much is printed as "more than", without its number."""
_NOTHING = "\N{EN DASH}"
_DIRECTIONS = {1: "the same way", -1: "against", 0: "not known yet"}


class CreditRow(TypedDict):
    estimator: str
    gamma: float | None
    baseline: str | None
    noise: dict[str, Any] | None
    """The fields of an `Interval`, as `groups` and `groups_until` have; `Comparison` says of what."""
    direction: int | None
    """1: the same way; -1: against; 0: not known yet; None: there are too few groups."""
    groups: dict[str, Any] | None
    groups_until: dict[str, Any] | None


class CreditReport(TypedDict):
    gradients: str
    """Whose gradients are compared."""
    groups: int
    rows: list[CreditRow]
    table: list[list[str]]
    left_out: dict[str, str]
    """Arms that cannot apply or equal another one, with the reason."""
    sentences: list[str]
    """What the table means, in words. The first sentence says which arm needs fewer groups, if any."""


def credit_report(
    record: Iterable[CreditedGroup], model: Path | None = None, arms: Iterable[Arm] = DEFAULT_ARMS
) -> CreditReport:
    """Compare the gradients of `arms` with that of `turn_return` on the groups of a record.

    With `model`, the folder of the model that sampled them, gradients are measured; else the proxy's.

    Raises:
        CreditError: if the record has no tokens, or was not sampled by the model.
        ConfigError: if the model cannot be loaded.
    """
    data = read_for_report(record, arms)
    gradients = proxy_gradients(data) if model is None else model_gradients(data, model)
    units = [group.unit for group in data.groups]
    found = measure(gradients, units, [arm.in_rewards for arm in data.arms])
    left_out = {str(arm): reason for arm, reason in data.left_out.items()}
    compared: dict[Arm, Comparison | None] = {}
    for index, arm in enumerate(data.arms[1:], start=1):
        comparison = found.get(index)
        if isinstance(comparison, int):
            left_out[str(arm)] = f"the same as {data.arms[comparison]} here"
        elif comparison is None and found:
            left_out[str(arm)] = "gives no credit here"
        else:
            compared[arm] = comparison
    rows: list[CreditRow] = []
    for arm, each in compared.items():
        figures: Any = asdict(each) if each else dict.fromkeys(Comparison.__annotations__)
        rows.append(CreditRow(estimator=arm.estimator, gamma=arm.gamma, baseline=arm.baseline, **figures))
    known = {arm: each for arm, each in compared.items() if each}
    return CreditReport(
        gradients="a proxy made of the record's tokens" if model is None else "the model's gradients",
        groups=len(data.groups),
        rows=rows,
        table=[_texts(arm, each) for arm, each in compared.items()],
        left_out=left_out,
        sentences=_sentences(data, known, count_units(gradients, units)),
    )


def _texts(arm: Arm, comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return [str(arm), _NOTHING, _NOTHING, _NOTHING]
    noise, groups = (
        "not known yet" if each is None else _factor(each, less=less, more=more)
        for each, less, more in ((comparison.noise, "less", "more"), (comparison.groups, "fewer", "as many"))
    )
    return [str(arm), noise if arm.in_rewards else _NOTHING, _DIRECTIONS[comparison.direction], groups]


def _factor(interval: Interval, *, less: str, more: str) -> str:
    """Write a factor above 1, with its interval."""
    value, low, high, word = interval.value, interval.low, interval.high, less
    if value < 1:
        value, low, high, word = 1 / value, 1 / (high or 1), 1 / low if low else None, more
    if high is None or high > _FAR * value:
        return f"at least {_number(low)} × {word}"
    return f"{_number(value)} × {word}: {_number(low)} to {_number(high)}"


def _number(factor: float) -> str:
    return f"{factor:.2f}" if factor < 2 else f"{factor:.1f}" if factor < 10 else f"{factor:,.0f}"


def _sentences(data: ReportData, compared: dict[Arm, Comparison], units: int) -> list[str]:
    if units < MIN_UNITS:
        return [f"cannot tell: a statement needs {MIN_UNITS} items with credit, and {units} are here"]
    if not compared:
        return [f"nothing to choose: no arm differs from {REFERENCE} here"]
    known = sorted(
        (-each.groups.value, str(arm), each.groups) for arm, each in compared.items() if each.groups
    )
    open_ = [arm for arm, each in compared.items() if not each.groups and each.direction >= 0]
    sentences: list[str] = []
    if known and known[0][2].value > 1:
        sentences.append(_need(*known[0][1:]))
    elif open_:
        arm = min(open_, key=lambda arm: compared[arm].groups_until.value)
        more = _groups_until(compared[arm].groups_until, len(data.groups))
        sentences.append(f"cannot tell whether {arm} needs fewer or more groups than {REFERENCE}: {more}")
    else:
        sentences.append(f"no arm needs fewer groups than {REFERENCE} here")
    if known and known[-1][2].value < 1:
        sentences.append(_need(*known[-1][1:]))
    against = [str(arm) for arm, each in compared.items() if each.direction < 0]
    if against:
        sentences.append(f"against {REFERENCE}, which is unbiased, point here: {', '.join(against)}")
    return sentences


def _need(arm: str, groups: Interval) -> str:
    text = _factor(groups, less=f"fewer groups than {REFERENCE}", more=f"as many groups as {REFERENCE}")
    return f"{arm} needs {text}"


def _groups_until(until: Interval, groups: int) -> str:
    if until.low > _FAR * groups:
        return f"that takes more than {_FAR} × the {groups:,} groups here"
    high = until.high if until.high is not None and until.high <= _FAR * groups else None
    most = f"{math.ceil(high):,}" if high else f"more than {_FAR * groups:,}"
    return f"that takes {math.ceil(until.low):,} to {most} groups, and {groups:,} are here"
