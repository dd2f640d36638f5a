"""Which settings of TRL leave the step as it is: rules about values."""

import re

import pytest

from environments.trainers.trl_settings import EXACT_LOSSES, RULES, refuse_inexact
from tools.errors import ConfigError

GOOD = {
    "loss_type": "dapo",
    "scale_rewards": "none",
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 2,
}


@pytest.mark.parametrize("loss", EXACT_LOSSES)
def test_losses_that_divide_all_rows_by_one_number_are_allowed(loss):
    refuse_inexact({**GOOD, "loss_type": loss, "gradient_accumulation_steps": 1, "steps_per_generation": 1})


WRONG = {
    "grpo": {"loss_type": "grpo"},
    "sapo": {"loss_type": "sapo"},
    "one_of_tomorrow": {"loss_type": "tomorrow"},
    "group_scaled": {"scale_rewards": "group"},
    "batch_scaled": {"scale_rewards": "batch"},
    "sequence_ratio": {"importance_sampling_level": "sequence"},
    "two_passes": {"num_iterations": 2},
    "two_steps_of_one_generation": {"gradient_accumulation_steps": 1},
    "dapo_over_two_generations": {"gradient_accumulation_steps": 4},
    "bnpo_in_parts": {"loss_type": "bnpo"},
    "dr_grpo_without_a_length": {"loss_type": "dr_grpo", "max_completion_length": None},
    "truncated": {"mask_truncated_completions": True},
    "entropy": {"top_entropy_quantile": 0.2},
    "off_policy_mask": {"off_policy_mask_threshold": 0.5},
    "delta": {"delta": 1.0},
    "negative_epsilon": {"epsilon": -0.1},
    "epsilon_that_is_no_number": {"epsilon": float("nan")},
    "negative_epsilon_high": {"epsilon_high": -0.1},
    "cispo_times_zero": {"loss_type": "cispo", "epsilon_high": 0.0},
    "noise": {"neftune_noise_alpha": 5.0},
    "temperature": {"temperature": 0.7},
    "vllm": {"use_vllm": True},
    "evaluation": {"eval_strategy": "IntervalStrategy.STEPS"},
    "evaluation_at_the_start": {"eval_on_start": True},
    "accumulation_elsewhere": {"gradient_accumulation_kwargs": {"num_steps": 2}},
    "processes": {"world_size": 2},
    "top_p": {"top_p": 0.9},
    "top_k": {"top_k": 50},
    "min_p": {"min_p": 0.1},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "generation_kwargs": {"generation_kwargs": {"num_beams": 2}},
    "chat_template": {"chat_template_kwargs": {"enable_thinking": False}},
    "cache": {"cache_implementation": "static"},
    "continuous": {"use_transformers_continuous_batching": True},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_would_change_the_step_is_refused_in_one_line_that_says_what_to_use(name):
    with pytest.raises(ConfigError) as refused:
        refuse_inexact({**GOOD, **WRONG[name]})
    assert re.fullmatch(r"GRPOConfig\(\w+=.+\): .+; (use|leave|start) .+", str(refused.value))


def test_every_rule_is_one_that_something_breaks():
    broken = {rule.setting for rule in RULES for wrong in WRONG.values() if rule.wrong({**GOOD, **wrong})}
    assert broken == {rule.setting for rule in RULES}


@pytest.mark.parametrize(
    "fine",
    [
        {"beta": 0.1},
        {"scale_rewards": False},
        {"delta": 4.0},
        {"loss_type": "dr_grpo", "gradient_accumulation_steps": 4},
        {"eval_strategy": "no"},
        {"top_k": None},
        {"epsilon": 0.0, "epsilon_high": 0.0},
    ],
    ids=[
        "beta",
        "unscaled",
        "delta",
        "dr_grpo_over_two_generations",
        "no_evaluation",
        "no_top_k",
        "epsilon_0",
    ],
)
def test_what_leaves_the_step_as_it_is_is_allowed(fine):
    refuse_inexact({**GOOD, **fine})
