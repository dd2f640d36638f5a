from typing import get_args

import pytest
from atroposlib.envs.base import BaseEnvConfig
from pydantic import ValidationError

from environments.config import WITHOUT_EFFECT, AgentEnvConfig, ServerConfig

NUMBERS = [
    name
    for name, field in AgentEnvConfig.model_fields.items()
    if {int, float} & {field.annotation, *get_args(field.annotation)}
]


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_is_bounded(name):
    assert AgentEnvConfig.model_fields[name].metadata


@pytest.mark.parametrize("name", AgentEnvConfig.model_fields)
def test_every_setting_is_described(name):
    assert AgentEnvConfig.model_fields[name].description


def test_every_setting_of_atropos_keeps_its_name():
    assert set(BaseEnvConfig.model_fields) <= set(AgentEnvConfig.model_fields)


def test_an_unknown_setting_is_refused():
    with pytest.raises(ValidationError):
        AgentEnvConfig(group_sise=4)


def test_a_setting_is_checked_when_it_changes():
    config = AgentEnvConfig()
    with pytest.raises(ValidationError):
        config.group_size = 0


def test_wandb_is_off_unless_asked_for():
    assert AgentEnvConfig().use_wandb is False


def test_a_server_config_never_samples_for_its_health_check():
    assert ServerConfig().health_check is False


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_a_setting_of_atropos_that_does_nothing_here_is_refused_rather_than_ignored(name):
    other = {"eval_handling": "NONE", "reasoning_effort": "low", "max_reasoning_tokens": 2048}.get(name)
    default = AgentEnvConfig.model_fields[name].default
    if other is None:
        other = not default if isinstance(default, bool) else "text" if default is None else default / 2 + 3
        other = int(other) if isinstance(default, int) and not isinstance(default, bool) else other
    if name == "eval_limit_ratio":
        other = 0.25
    with pytest.raises(ValidationError, match=f"--env.{name} has no effect in Turnwise"):
        AgentEnvConfig(**{name: other})


def test_no_worker_at_all_is_refused_rather_than_served():
    with pytest.raises(ValidationError, match=r"--env\.max_num_workers 0 would serve nothing"):
        AgentEnvConfig(max_num_workers=0)


def test_only_sampling_that_reshapes_what_the_model_gives_is_told():
    assert AgentEnvConfig().sampling() == {}
    assert AgentEnvConfig(temperature=0.5).sampling() == {"temperature": 0.5, "top_p": 1.0}
