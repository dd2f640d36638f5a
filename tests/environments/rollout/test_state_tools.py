"""Tools of a rollout's state, and of its context, in whole rollouts played by the scripted agent."""

from dataclasses import dataclass, field

from environments.base_env import AgentEnv
from environments.data.tasks import GroupTask
from environments.policy.scripted import Choice, call, say
from environments.trajectory import StopReason, Trajectory, TrajectoryGroup
from tools.context import State, ToolContext
from tools.registry import tool
from tools.sandbox.base import Sandbox


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


class ShopEnv(AgentEnv):
    """Calls what the item says."""

    name = "shop"
    tools = (Shop,)

    async def load_items(self):
        return ["item"]

    def prepare(self, item, sandbox: Sandbox) -> Shop:
        return Shop()

    def format_prompt(self, item):
        return "Sell."

    def compute_reward(self, item, trajectory, ctx):
        return float(len(ctx.state.sold)) if isinstance(ctx.state, Shop) else 0.0

    def scripted_choices(self, item, messages, tools, skill):
        left = [each for each in item if each not in [m.tool_calls[0].name for m in messages if m.tool_calls]]
        return [
            Choice(
                probability=1.0, message=call(left[0], ARGUMENTS.get(left[0], {})) if left else say("done")
            )
        ]


ARGUMENTS = {"sell": {"what": "tea"}}


async def rolled_out(env: AgentEnv, item: object, size: int = 1) -> TrajectoryGroup:
    async with env:
        return await env.rollout_group(GroupTask(item=item, item_id="x"), size)


async def trajectory_of(env: AgentEnv, *calls: str) -> Trajectory:
    group = await rolled_out(env, list(calls))
    assert not group.failures, group.failures[0].error
    return group.trajectories[0]


def contents(trajectory: Trajectory) -> list[str]:
    return [result.content for turn in trajectory.turns for result in turn.tool_results]


async def test_a_method_of_the_state_changes_the_state_of_its_own_rollout():
    group = await rolled_out(ShopEnv(), ["sell"], size=2)
    assert [each.score for each in group.trajectories] == [1.0, 1.0]
    assert [contents(each) for each in group.trajectories] == [['["tea"]'], ['["tea"]']]


async def test_a_tool_ends_the_rollout_and_notes_a_metric_through_the_context():
    trajectory = await trajectory_of(ShopEnv(), "sell", "close", "sell")
    assert (trajectory.stop_reason, trajectory.end_reason) == (StopReason.ENDED, "closed")
    assert trajectory.metrics["sold"] == 1.0
