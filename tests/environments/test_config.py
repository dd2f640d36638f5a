from typing import get_args

import pytest
from atroposlib.envs.base import BaseEnvConfig
from pydantic import ValidationError

from environments.config import AgentEnvConfig, ServerConfig

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
