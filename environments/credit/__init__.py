"""Credit: a group of scored trajectories in, one advantage per turn out."""

from environments.credit.parameters import Param, Parameter, PerTurn
from environments.credit.presets import PRESETS
from environments.credit.registry import (
    ESTIMATORS,
    Advantages,
    EstimatorSpec,
    describe,
    estimate,
    register_estimator,
    resolve,
)
from environments.credit.returns import turn_return
from environments.credit.scalar import grpo, rloo

__all__ = [
    "ESTIMATORS",
    "PRESETS",
    "Advantages",
    "EstimatorSpec",
    "Param",
    "Parameter",
    "PerTurn",
    "describe",
    "estimate",
    "grpo",
    "register_estimator",
    "resolve",
    "rloo",
    "turn_return",
]
