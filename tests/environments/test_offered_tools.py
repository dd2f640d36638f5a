"""Which tools an item offers: `tools_for`, in whole rollouts played by the scripted agent."""

from functools import partial
from typing import Any

import pytest

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, ServerConfig
from environments.policy.mock_server import mock_app
from tests.environments.listed_calls import ShopEnv, contents, failure_of, trajectory_of
from tests.equipment.running_server import running_server


def narrowing(given: Any, *, is_async: bool = False) -> AgentEnv:
    def plain(self, item):
        return given

    async def asynchronous(self, item):
        return given

    return type("Narrow", (ShopEnv,), {"tools_for": asynchronous if is_async else plain})()


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async"])
async def test_tools_for_decides_what_the_agent_is_offered(is_async: bool):
    env = narrowing(["add", "sell"], is_async=is_async)
    await trajectory_of(env, "add")
    assert env.offered == [["sell", "add"]] * 2


async def test_a_tool_that_an_item_has_not_is_not_run():
    trajectory = await trajectory_of(narrowing(["add"]), "sell")
    assert contents(trajectory) == ["There is no tool 'sell'. Tools: add."]
    assert trajectory.rewards is not None
    assert trajectory.rewards.outcome == 0.0


async def test_a_model_behind_a_server_is_offered_the_narrowed_tools():
    scripted = narrowing(["add", "sell"])
    app = mock_app(
        lambda _: partial(scripted.scripted_choices, ["sell", "close"]), skill=1.0, renderer=scripted.renderer
    )
    async with running_server(app) as base_url:
        servers = [ServerConfig(base_url=base_url, model_name="scripted")]
        async with type(scripted)(servers=servers) as env:
            trajectory = await trajectory_of(env, "sell", "close")
    assert scripted.offered == [["sell", "add"]] * 3
    assert contents(trajectory) == ['["tea"]', "There is no tool 'close'. Tools: sell, add."]


async def test_an_item_may_have_no_tools_at_all():
    env = narrowing([])
    assert contents(await trajectory_of(env, "add")) == ["There is no tool 'add'. Tools: none."]
    assert env.offered[0] == []


async def test_a_name_that_tools_for_gives_and_no_tool_has_costs_the_rollout():
    assert await failure_of(narrowing(["add", "fly"])) == (
        "ConfigError: environment 'listed', item 'x': tools_for gave 'fly', which is none of the tools: "
        "sell, close, add, sample"
    )


async def test_tools_for_takes_no_tool_back_that_the_settings_took_away():
    env = narrowing(["add", "sell"])
    env = type(env)(AgentEnvConfig(enabled_toolsets=["add", "sample"]))
    await trajectory_of(env, "add")
    assert env.offered == [["add"]] * 2
