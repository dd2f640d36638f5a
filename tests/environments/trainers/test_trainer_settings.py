"""Settings of trainers that would change the step, refused in one line that says what to use."""

import pytest

from environments.trainers.exact_settings import TINKER, refuse_inexact
from environments.trainers.example_trainer_settings import refuse_inexact_example_trainer
from tools.errors import ConfigError

EXACT = {"vllm_restart_interval": 1}
EXAMPLE_TRAINER = {
    "credit_view": "token_advantages",
    "clip_eps": 0.0,
    "vllm_restart_interval": 3,
}


@pytest.mark.parametrize("loss_fn", ["importance_sampling", "ppo", "cispo"])
def test_tinkers_losses_that_add_up_advantages_are_taken(loss_fn):
    refuse_inexact({"loss_fn": loss_fn, "learning_rate": 1e-5}, TINKER)


@pytest.mark.parametrize("loss_fn", ["dro", "gspo", "stable_reinforce", "cross_entropy", "custom"])
def test_tinkers_other_losses_are_refused_with_one_to_use(loss_fn):
    with pytest.raises(ConfigError, match=f"loss_fn={loss_fn} .*; use importance_sampling"):
        refuse_inexact({"loss_fn": loss_fn}, TINKER)


@pytest.mark.parametrize(
    ("name", "value"), [("kl_penalty_coef", 0.1), ("async_config", {"max_steps_off_policy": 0})]
)
def test_what_changes_tinkers_advantages_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=rf"^{name}=.*; use"):
        refuse_inexact({name: value}, TINKER)


@pytest.mark.parametrize("name", EXAMPLE_TRAINER)
def test_what_changes_the_example_trainers_step_is_refused_by_name(name):
    refuse_inexact_example_trainer(EXACT)
    with pytest.raises(ConfigError, match=rf"^{name}=.*; use"):
        refuse_inexact_example_trainer({**EXACT, name: EXAMPLE_TRAINER[name]})


def test_the_example_trainers_defaults_are_refused():
    with pytest.raises(
        ConfigError, match=r"vllm_restart_interval=3: .*use 1, or weight_bridge_mode shared_vllm"
    ):
        refuse_inexact_example_trainer({})
    refuse_inexact_example_trainer({"weight_bridge_mode": "shared_vllm"})


def test_dropout_counts_where_it_is_used():
    refuse_inexact_example_trainer({**EXACT, "lora_dropout": 0.05})
    with pytest.raises(ConfigError, match=r"lora_dropout=0.05: .*use 0.0"):
        refuse_inexact_example_trainer({**EXACT, "weight_bridge_mode": "lora_only"})
