"""What a tool breaks before its first line, after its last one, or beside another costs its rollout alone."""

import asyncio
import threading
from contextlib import suppress
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, PlainSerializer

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, call, say
from environments.rollout.containment import hook_calls
from environments.rollout.items.tasks import GroupTask
from environments.trajectory import TrajectoryGroup
from tools.calls import ToolContext
from tools.registry import Tool, tool


def leave(value: Any) -> Any:
    raise SystemExit(3)


def hang(value: Any) -> Any:
    threading.Event().wait()


class Leaving(BaseModel):
    value: Annotated[int, PlainSerializer(leave)] = 1


class Hanging(BaseModel):
    value: Annotated[int, PlainSerializer(hang)] = 1


@tool(name="act")
async def exits_while_it_is_read(ctx: ToolContext, number: Annotated[int, AfterValidator(leave)] = 1) -> str:
    """Act."""
    return ""


@tool(name="act")
async def exits_while_it_is_shown() -> Leaving:
    """Act."""
    return Leaving()


@tool(name="act")
def hangs_while_it_is_shown() -> Hanging:
    """Act."""
    return Hanging()


@tool(name="act", parallel=True)
async def cancels_all_others(ctx: ToolContext) -> str:
    """Act."""
    for task in asyncio.all_tasks():
        if task.get_coro().__qualname__ == "AgentLoop._run":
            task.cancel()
    await asyncio.sleep(0)
    return ""


@tool(name="act", parallel=True)
async def goes_on_when_cancelled() -> str:
    """Act."""
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def rolled_out(act: Tool, **settings: Any) -> TrajectoryGroup:
    """A group whose first rollout calls the tool twice in a turn, and whose second says something."""

    class Acting(AgentEnv):
        name = "acting"
        sandbox = "none"
        tools = (act,)

        def format_prompt(self, item, ctx):
            return f"seed {ctx.seed}"

        def compute_reward(self, item, trajectory, ctx):
            return 1.0

        def scripted_choices(self, item, messages, tools, skill):
            if messages[0].content != f"seed {first}" or messages[-1].role == "tool":
                return [Choice(probability=1.0, message=say("done"))]
            said = call("act", {"number": 1} if tools[0].parameters["properties"] else {})
            both = said.tool_calls + call("act", {}).tool_calls
            return [
                Choice(probability=1.0, message=type(said)(role="assistant", content="", tool_calls=both))
            ]

    task = GroupTask(item={}, item_id="x")
    first = task.seed(0, 0)
    return await Acting(AgentEnvConfig(**settings)).rollout_group(task, 2)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hook_calls, "_CANCEL_S", 0.2)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (exits_while_it_is_read, "SystemExit: 3"),
        (exits_while_it_is_shown, "ConfigError: tool 'act' returned Leaving"),
        (cancels_all_others, "CancelledError"),
    ],
    ids=["read", "shown", "cancels"],
)
async def test_a_tool_costs_its_rollout_alone(act: Tool, says: str):
    group = await rolled_out(act, tool_timeout_s=60)
    (failure,) = group.failures
    assert (failure.sibling, [each.sibling for each in group.trajectories]) == (0, [1])
    assert failure.error.startswith(says)


@pytest.mark.parametrize("act", [hangs_while_it_is_shown, goes_on_when_cancelled])
async def test_a_tool_that_goes_on_beyond_its_limit_ends_its_rollout_alone_with_the_floor(act: Tool):
    group = await rolled_out(act, tool_timeout_s=0.5)
    broken = [each.agent_caused for each in group.trajectories]
    assert [each and each.cause for each in broken] == ["tool_timeout", None]
    assert broken[0].error.startswith("AgentCausedError: tool act, turn 1 took longer than 0.5 s")
