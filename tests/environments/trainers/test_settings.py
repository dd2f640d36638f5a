"""Settings of trainers: what is known to change the step is refused, what nobody tried is named."""

import re
import warnings
from types import SimpleNamespace

import pytest

from environments.trainers.settings import (
    EXAMPLE_TRAINER,
    EXAMPLE_TRAINER_DEFAULTS,
    SKYRL,
    TINKER,
    TRL,
    TRL_LOSSES,
    VERL,
    InexactStepWarning,
    Rule,
    changed_names,
    check_example_trainer,
    check_settings,
)
from tests.tables import cases
from tools.errors import ConfigError

LINE = re.compile(r"[\w' -]+: [\w.]+=.+ .+; use .+")
# TRL's defaults, but for what they would be refused for.
GRPO = {
    "loss_type": "dapo", "scale_rewards": "none", "importance_sampling_level": "token", "num_iterations": 1,
    "gradient_accumulation_steps": 2, "steps_per_generation": 2, "max_completion_length": 256,
    "mask_truncated_completions": False, "top_entropy_quantile": 1.0, "epsilon": 0.2, "temperature": 1.0,
    "use_vllm": False, "eval_strategy": "no", "eval_on_start": False, "world_size": 1, "top_p": 1.0,
    "top_k": 0, "repetition_penalty": 1.0, "use_transformers_continuous_batching": False,
}  # fmt: skip
ONE_PART = {"gradient_accumulation_steps": 1, "steps_per_generation": 1}
CHANGES_GRPO = [
    {name: value}
    for name, values in {
        "loss_type": ["grpo", "sapo", "bnpo", "one of tomorrow"],
        "scale_rewards": ["group", "batch"],
        "importance_sampling_level": ["sequence"],
        "gradient_accumulation_steps": [4, 3],
        "gradient_accumulation_kwargs": [{"num_steps": 2}],
        "mask_truncated_completions": [True],
        "top_entropy_quantile": [0.2],
        "off_policy_mask_threshold": [0.5],
        "delta": [1.0],
        "epsilon": [-0.1, float("nan")],
        "epsilon_high": [-0.1],
        "neftune_noise_alpha": [5.0],
        "temperature": [0.7],
        "eval_strategy": ["steps"],
        "eval_on_start": [True],
        "top_p": [0.9],
        "top_k": [50],
        "min_p": [0.1],
        "repetition_penalty": [1.1],
        "generation_kwargs": [{"num_beams": 2}],
        "chat_template_kwargs": [{"enable_thinking": False}],
        "cache_implementation": ["static"],
        "use_transformers_continuous_batching": [True],
        "vllm_structured_outputs_regex": ["a"],
    }.items()
    for value in values
] + [{"loss_type": "cispo", "epsilon_high": 0.0}, {"loss_type": "bnpo", "world_size": 2, **ONE_PART}]
LEAVES_GRPO = [
    *({"loss_type": loss, **ONE_PART} for loss in TRL_LOSSES),
    {"world_size": 8},
    {"beta": 0.1},
    {"scale_rewards": False},
    {"delta": 4.0},
    {"loss_type": "dr_grpo", "gradient_accumulation_steps": 4},
    {"top_k": None},
    {"epsilon": 0.0, "epsilon_high": 0.0},
]


def refusal(known, config, exact=None):
    """The line that a config is refused with; `None`: it is not."""
    try:
        check_settings(known, config, exact=exact)
    except ConfigError as error:
        return str(error)
    return None


def names(table):
    return [name for settings in table.values() for name in settings]


def config_of(known, **changed):
    """Nested mappings with the value that a refusal says to use, and others."""
    config = {}
    for settings in (*known.inexact.values(), *known.trades.values()):
        for name, allowed in settings.items():
            *path, last = name.split(".")
            node = config
            for each in path:
                node = node.setdefault(each, {})
            exact = float(allowed.use) if isinstance(allowed, Rule) else allowed[0]
            node[last] = changed.get(name, exact)
    return config


def objects(node):
    """The same with attributes, as SkyRL's config is."""
    if not isinstance(node, dict):
        return node
    return SimpleNamespace(**{name: objects(value) for name, value in node.items()})


def test_what_would_change_trls_step_is_refused_in_one_line_that_says_what_to_use():
    lines = [refusal(TRL, GRPO | wrong) for wrong in CHANGES_GRPO]
    passed = [
        wrong for wrong, line in zip(CHANGES_GRPO, lines, strict=True) if not LINE.fullmatch(line or "")
    ]
    assert passed == []
    assert {line.split()[1].partition("=")[0] for line in lines} == {*names(TRL.inexact)}


def test_what_leaves_trls_step_is_taken():
    assert [fine for fine in LEAVES_GRPO if refusal(TRL, GRPO | fine)] == []


