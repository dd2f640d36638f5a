"""Estimators for plain arrays and groups, and parts for new ones. Importing it loads no environment."""

from turnwise.own_packages import refuse_foreign_packages

refuse_foreign_packages()

from environments.credit import (
    Param,
    Pool,
    Term,
    credited_batch,
    estimate,
    minus_mean,
    minus_others,
    register_estimator,
)
from environments.credit.array_credit import token_advantages, turn_advantages, turn_ledger

__all__ = [
    "Param",
    "Pool",
    "Term",
    "credited_batch",
    "estimate",
    "minus_mean",
    "minus_others",
    "register_estimator",
    "token_advantages",
    "turn_advantages",
    "turn_ledger",
]
