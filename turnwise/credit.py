"""Estimators: apply one, write one."""

from turnwise.own_packages import refuse_foreign_packages

refuse_foreign_packages()

from environments.credit import Param, Pool, Term, estimate, minus_mean, minus_others, register_estimator

__all__ = [
    "Param",
    "Pool",
    "Term",
    "estimate",
    "minus_mean",
    "minus_others",
    "register_estimator",
]
