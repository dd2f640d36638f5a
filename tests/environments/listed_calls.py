"""A scripted agent that calls the tools its item lists, and the states that they are methods of."""

from dataclasses import dataclass, field
from typing import Any

from environments.base_env import AgentEnv
from environments.policy.scripted import Choice, call, say
from environments.rollout.items.tasks import GroupTask
from environments.trajectory import Trajectory, TrajectoryGroup
from tools.calls import State, ToolContext
from tools.registry import tool


@dataclass
class Shop(State):
    """What a rollout changes."""

    sold: list[str] = field(default_factory=list[str])

    @tool
    def sell(self, what: str) -> list[str]:
        """Sell something."""
        self.sold.append(what)
        return self.sold

    @tool
    async def close(self, ctx: ToolContext) -> None:
        """Close the shop."""
        ctx.metrics["sold"] = len(self.sold)
        ctx.end("closed")


class Market(Shop):
    """A special one."""


class Bank(State):
    """Another state."""

    @tool
    def balance(self) -> int:
        """Say what is left."""
        return 0


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
def sample(ctx: ToolContext) -> dict[str, Any]:
    """Say what is known."""
    return {"item": ctx.item, "seed": ctx.seed, "group_seed": ctx.group_seed, "state": repr(ctx.state)}


ARGUMENTS = {"sell": {"what": "tea"}, "add": {"a": 1, "b": 2}}


class Listed(AgentEnv):
    """Its scripted agent calls the tools that the item lists, one a turn."""

    name = "listed"
    sandbox = "none"
    offered: list[list[str]]

    def load_items(self):
        return ["an item"]

    def format_prompt(self, item):
        return "Work."

    def compute_reward(self, item, trajectory, ctx):
        return float(len(ctx.state.sold)) if isinstance(ctx.state, Shop) else 0.0

    def scripted_choices(self, item, messages, tools, skill):
        vars(self).setdefault("offered", []).append([each.name for each in tools])
        called = sum(message.role == "tool" for message in messages)
        if called == len(item):
            return [Choice(probability=1.0, message=say("done"))]
        return [Choice(probability=1.0, message=call(item[called], ARGUMENTS.get(item[called], {})))]


class ShopEnv(Listed):
    """With a state."""

    tools = (Shop, add, sample)

    def prepare(self, item, sandbox) -> Shop:
        return Shop()


async def rolled_out(env: AgentEnv, *calls: str, size: int = 1) -> TrajectoryGroup:
    return await env.rollout_group(GroupTask(item=list(calls), item_id="x"), size)


async def trajectory_of(env: AgentEnv, *calls: str) -> Trajectory:
    group = await rolled_out(env, *calls)
    assert not group.failures, group.failures[0].error
    return group.trajectories[0]


async def failure_of(env: AgentEnv, *calls: str) -> str:
    (failure,) = (await rolled_out(env, *calls)).failures
    return failure.error


def contents(trajectory: Trajectory) -> list[str]:
    return [result.content for turn in trajectory.turns for result in turn.tool_results]
