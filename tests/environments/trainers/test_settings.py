"""Settings of trainers: what is known to change the step is refused by name, or warned of as a trade."""

import re
import warnings
from types import SimpleNamespace

import pytest

from environments.trainers.settings import (
    BREAKERS,
    TRL_LOSSES,
    InexactStepWarning,
    check_example_trainer,
    check_settings,
)
from tests.tables import cases
from tools.errors import ConfigError

LINE = re.compile(r"[\w' -]+: [\w.]+=.+ .+; use .+")
# TRL's defaults, but for what they would be refused for.
GRPO = {
    "loss_type": "dapo", "scale_rewards": "none", "importance_sampling_level": "token", "num_iterations": 1,
    "gradient_accumulation_steps": 2, "steps_per_generation": 2, "mask_truncated_completions": False,
    "top_entropy_quantile": 1.0, "epsilon": 0.2, "temperature": 1.0, "use_vllm": False, "eval_strategy": "no",
    "eval_on_start": False, "world_size": 1, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0,
    "use_transformers_continuous_batching": False,
}  # fmt: skip
ONE_PART = {"gradient_accumulation_steps": 1, "steps_per_generation": 1}
CHANGES_GRPO = [
    *({"loss_type": value} for value in ("grpo", "sapo", "bnpo", "one of tomorrow")),
    *({"scale_rewards": value} for value in ("group", "batch")),
    *({"gradient_accumulation_steps": value} for value in (4, 3)),
    *({"epsilon": value} for value in (-0.1, float("nan"))),
    {"importance_sampling_level": "sequence"}, {"gradient_accumulation_kwargs": {"num_steps": 2}},
    {"mask_truncated_completions": True}, {"top_entropy_quantile": 0.2}, {"off_policy_mask_threshold": 0.5},
    {"delta": 1.0}, {"epsilon_high": -0.1}, {"neftune_noise_alpha": 5.0}, {"temperature": 0.7},
    {"eval_strategy": "steps"}, {"eval_on_start": True}, {"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.1},
    {"repetition_penalty": 1.1}, {"generation_kwargs": {"num_beams": 2}},
    {"chat_template_kwargs": {"enable_thinking": False}}, {"cache_implementation": "static"},
    {"use_transformers_continuous_batching": True}, {"vllm_structured_outputs_regex": "a"},
    {"loss_type": "cispo", "epsilon_high": 0.0}, {"loss_type": "bnpo", "world_size": 2, **ONE_PART},
]  # fmt: skip
LEAVES_GRPO = [
    *({"loss_type": loss, **ONE_PART} for loss in TRL_LOSSES),
    {"world_size": 8}, {"beta": 0.1}, {"scale_rewards": False}, {"delta": 4.0}, {"top_k": None},
    {"loss_type": "dr_grpo", "gradient_accumulation_steps": 4}, {"epsilon": 0.0, "epsilon_high": 0.0},
]  # fmt: skip


def refusal(trainer, config, exact=None, **options):
    """The line that a config is refused with; `None`: it is not."""
    try:
        check_settings(trainer, config, exact=exact, **options)
    except ConfigError as error:
        return str(error)
    return None


def names(trainer, *kinds):
    return {
        name
        for each in BREAKERS[trainer]
        if each.kind in (kinds or ("break", "rollouts"))
        for name in each.names.split()
    }


def config_of(trainer, **changed):
    """Nested mappings with the values that refusals say to use, and others."""
    config = {}
    for each in BREAKERS[trainer]:
        for name in each.names.split():
            *path, last = name.split(".")
            node = config
            for part in path:
                node = node.setdefault(part, {})
            node[last] = changed.get(name, float(each.use) if callable(each.exact) else each.exact[0])
    return config


def objects(node):
    """The same with attributes, as SkyRL's config is."""
    if not isinstance(node, dict):
        return node
    return SimpleNamespace(**{name: objects(value) for name, value in node.items()})


def test_what_would_change_trls_step_is_refused_in_one_line_that_says_what_to_use():
    lines = [refusal("GRPOConfig", GRPO | wrong) for wrong in CHANGES_GRPO]
    assert [line for line in lines if not LINE.fullmatch(line or "")] == []
    assert {line.split()[1].partition("=")[0] for line in lines} == names("GRPOConfig")
    assert [fine for fine in LEAVES_GRPO if refusal("GRPOConfig", GRPO | fine)] == []


@cases("trainer", ["verl", "SkyRL"])
def test_what_a_refusal_says_to_use_is_taken_and_any_other_value_is_refused_by_name(trainer):
    assert refusal(trainer, config_of(trainer)) is refusal(trainer, objects(config_of(trainer))) is None
    lines = {name: refusal(trainer, config_of(trainer, **{name: "other"})) for name in names(trainer)}
    assert [name for name, line in lines.items() if f"{trainer}: {name}=other " not in line] == []
    assert [name for name, line in lines.items() if not LINE.fullmatch(line)] == []
    own = {
        name for name in lines if refusal(trainer, config_of(trainer, **{name: "other"}), own_rollouts=True)
    }
    assert own == names(trainer, "break")


def test_a_setting_that_must_be_set_is_refused_when_it_is_missing():
    assert refusal("verl", {}) == (
        "verl: algorithm.adv_estimator=None changes what are advantages already; use turnwise"
    )


def test_a_range_that_trains_nothing_is_refused():
    name = "trainer.algorithm.eps_clip_low"
    assert "clips ratios of 1, so that" in refusal("SkyRL", config_of("SkyRL", **{name: 0.0}))


def test_what_changes_tinkers_step_is_refused_by_name():
    fine = [{"loss_fn": loss} for loss in ("importance_sampling", "ppo", "cispo", None)]
    assert [each for each in fine if refusal("tinker-cookbook", each)] == []
    losses = [{"loss_fn": loss} for loss in ("dro", "gspo", "stable_reinforce", "cross_entropy", "custom")]
    wrong = [*losses, {"kl_penalty_coef": 0.1}]
    assert [each for each in wrong if not LINE.fullmatch(refusal("tinker-cookbook", each) or "")] == []


@cases(
    ("wrong", "message"),
    [
        ({"credit_view": "token_advantages"}, "; use turn_rows"),
        ({"clip_eps": 0.0}, "; use 0.2"),
        ({"weight_bridge_mode": "lora_only"}, "; use 0.0"),
    ],
)
def test_what_changes_the_example_trainers_step_is_refused(wrong, message):
    check_example_trainer({"vllm_restart_interval": 1, "lora_dropout": 0.05})
    check_example_trainer({"weight_bridge_mode": "shared_vllm"})
    with pytest.raises(ConfigError, match=f"^Atropos' example trainer: .*{message}"):
        check_example_trainer({"vllm_restart_interval": 1, **wrong})


TRADES = {
    "GRPOConfig": GRPO | {"num_iterations": 2, "steps_per_generation": 4, "use_vllm": True},
    "verl": config_of("verl", **{
        "actor_rollout_ref.actor.ppo_epochs": 2, "trainer.v1.trainer_mode": "separate_async",
        "algorithm.rollout_correction.rollout_is": "sequence",
        "algorithm.rollout_correction.rollout_rs": "seq_sum_k1",
    }),
    "SkyRL": config_of("SkyRL", **{
        "trainer.update_epochs_per_batch": 2, "trainer.fully_async.enabled": True,
        "trainer.algorithm.off_policy_correction.tis_ratio_type": "sequence",
    }),
    "tinker-cookbook": {"async_config": {"max_steps_off_policy": 1}, "loss_fn_config": {}},
    "Atropos' example trainer": {"vllm_restart_interval": 3},
}  # fmt: skip


@cases(("trainer", "config"), TRADES.items(), ids=TRADES)
def test_a_trade_is_a_warning_that_says_what_stays_exact_unless_it_is_asked_to_be_refused(trainer, config):
    with pytest.warns(InexactStepWarning) as found:
        check_settings(trainer, config)
    lines = [str(each.message) for each in found]
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    assert all("each token's advantage stays exact, the step does not" in line for line in lines)
    assert refusal(trainer, config, exact="refuse") in lines


@cases(("exact", "wanted"), [("warn", ["num_iterations", "temperature"]), ("off", [])])
def test_whatever_changes_the_step_can_be_a_warning_or_nothing(exact, wanted):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        check_settings("GRPOConfig", GRPO | {"temperature": 0.7, "num_iterations": 2}, exact=exact)
    assert sorted(str(each.message).partition(" ")[2].partition("=")[0] for each in found) == wanted
