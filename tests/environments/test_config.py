from typing import get_args

import pytest
from atroposlib.envs.base import APIServerConfig, BaseEnvConfig
from pydantic import ValidationError

from environments.config import (
    AgentEnvConfig,
    ServerConfig,
    sampling_of,
)
from tests.tables import cases
from tools.errors import ConfigError

NUMBERS = [
    name
    for name, field in AgentEnvConfig.model_fields.items()
    if {int, float} & {field.annotation, *get_args(field.annotation)}
]


def test_every_number_is_bounded():
    assert [name for name in NUMBERS if not AgentEnvConfig.model_fields[name].metadata] == []


def test_every_setting_is_described():
    assert [name for name, field in AgentEnvConfig.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(BaseEnvConfig, AgentEnvConfig), (APIServerConfig, ServerConfig)],
    ids=["env", "openai"],
)
def test_every_setting_of_atropos_has_its_name_here_or_no_effect_and_takes_their_value(theirs, ours):
    assert set(theirs.model_fields) == set(theirs.model_fields) & (
        set(ours.model_fields) | set(ours.without_effect)
    )
    assert not set(ours.model_fields) & set(ours.without_effect)
    ours(**{name: theirs.model_fields[name].default for name in ours.without_effect})


def test_an_unknown_setting_is_refused():
    with pytest.raises(ValidationError):
        AgentEnvConfig(group_sise=4)


def test_a_setting_is_checked_when_it_changes():
    config = AgentEnvConfig()
    with pytest.raises(ValidationError):
        config.group_size = 0


def test_wandb_is_off_unless_asked_for():
    assert AgentEnvConfig().use_wandb is False


@cases(
    ("section", "name"),
    [(section, name) for section in (AgentEnvConfig, ServerConfig) for name in section.without_effect],
)
def test_a_setting_of_atropos_that_does_nothing_here_is_refused_rather_than_ignored(section, name):
    other = False if section.without_effect[name][0] == (True,) else "other"
    with pytest.raises(ValidationError, match=f"--{section.section}.{name} has no effect in Turnwise"):
        section(**{name: other})


def test_only_sampling_that_reshapes_what_the_model_gives_is_told():
    assert sampling_of([]) == sampling_of([ServerConfig()]) == {}
    assert sampling_of([ServerConfig(temperature=0.5)]) == {"temperature": 0.5, "top_p": 1.0}


def test_servers_of_one_policy_sample_alike():
    with pytest.raises(ConfigError, match=r"--openai\.temperature .* differ between the model servers"):
        sampling_of([ServerConfig(), ServerConfig(temperature=0.5)])


def test_a_field_that_nobody_would_read_is_refused_with_its_class():
    with pytest.raises(ConfigError, match=r"Own.batch_size has no effect"):

        class Own(AgentEnvConfig):  # pyright: ignore[reportUnusedClass]
            batch_size: int = 1


@pytest.mark.parametrize("value", [0.5, "0.50", "0.5"])
def test_a_number_without_effect_is_compared_as_a_number(value):
    AgentEnvConfig(eval_limit_ratio=value)


def test_a_field_without_effect_may_be_named_again_with_the_value_that_is_accepted():
    class Own(AgentEnvConfig):
        thinking_mode: bool = False

    assert Own(thinking_mode=False).thinking_mode is False
