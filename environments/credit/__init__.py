"""Credit: a group of scored trajectories in, one advantage per turn out."""

from environments.credit.anchored import gigpo
from environments.credit.comparable import GroupRules, comparable, missing_outcome_of
from environments.credit.compare import CreditChange, TurnChange, credit_change
from environments.credit.crediting import credited, recorded_params, without_peer_of
from environments.credit.estimator_registry import (
    ESTIMATORS,
    Advantages,
    EstimatorSpec,
    describe,
    estimate,
    read_params,
    register_estimator,
    resolve,
)
from environments.credit.gae import turn_gae
from environments.credit.parameters import Param, Parameter, PerTurn
from environments.credit.presets import PRESETS
from environments.credit.returns import turn_return
from environments.credit.scalar import grpo, rloo
from environments.credit.segments import mt_grpo
from environments.credit.steps import process_supervision, progress

__all__ = [
    "ESTIMATORS",
    "PRESETS",
    "Advantages",
    "CreditChange",
    "EstimatorSpec",
    "GroupRules",
    "Param",
    "Parameter",
    "PerTurn",
    "TurnChange",
    "comparable",
    "credit_change",
    "credited",
    "describe",
    "estimate",
    "gigpo",
    "grpo",
    "missing_outcome_of",
    "mt_grpo",
    "process_supervision",
    "progress",
    "read_params",
    "recorded_params",
    "register_estimator",
    "resolve",
    "rloo",
    "turn_gae",
    "turn_return",
    "without_peer_of",
]
