"""The settings reach the estimator, and every parameter of an estimator is a setting."""

from typing import Annotated

import pytest

from environments.credit import ESTIMATORS, Param, describe, register_estimator
from environments.testing import group_of
from tests.environments.chat.chat_env import chat, group_of_chat
from tests.tables import cases
from tools.errors import ConfigError, CreditError

PARAMETERS = [
    (estimator, parameter)
    for estimator in ESTIMATORS
    for parameter in describe(estimator).parameters
    if parameter.kind != "per_turn" and describe(estimator).over_step is None
]


def state_key(self, item, turn):
    return "start" if turn is None else f"after {turn.message.content}"


@cases(("estimator", "parameter"), PARAMETERS, ids=lambda each: getattr(each, "name", each))
def test_every_parameter_is_a_setting_as_text_and_as_a_value(estimator, parameter):
    extra = {} if estimator != "gigpo" else {"state_key": state_key}
    for value in (parameter.default, str(parameter.default)):
        env = chat(estimator=estimator, estimator_params={parameter.name: value}, **extra)
        assert env.lifecycle.parts.estimator_params == {parameter.name: parameter.default}


@pytest.mark.parametrize("value", ["1.5", 1.5, "much"])
def test_a_value_that_a_parameter_cannot_have_is_refused_before_any_rollout(value):
    with pytest.raises(CreditError, match=r"turn_return: gamma is .*; possible: number 0 … 1"):
        chat(estimator_params={"gamma": value})


def test_a_whole_number_in_yaml_is_the_same_parameter_as_the_default():
    assert repr(chat(estimator_params={"gamma": 1}).lifecycle.parts.estimator_params) == "{'gamma': 1.0}"


def test_an_estimator_of_the_users_gets_its_parameters():
    @register_estimator("scaled_test")
    def scaled(group, *, by: Annotated[float, Param("factor", low=0)] = 1.0):
        """Every turn gets the same."""
        return [[by] * len(trajectory.turns) for trajectory in group.trajectories]

    env = chat(estimator="scaled_test", estimator_params={"by": "2.5"})
    assert env.credit(group_of([[1.0], [0.0]])).advantages == ((2.5,), (2.5,))


def test_what_is_set_reaches_the_estimator():
    group = group_of([[1.0, 0.0], [0.0, 2.0]])
    credited = chat(estimator_params={"gamma": 0.5, "baseline": "none"}).credit(group)
    assert credited.advantages == ((1.0, 0.0), (1.0, 2.0))
    assert credited.estimator_params["gamma"] == 0.5


def test_a_preset_sets_the_constants_of_its_trainer():
    group = group_of([[1.0], [0.0], [0.0]])
    verl = chat(estimator="grpo", estimator_preset="verl").credit(group)
    rllm = chat(estimator="grpo", estimator_preset="rllm").credit(group)
    assert (verl.estimator_params["ddof"], rllm.estimator_params["ddof"]) == (1, 0)
    assert verl.advantages != rllm.advantages


def test_a_parameter_of_another_estimator_is_refused_before_any_rollout():
    with pytest.raises(CreditError, match="no parameter of turn_return named 'ddof'"):
        chat(estimator_params={"ddof": 0})


async def test_comparing_states_without_states_is_refused_before_any_rollout():
    with pytest.raises(ConfigError, match="write state_key"):
        chat(estimator="gigpo")


async def test_a_turn_carries_the_state_it_was_taken_in():
    group = (await group_of_chat(state_key=state_key, estimator="gigpo")).group
    for trajectory in group.trajectories:
        said = [f"after {turn.message.content}" for turn in trajectory.turns]
        assert [turn.anchor for turn in trajectory.turns] == ["start", *said[:-1]]