@cases("known", [VERL, SKYRL], ids=["verl", "skyrl"])
def test_what_a_refusal_says_to_use_is_taken_and_any_other_value_is_refused_by_name(known):
    assert refusal(known, config_of(known)) is refusal(known, objects(config_of(known))) is None
    lines = {name: refusal(known, config_of(known, **{name: "other"})) for name in names(known.inexact)}
    assert [name for name, line in lines.items() if f"{known.trainer}: {name}=other " not in line] == []
    assert [name for name, line in lines.items() if not LINE.fullmatch(line)] == []


def test_a_setting_that_must_be_set_is_refused_when_it_is_missing():
    assert refusal(VERL, {}) == (
        "verl: algorithm.adv_estimator=None changes what are advantages already; use turnwise"
    )


def test_what_changes_tinkers_step_is_refused_by_name():
    fine = [
        {"loss_fn": loss, "learning_rate": 1e-5} for loss in ("importance_sampling", "ppo", "cispo", None)
    ]
    assert [each for each in fine if refusal(TINKER, each)] == []
    losses = [{"loss_fn": loss} for loss in ("dro", "gspo", "stable_reinforce", "cross_entropy", "custom")]
    assert [
        each
        for each in [*losses, {"kl_penalty_coef": 0.1}]
        if not LINE.fullmatch(refusal(TINKER, each) or "")
    ] == []


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
    "trl": (TRL, GRPO | {"num_iterations": 2, "steps_per_generation": 4, "use_vllm": True}),
    "verl": (
        VERL, config_of(VERL, **{
            "actor_rollout_ref.actor.ppo_epochs": 2, "trainer.v1.trainer_mode": "separate_async",
            "actor_rollout_ref.actor.clip_ratio_low": 0.001,
            "algorithm.rollout_correction.rollout_is": "sequence",
            "algorithm.rollout_correction.rollout_rs": "seq_sum_k1",
        }),
    ),
    "skyrl": (
        SKYRL, config_of(SKYRL, **{
            "trainer.update_epochs_per_batch": 2, "trainer.fully_async.enabled": True,
            "trainer.algorithm.eps_clip_high": 0.001,
            "trainer.algorithm.off_policy_correction.tis_ratio_type": "sequence",
        }),
    ),
    "tinker": (TINKER, {"async_config": {"max_steps_off_policy": 1}, "loss_fn_config": {}}),
    "example trainer": (EXAMPLE_TRAINER, {**EXAMPLE_TRAINER_DEFAULTS, "vllm_restart_interval": 3}),
}  # fmt: skip


@cases(("known", "config"), TRADES.values(), ids=TRADES)
def test_a_trade_is_a_warning_that_says_what_stays_exact_unless_it_is_asked_to_be_refused(known, config):
    with pytest.warns(InexactStepWarning) as found:
        check_settings(known, config)
    lines = [str(each.message) for each in found]
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    assert all("each token's advantage stays exact, the step does not" in line for line in lines)
    assert refusal(known, config, exact="refuse") in lines


@cases(
    ("exact", "wanted"),
    [("warn", ["num_iterations", "temperature"]), ("off", [])],
    ids=["warn", "off"],
)
def test_whatever_changes_the_step_can_be_a_warning_or_nothing(exact, wanted):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        config = GRPO | {"temperature": 0.7, "num_iterations": 2}
        check_settings(TRL, config, changed=["temperature", "num_iterations"], exact=exact)
    assert sorted(str(each.message).partition(" ")[2].partition("=")[0] for each in found) == wanted


def test_a_range_that_trains_nothing_is_refused_where_a_narrow_one_is_a_trade():
    name = "trainer.algorithm.eps_clip_low"
    assert "clips ratios of 1, so that" in refusal(SKYRL, config_of(SKYRL, **{name: 0.0}))
    with pytest.warns(InexactStepWarning, match="clips ratios that are 1 but for rounding"):
        check_settings(SKYRL, config_of(SKYRL, **{name: 0.001}))


def test_a_changed_setting_that_nobody_tried_is_named_and_others_are_not():
    config = GRPO | {"new_term": 3, "another": "x", "learning_rate": 1.0, "delta": 4.0}
    with pytest.warns(
        InexactStepWarning, match=r"what new_term=3, another=x does to the step was never tried"
    ):
        check_settings(TRL, config, changed=["new_term", "learning_rate", "another", "delta"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_settings(TRL, config, changed=["learning_rate", "delta", "vllm_mode"])


def test_changed_names_are_those_whose_values_differ_from_the_defaults():
    defaults = {"a": 1, "b": {"c": 2, "d": None}, "e": [1]}
    assert [*changed_names(defaults, defaults)] == []
    given = {"a": 1, "b": {"c": 3, "d": {"f": 4}}, "e": [2], "g": 5}
    assert [*changed_names(given, defaults, "x.")] == ["x.b.c", "x.b.d.f", "x.e", "x.g"]
