"""An environment whose tools are those of an MCP server."""

import io
import sys
from pathlib import Path

from rich.console import Console

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, call, say
from environments.record.recorder import read_groups
from environments.rollout.items.tasks import GroupTask
from environments.run.experiment import origin_of
from environments.run.process_run import process
from tools.mcp.mcp_toolset import MCPToolset

RAW = Path(__file__).parents[1] / "tools" / "mcp" / "raw_server.py"


class Adds(AgentEnv):
    name = "adds"
    sandbox = "none"
    tools = (MCPToolset(name="raw", command=sys.executable, args=(str(RAW), "")),)
    calls = ("add",)

    async def load_items(self):
        return ["go"]

    def format_prompt(self, item):
        return item

    async def compute_reward(self, item, trajectory, ctx):
        return float(sum(len(turn.tool_results) for turn in trajectory.turns))

    def scripted_choices(self, item, messages, tools, skill):
        assert "add" in [tool.name for tool in tools]
        if messages[-1].role == "tool":
            return [Choice(probability=1.0, message=say("done"))]
        arguments = {"number": 1} if self.calls == ("add",) else {}
        return [Choice(probability=1.0, message=call(self.calls[0], arguments))]


def made(env_cls=Adds, **settings):
    return env_cls(AgentEnvConfig(group_size=2, **settings))


async def test_every_sibling_counts_from_the_start_and_the_run_says_what_it_found(tmp_path):
    shown, path = io.StringIO(), tmp_path / "r.jsonl"
    code = await process(made(data_path_to_save_groups=str(path)), Console(file=shown, width=200))
    (credited,) = read_groups(path)
    firsts = [each.turns[0].tool_results[0].content.partition(" ")[0] for each in credited.group.trajectories]
    assert (code, firsts) == (0, ["1", "1"])
    assert "MCP server raw, a session per rollout: add, say_nothing" in shown.getvalue()


async def test_a_server_that_dies_fails_its_sibling_with_the_reason():
    class Dies(Adds):
        calls = ("die",)

    async with made(Dies) as env:
        group = await env.rollout_group(env.tasks()[0], 1)
    assert group.failures[0].error_class == "ToolServerLost"
    assert "MCP server 'raw': it ended in the middle" in group.failures[0].error


async def test_the_servers_tools_count_in_the_fingerprint():
    async with made() as env:
        assert "tool add" in origin_of(env).facts()


async def test_a_toolset_that_is_not_enabled_is_not_started():
    class Gone(Adds):
        tools = (MCPToolset(name="raw", command="/nowhere/server"),)

    async with made(Gone, enabled_toolsets=[]) as env:
        assert env.toolset.tools == ()


async def test_rollouts_before_the_environment_is_open_are_failures_that_say_so():
    (failure,) = (await made().rollout_group(GroupTask(item="go", item_id="i"), 1)).failures
    assert "open the environment" in failure.error
