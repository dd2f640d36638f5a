"""The constants of the trainers' own estimators, so that a user can switch without changing numbers."""

from collections.abc import Mapping

from environments.credit.parameters import Value

PRESETS: Mapping[str, Mapping[str, Mapping[str, Value]]] = {
    "verl": {
        "grpo": {"norm_by_std": True, "ddof": 1, "eps": 1e-6, "singleton": "raw", "zero_variance": "zero"},
        "rloo": {"singleton": "raw"},
        "gigpo": {
            "gamma": 0.95,
            "step_weight": 1.0,
            "mode": "mean_norm",
            "episode_stats": "rows",
            "eps": 1e-6,
        },
    },
    "trl": {
        "grpo": {"norm_by_std": True, "ddof": 1, "eps": 1e-4, "singleton": "zero", "zero_variance": "zero"},
        "mt_grpo": {"segments": "two", "turn_coef": 1.0, "eps": 1e-4, "ddof": 1},
    },
    "rllm": {
        "grpo": {"norm_by_std": True, "ddof": 0, "eps": 1e-6, "singleton": "raw", "zero_variance": "zero"},
        "rloo": {"singleton": "raw"},
    },
    "torchtitan": {
        "grpo": {"norm_by_std": False, "ddof": 0, "eps": 1e-6, "singleton": "zero", "zero_variance": "zero"},
    },
    "tinker": {
        "grpo": {"norm_by_std": False, "singleton": "zero", "zero_variance": "zero"},
    },
    "skyrl": {
        "grpo": {"norm_by_std": True, "ddof": 1, "eps": 1e-6, "singleton": "raw", "zero_variance": "zero"},
        "rloo": {"singleton": "zero"},
    },
}
"""Preset, estimator, parameter: value. `verl` includes verl-agent, where GiGPO comes from; MT-GRPO's
reference is built on TRL."""
