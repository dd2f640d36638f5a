"""Servers over stdio have folders of their rollout: what one sibling keeps there reaches no other."""

import json
import shutil
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.tools.mcp.test_mcp_servers import called
from tests.turnwise.check.checked_envs import checked
from tools.errors import ConfigError
from tools.mcp.mcp_servers import MCPServers
from tools.mcp.mcp_toolset import MCPToolset
from tools.registry import Toolset
from turnwise import AgentEnv, Choice, call, say

SERVER = Path(__file__).with_name("raw_server.py")


@pytest.fixture
def memory(tmp_path):
    """Makes the toolset of a server that keeps its file beside its program, or where it starts."""
    program = shutil.copy(SERVER, tmp_path)

    def made(keeps="keeps beside", name="memory", **fields):
        return MCPToolset(name=name, command=sys.executable, args=(str(program), keeps), **fields)

    return made


async def answers(*servers, tool="create", rollouts=2):
    """What each of some rollouts that are open at once is answered by each server."""
    opened = MCPServers(servers)
    async with AsyncExitStack() as stack:
        toolsets = await stack.enter_async_context(opened.connect(lambda line: None))
        found = []
        for _ in range(rollouts):
            for toolset in toolsets.values():
                tools = await stack.enter_async_context(opened.for_rollout(Toolset.merged([toolset])))
                found.append((await called(tools, tool, '{"text": "Ada"}'))[0])
        return found


async def test_a_file_that_env_puts_into_the_folder_of_the_rollout_is_of_one_rollout(memory):
    assert await answers(memory(env={"MEMORY": "{rollout}/memory"})) == ["created Ada", "created Ada"]


async def test_two_servers_of_one_rollout_share_its_folder(memory):
    env = {"MEMORY": "{rollout}/memory"}
    opened = MCPServers([memory(env=env), memory(name="other", env=env)])
    async with opened.connect(lambda line: None) as toolsets:
        one, other = toolsets.values()
        renamed = [tool for tool in other.tools if tool.name == "create"]
        merged = Toolset("both", (*[tool for tool in one.tools if tool.name == "show"], *renamed))
        async with opened.for_rollout(merged) as tools:
            shown = json.loads((await called(tools, "show"))[0])
            await called(tools, "create", '{"text": "Ada"}')
            assert Path(shown["MEMORY"]).read_text() == "Ada"


async def test_home_temporary_and_configuration_are_of_the_rollout_and_go_with_it(memory):
    shown = [json.loads(text) for text in await answers(memory(), tool="show")]
    for name in ("cwd", "HOME", "TMPDIR", "XDG_CONFIG_HOME"):
        one, two = (each[name] for each in shown)
        assert one != two
        assert not Path(one).exists()
    assert shown[0]["npm_config_cache"] == str(Path("~/.npm").expanduser())


def test_a_folder_of_the_rollout_for_a_server_that_all_share_is_refused(memory):
    with pytest.raises(ConfigError, match="one process for all rollouts"):
        memory(per="run", env={"MEMORY": "{rollout}/memory"})


class Remembers(AgentEnv):
    """Has the server remember a name."""

    name = "remembers"
    sandbox = "none"

    def load_items(self):
        return ["Ada"]

    def format_prompt(self, item):
        return item

    def compute_reward(self, item, trajectory, ctx):
        return 1.0

    def scripted_choices(self, item, messages, tools, skill):
        acts = say("done") if messages[-1].role == "tool" else call("create", {"text": item})
        return [Choice(probability=1.0, message=acts)]


async def test_check_names_the_server_whose_state_leaked(memory, monkeypatch, tmp_path):
    env_class = type("Leaking", (Remembers,), {"tools": (memory(),)})
    result, found = (await checked(env_class, monkeypatch, tmp_path, items=1))["siblings"]
    assert result == "fail"
    assert "tool create differs: 'created Ada', then 'nothing new', of MCP server 'memory'" in found


async def test_check_finds_no_leak_where_the_file_is_in_the_folder_of_the_rollout(
    memory, monkeypatch, tmp_path
):
    server = memory(env={"MEMORY": "{rollout}/memory"})
    env_class = type("Apart", (Remembers,), {"tools": (server,)})
    assert (await checked(env_class, monkeypatch, tmp_path, items=1))["siblings"][0] == "ok"
