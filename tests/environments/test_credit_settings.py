"""The settings reach the estimator, and every parameter of an estimator is a setting."""

from typing import Annotated

import pytest

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.credit import ESTIMATORS, Param, describe, register_estimator
from environments.policy.scripted import Choice, say
from environments.testing import group_of
from environments.turn_level_reward import TurnLevelRewardMixin
from tests.tables import cases
from tools.errors import ConfigError, CreditError

PARAMETERS = [
    (estimator, parameter)
    for estimator in ESTIMATORS
    for parameter in describe(estimator).parameters
    if parameter.kind != "per_turn" and describe(estimator).over_step is None
]


class Numbers(TurnLevelRewardMixin, AgentEnv):
    """Two turns are impossible here: one message, one reward, drawn by the policy."""

    name = "numbers"

    async def load_items(self):
        return [{"id": "a"}, {"id": "b"}]

    def format_prompt(self, item):
        return "Say a digit."

    async def score_turn(self, item, turn, ctx):
        return float(turn.message.content)

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=0.1, message=say(str(digit))) for digit in range(10)]


class Stateful(Numbers):
    def state_key(self, item, turn):
        return "start" if turn is None else f"after {turn.message.content}"


def made(cls=Numbers, **fields):
    return cls(AgentEnvConfig(**fields))


@cases(("estimator", "parameter"), PARAMETERS, ids=lambda each: getattr(each, "name", each))
def test_every_parameter_is_a_setting_as_text_and_as_a_value(estimator, parameter):
    extra = {} if estimator != "gigpo" else {"cls": Stateful}
    for value in (parameter.default, str(parameter.default)):
        env = made(estimator=estimator, estimator_params={parameter.name: value}, **extra)
        assert env.lifecycle.parts.estimator_params == {parameter.name: parameter.default}


@pytest.mark.parametrize("value", ["1.5", 1.5, "much"])
def test_a_value_that_a_parameter_cannot_have_is_refused_before_any_rollout(value):
    with pytest.raises(CreditError, match=r"turn_return: gamma is .*; possible: number 0 … 1"):
        made(estimator_params={"gamma": value})


def test_a_whole_number_in_yaml_is_the_same_parameter_as_the_default():
    assert repr(made(estimator_params={"gamma": 1}).lifecycle.parts.estimator_params) == "{'gamma': 1.0}"


def test_an_estimator_of_the_users_gets_its_parameters():
    @register_estimator("scaled_test")
    def scaled(group, *, by: Annotated[float, Param("factor", low=0)] = 1.0):
        """Every turn gets the same."""
        return [[by] * len(trajectory.turns) for trajectory in group.trajectories]

    env = made(estimator="scaled_test", estimator_params={"by": "2.5"})
    assert env.credit(group_of([[1.0], [0.0]])).advantages == ((2.5,), (2.5,))


def test_what_is_set_reaches_the_estimator():
    group = group_of([[1.0, 0.0], [0.0, 2.0]])
    credited = made(estimator_params={"gamma": 0.5, "baseline": "none"}).credit(group)
    assert credited.advantages == ((1.0, 0.0), (1.0, 2.0))
    assert credited.estimator_params["gamma"] == 0.5


def test_a_preset_sets_the_constants_of_its_trainer():
    group = group_of([[1.0], [0.0], [0.0]])
    verl = made(estimator="grpo", estimator_preset="verl").credit(group)
    rllm = made(estimator="grpo", estimator_preset="rllm").credit(group)
    assert (verl.estimator_params["ddof"], rllm.estimator_params["ddof"]) == (1, 0)
    assert verl.advantages != rllm.advantages


def test_a_parameter_of_another_estimator_is_refused_before_any_rollout():
    with pytest.raises(CreditError, match="no parameter of turn_return named 'ddof'"):
        made(estimator_params={"ddof": 0})


async def test_comparing_states_without_states_is_refused_before_any_rollout():
    with pytest.raises(ConfigError, match="write state_key"):
        made(estimator="gigpo")


async def test_a_turn_carries_the_state_it_was_taken_in():
    async with made(Stateful, estimator="gigpo", group_size=2) as env:
        group = await env.rollout_group(env.tasks()[0], 2)
    assert {turn.anchor for trajectory in group.trajectories for turn in trajectory.turns} == {"start"}
