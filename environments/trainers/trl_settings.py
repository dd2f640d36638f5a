"""Settings of TRL's `GRPOConfig` with which a step is Σ A ∇log π, found in TRL 1.16's `_compute_loss`.

Each is tried on TRL's own code by the adapter's tests.
"""

from collections.abc import Mapping
from typing import Any

from environments.trainers.exact_settings import ExactSetting, refuse_inexact
from tools.errors import ConfigError

EXACT_LOSSES = ("dapo", "dr_grpo", "bnpo", "cispo", "luspo", "vespo")
"""They divide a sum over tokens by a number that all rows of a step share."""

_PLAYS_HERE = "is TRL's own generation, and Turnwise samples from the model's own distribution"

TRL = (
    ExactSetting(
        name="loss_type", exact=EXACT_LOSSES, why="divides each session by its own length, or is not known"
    ),
    ExactSetting(
        name="scale_rewards", exact=("none", False), why="divides rewards, whose place the advantages take"
    ),
    ExactSetting(
        name="importance_sampling_level",
        exact=("token", None),
        why="averages a ratio over a session's length",
    ),
    ExactSetting(name="num_iterations", exact=(1, None), why="trains on what older weights sampled"),
    ExactSetting(
        name="mask_truncated_completions",
        exact=(False, None),
        why="drops sessions that end otherwise than with a stop token, as after a tool's result "
        "(there is --env.mask_truncated)",
    ),
    ExactSetting(name="top_entropy_quantile", exact=(1.0, None), why="drops tokens"),
    ExactSetting(name="off_policy_mask_threshold", exact=(None,), why="drops tokens"),
    ExactSetting(
        name="eval_strategy",
        exact=("no", None),
        why="compares rollouts of evaluation items; `turnwise evaluate` does not",
    ),
    ExactSetting(name="world_size", exact=(1, None), why="rolls the same groups out in each process"),
    ExactSetting(
        name="temperature", exact=(1.0, None), why="takes the loss of another distribution than was sampled"
    ),
    ExactSetting(name="use_vllm", exact=(False, None), why=_PLAYS_HERE),
    ExactSetting(name="use_transformers_continuous_batching", exact=(False, None), why=_PLAYS_HERE),
    ExactSetting(name="top_p", exact=(1.0, None), why=_PLAYS_HERE),
    ExactSetting(name="top_k", exact=(0, None), why=_PLAYS_HERE),
    ExactSetting(name="min_p", exact=(None,), why=_PLAYS_HERE),
    ExactSetting(name="repetition_penalty", exact=(1.0, None), why=_PLAYS_HERE),
    ExactSetting(name="generation_kwargs", exact=(None, {}), why=_PLAYS_HERE),
    ExactSetting(name="chat_template_kwargs", exact=(None, {}), why=_PLAYS_HERE),
    ExactSetting(name="cache_implementation", exact=(None,), why=_PLAYS_HERE),
)


def refuse_inexact_trl(settings: Mapping[str, Any]) -> None:
    """Hold the fields of a `GRPOConfig`, and its `world_size`, to what leaves the step as it is.

    Raises:
        ConfigError: the first setting that would change it, in one line that says what to use.
    """
    refuse_inexact(settings, TRL)
    loss, accumulation = settings["loss_type"], settings["gradient_accumulation_steps"]
    generation = settings["steps_per_generation"]
    if accumulation % generation:
        raise ConfigError(
            f"steps_per_generation={generation} trains on what older weights sampled; leave it out: "
            f"it becomes gradient_accumulation_steps ({accumulation})"
        )
    in_parts = accumulation > 1 if loss == "bnpo" else accumulation != generation
    if in_parts and loss not in ("dr_grpo", "luspo"):
        raise ConfigError(
            f"gradient_accumulation_steps={accumulation} with {loss} divides each part of a step by its own "
            f"tokens; use dr_grpo" + (" or dapo" if loss == "bnpo" else ", or leave steps_per_generation out")
        )
    if loss == "dr_grpo" and settings.get("max_completion_length", 1) is None:
        raise ConfigError("max_completion_length=None with dr_grpo, which divides by it; use any number")
    if (settings.get("delta") or 2.0) <= 1.0:
        raise ConfigError(
            f"delta={settings['delta']} clips ratios that are 1; use more than 1, or leave it out"
        )
