"""Which settings of TRL's `GRPOConfig` leave Σ A ∇log π as it is, found in TRL 1.16's `_compute_loss`."""

from collections.abc import Callable, Mapping
from typing import Any

from environments.trainers.setting_rules import Rule, Settings, refuse_broken

EXACT_LOSSES = ("dapo", "dr_grpo", "bnpo", "cispo", "luspo", "vespo")
"""They divide a sum over tokens by a number that all rows of a step share."""


def _is_not(name: str, *allowed: Any) -> Callable[[Settings], bool]:
    return lambda settings: settings.get(name, allowed[0]) not in allowed


def _unevenly_accumulated(settings: Settings) -> bool:
    """Whether one optimiser step sums parts that are each divided by their own count of tokens."""
    accumulation = settings["gradient_accumulation_steps"]
    if settings["loss_type"] == "bnpo":
        return accumulation > 1
    shares_counts = settings["loss_type"] in ("dapo", "cispo", "vespo")
    return shares_counts and accumulation != settings["steps_per_generation"]


def _clips_from_above(settings: Settings) -> bool:
    """Whether a ratio of 1 is clipped; `cispo` takes the clipped ratio for a factor."""
    above = settings.get("epsilon_high")
    if above is None:
        return False
    return not (above > 0.0 if settings["loss_type"] == "cispo" else above >= 0.0)


_UNUSED: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1.0,),
    "top_k": (0, None),
    "min_p": (None,),
    "repetition_penalty": (1.0,),
    "generation_kwargs": (None, {}),
    "chat_template_kwargs": (None, {}),
    "cache_implementation": (None,),
    "use_transformers_continuous_batching": (False,),
}
"""Settings of TRL's own generation, with what they are where nobody set them."""


def _unused(name: str) -> Rule:
    return Rule(
        setting=name,
        wrong=_is_not(name, *_UNUSED[name]),
        why="Turnwise samples from the model's own distribution, and takes no notice of it",
        instead="leave it out",
    )


RULES = (
    Rule(
        setting="loss_type",
        wrong=_is_not("loss_type", *EXACT_LOSSES),
        why="it divides each session by its own length",
        instead='use "dapo" or "dr_grpo"',
    ),
    Rule(
        setting="scale_rewards",
        wrong=_is_not("scale_rewards", "none", False),
        why="advantages come from Turnwise, and are not divided by a deviation",
        instead='use "none"',
    ),
    Rule(
        setting="importance_sampling_level",
        wrong=_is_not("importance_sampling_level", "token"),
        why="it averages a ratio over a session's length",
        instead='use "token"',
    ),
    Rule(
        setting="num_iterations",
        wrong=_is_not("num_iterations", 1),
        why="from the second pass on, ratios are clipped and the step is another",
        instead="use 1",
    ),
    Rule(
        setting="steps_per_generation",
        wrong=lambda settings: bool(
            settings["gradient_accumulation_steps"] % (settings["steps_per_generation"] or 1)
        ),
        why="later steps would train on what older weights sampled",
        instead="leave it out: it becomes gradient_accumulation_steps",
    ),
    Rule(
        setting="gradient_accumulation_steps",
        wrong=_unevenly_accumulated,
        why="this loss divides each part of a step by the part's own tokens",
        instead='use loss_type "dr_grpo", or "dapo" with steps_per_generation left out',
    ),
    Rule(
        setting="max_completion_length",
        wrong=lambda settings: (
            settings["loss_type"] == "dr_grpo" and not settings.get("max_completion_length", 1)
        ),
        why="dr_grpo divides by it",
        instead="use any number: it cuts nothing here",
    ),
    Rule(
        setting="mask_truncated_completions",
        wrong=_is_not("mask_truncated_completions", False),
        why="it drops each session that ends otherwise than with a stop token, as after a tool's result",
        instead="leave it out, and see --env.mask_truncated",
    ),
    Rule(
        setting="top_entropy_quantile",
        wrong=lambda settings: settings.get("top_entropy_quantile", 1.0) < 1.0,
        why="it drops tokens",
        instead="use 1.0",
    ),
    Rule(
        setting="off_policy_mask_threshold",
        wrong=_is_not("off_policy_mask_threshold", None),
        why="it drops sessions",
        instead="leave it out",
    ),
    Rule(
        setting="epsilon",
        wrong=lambda settings: not settings.get("epsilon", 0.2) >= 0.0,
        why="it clips ratios that are 1",
        instead="use 0.2",
    ),
    Rule(
        setting="epsilon_high",
        wrong=_clips_from_above,
        why="it clips ratios that are 1, or turns the step round",
        instead="use more than 0, or leave it out",
    ),
    Rule(
        setting="neftune_noise_alpha",
        wrong=lambda settings: bool(settings.get("neftune_noise_alpha")),
        why="the loss would be of a model with noise, which is not the one that sampled",
        instead="leave it out",
    ),
    Rule(
        setting="delta",
        wrong=lambda settings: (settings.get("delta") or 2.0) <= 1.0,
        why="it clips ratios that are 1",
        instead="use more than 1, or leave it out",
    ),
    Rule(
        setting="temperature",
        wrong=_is_not("temperature", 1.0),
        why="the loss would be of another distribution than what was sampled",
        instead="use 1.0",
    ),
    Rule(
        setting="use_vllm",
        wrong=_is_not("use_vllm", False),
        why="Turnwise samples from the trainer's own model, in its process",
        instead="leave it out",
    ),
    Rule(
        setting="eval_strategy",
        wrong=lambda settings: str(settings.get("eval_strategy", "no")).rpartition(".")[2].lower() != "no",
        why="TRL would compare rollouts of evaluation items",
        instead='use "no", and `turnwise evaluate` on what was saved',
    ),
    Rule(
        setting="eval_on_start",
        wrong=lambda settings: bool(settings.get("eval_on_start")),
        why="TRL would compare rollouts of evaluation items",
        instead="leave it out, and use `turnwise evaluate` on what was saved",
    ),
    Rule(
        setting="gradient_accumulation_kwargs",
        wrong=lambda settings: "num_steps" in (settings.get("gradient_accumulation_kwargs") or ()),
        why="it changes gradient_accumulation_steps behind TRL, which has made other settings from that",
        instead="use gradient_accumulation_steps",
    ),
    Rule(
        setting="world_size",
        wrong=lambda settings: settings.get("world_size", 1) > 1,
        why="all processes would roll out the same groups",
        instead="start one process",
    ),
    *map(_unused, _UNUSED),
)


def refuse_inexact(settings: Settings) -> None:
    """Hold settings to `RULES`.

    Raises:
        ConfigError: the first that would change the step, in one line that says what to use.
    """
    refuse_broken(RULES, settings, shown="GRPOConfig({})")
