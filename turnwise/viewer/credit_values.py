"""What a page shows of the credit report: which estimator has the most signal on its rollouts."""

from typing import TypedDict


class CreditRow(TypedDict):
    """An arm of the report: an estimator with its γ and baseline."""

    estimator: str
    gamma: float | None
    baseline: str | None
    snr: float
    """Per group: the part of its gradient along the unbiased one, over its noise."""
    snr_low: float
    snr_high: float
    groups_per_step: int | None
    """⌈1/snr²⌉; `None`: no signal."""
    bias: float | None
    """1 - the cosine to the unbiased gradient; `None`: not known for noise."""
    tier: str
    """`proxy` or `measured`."""


class CreditReport(TypedDict):
    """All of it."""

    rows: list[CreditRow]
    groups: int
    sentences: list[str]
