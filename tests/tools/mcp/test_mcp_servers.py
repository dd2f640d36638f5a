"""Tools of real MCP servers, in processes and over HTTP: called, bounded, and never left behind."""

import asyncio
import json
import resource
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.environments.serve.loopback import free_port, wait_for_port
from tests.tables import cases
from tools.calls import ToolCall
from tools.errors import ConfigError, ToolServerLost
from tools.mcp.mcp_servers import MCPServers
from tools.mcp.mcp_toolset import MCPToolset
from tools.registry import Toolset
from tools.sandbox.conformance.checks import marker

HERE = Path(__file__).parent


def counting(**fields):
    """The counting server, over its standard streams."""
    args = (str(HERE / "counting_server.py"), "stdio")
    return MCPToolset(name="counting", command=sys.executable, args=args, open_timeout_s=90, **fields)


def raw(does="", *more, **fields):
    """A server written by hand, which starts faster and can misbehave."""
    args = (str(HERE / "raw_server.py"), does, *more)
    return MCPToolset(name="raw", command=sys.executable, args=args, **fields)


async def called(toolset, name, arguments="{}", timeout_s=20.0):
    """What a model reads, and the kind of error."""
    call = ToolCall(id="1", name=name, arguments=arguments)
    result = await toolset.execute(call, None, timeout_s=timeout_s, max_output_chars=2_000)
    return result.content, result.error


class Open:
    """A server, opened as an environment does it."""

    def __init__(self, server):
        self._servers = MCPServers([server])
        self.lines = []

    async def __aenter__(self):
        self._opened = self._servers.connect(self.lines.append)
        self.listed = Toolset.merged(list((await self._opened.__aenter__()).values()))
        return self

    async def __aexit__(self, *error):
        await self._opened.__aexit__(*error)

    def rollout(self):
        return self._servers.for_rollout(self.listed)


def is_alive(pid):
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pid_in(text):
    return int(text.rpartition(" ")[2])


@contextmanager
def served(script="counting_server.py"):
    """A server over HTTP, on loopback: its URL, and its process."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, HERE / script, str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for_port(process, port)
        yield f"http://127.0.0.1:{port}/mcp", process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def url():
    with served() as (url, _):
        yield url


async def test_a_server_of_the_official_package_is_listed_and_called():
    async with Open(counting(per="run")) as server, server.rollout() as tools:
        add, _ = tools.specs
        assert add.description.startswith("Add to the counter.")
        assert add.parameters["properties"]["number"]["type"] == "integer"
        assert server.lines == ["MCP server counting, a session per run: add, picture"]
        assert await called(tools, "add", '{"number": 2}') == ("2", None)
        assert await called(tools, "picture") == ("a dot\n[image/png is not shown: only text can be]", None)
        content, error = await called(tools, "add", '{"number": "many"}')
        assert (error, "number" in content) == ("tool_error", True)


@pytest.mark.parametrize("per", ["rollout", "run"])
async def test_a_server_over_http_is_called_like_any_other(url, per):
    async with (
        Open(MCPToolset(name="remote", url=url, per=per, only=("add",), open_timeout_s=90)) as server,
        server.rollout() as first,
        server.rollout() as second,
    ):
        texts = await asyncio.gather(*(called(each, "add", '{"number": 0}') for each in (first, second)))
        assert texts == [("0", None)] * 2


async def test_a_server_over_http_that_is_gone_fails_the_rollout():
    with served() as (url, process):
        remote = MCPToolset(name="remote", url=url, open_timeout_s=90)
        async with Open(remote) as server, server.rollout() as tools:
            process.kill()
            process.wait()
            with pytest.raises(ToolServerLost, match="MCP server 'remote'"):
                await called(tools, "picture")


async def test_each_rollout_has_a_process_of_its_own_that_dies_with_it():
    async with Open(raw()) as server:
        async with server.rollout() as first, server.rollout() as second:
            one, _ = await called(first, "add", '{"number": 2}')
            two, _ = await called(first, "add", '{"number": 3}')
            other, _ = await called(second, "add", '{"number": 7}')
            assert [text.partition(" ")[0] for text in (one, two, other)] == ["2", "5", "7"]
            assert is_alive(pid_in(one))
        assert not is_alive(pid_in(one))
        assert not is_alive(pid_in(other))


async def test_a_shared_session_is_one_for_all_rollouts_and_dies_with_the_run():
    async with Open(raw(per="run")) as server:
        async with server.rollout() as first:
            one, _ = await called(first, "add", '{"number": 2}')
        async with server.rollout() as second:
            two, _ = await called(second, "add", '{"number": 3}')
        assert (two.partition(" ")[0], pid_in(one)) == ("5", pid_in(two))
    assert not is_alive(pid_in(one))


@cases(
    ("tool", "content", "error"),
    [
        ("fail", "Error: this never works", "tool_error"),
        ("refuse", "Error: the tool's server refuses: no such argument", "tool_error"),
        ("talk_nonsense", "after nonsense", None),
        ("break_shape", "Error: the tool's server gave an answer that cannot be read", "tool_error"),
        ("break_text", "? and \ufffd", None),
        ("flood", "Error: the answer is longer than 8 MB: ask for less", "tool_error"),
        ("list_much", "Error: the answer is too many values: ask for less", "tool_error"),
        ("nest", "Error: the answer is nested too deeply: ask for less", "tool_error"),
    ],
)
async def test_what_a_server_does_to_a_call_is_told_to_the_model(tool, content, error):
    async with Open(raw()) as server, server.rollout() as tools:
        assert await called(tools, tool) == (content, error)
        assert (await called(tools, "add", '{"number": 1}'))[0].startswith("1 in")


async def longest_stall(work):
    """The result of `work`, and the longest time of this thread between two turns of the loop."""
    task, longest, before = asyncio.ensure_future(work), 0.0, time.thread_time()
    while not task.done():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, before = max(longest, now - before), now
    return await task, longest


async def test_no_answer_over_http_is_too_much_for_the_loop():
    with served("bulky_server.py") as (url, _):
        for what in ("packed", "parts", "parts in an event", "parts that are none", "nested", "long"):
            async with Open(MCPToolset(name="bulky", url=url)) as server, server.rollout() as tools:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                result, stall = await longest_stall(called(tools, "give", json.dumps({"what": what}), 90.0))
                assert (result[0][:6], result[1]) == ("Error:", "tool_error"), what
                assert stall < 0.25, what
                assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10, what
                assert (await called(tools, "give", '{"what": "much text"}'))[1] is None, what


async def test_a_call_that_is_given_up_leaves_the_session_usable():
    async with Open(raw()) as server, server.rollout() as tools:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(called(tools, "say_nothing"), 0.05)
        assert (await called(tools, "add", '{"number": 1}'))[0].startswith("1 in")


async def test_a_server_that_dies_fails_its_rollout():
    async with Open(raw()) as server, server.rollout() as tools:
        with pytest.raises(ToolServerLost, match="'raw': it ended in the middle"):
            await called(tools, "die")
        with pytest.raises(ToolServerLost):
            await called(tools, "add", '{"number": 1}')


async def test_a_shared_server_that_dies_fails_the_calls_in_flight_and_is_opened_again():
    async with Open(raw(per="run")) as server, server.rollout() as first, server.rollout() as second:
        waiting = asyncio.create_task(called(second, "say_nothing"))
        await called(first, "add", '{"number": 1}')
        with pytest.raises(ToolServerLost):
            await called(first, "die")
        with pytest.raises(ToolServerLost):
            await waiting
        assert (await called(second, "add", '{"number": 9}'))[0].startswith("9 in")


async def test_a_cancelled_rollout_leaves_no_process():
    async with Open(raw()) as server:
        entered = asyncio.get_running_loop().create_future()

        async def roll():
            async with server.rollout() as tools:
                entered.set_result(await called(tools, "add", '{"number": 1}'))
                await asyncio.Event().wait()

        rollout = asyncio.create_task(roll())
        pid = pid_in((await entered)[0])
        rollout.cancel()
        await asyncio.wait({rollout})
        assert not is_alive(pid)


@pytest.mark.parametrize("does", ["stays", "floods", "leaves a child"])
async def test_a_server_that_does_not_end_by_itself_is_killed_with_its_children(does):
    mark = marker()
    async with Open(raw(does, mark, per="run")):
        assert running(mark)
    assert running(mark) == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


def running(mark):
    """The processes whose command line holds a mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@cases(
    ("server", "says"),
    [
        pytest.param(raw("ends at once"), "no such option: --frobnicate", id="ends-at-once"),
        pytest.param(
            raw("answers nothing", open_timeout_s=0.5), "no session was opened within 0.5", id="silent"
        ),
        pytest.param(raw("no schema"), "lists no tools", id="no-schema"),
        pytest.param(raw("properties of a list"), "is of no object|lists no tools", id="properties"),
        pytest.param(raw("long schema"), "are too long", id="long-schema"),
        pytest.param(raw("odd name"), r"tool 'files/read' .* leave it out", id="odd-name"),
        pytest.param(raw("twice"), "more than one tool called add", id="twice"),
        pytest.param(raw("pages without an end"), "lists more than 512 tools", id="pages"),
        pytest.param(raw("many"), "lists more than 512 tools", id="one-page"),
        pytest.param(raw("", only=("no",)), r"no tools \['no'\]; choose from \['add', ", id="only"),
        pytest.param(
            MCPToolset(name="gone", command="/nowhere/server"), "cannot be started", id="no-program"
        ),
        pytest.param(
            MCPToolset(name="gone", url="http://127.0.0.1:9/mcp", open_timeout_s=5), "'gone'", id="no-port"
        ),
    ],
)
async def test_a_server_that_cannot_be_used_is_refused_in_one_line(server, says):
    with pytest.raises(ConfigError, match=says) as refused:
        async with Open(server):
            pass
    assert "\n" not in str(refused.value)


@cases(
    "fields",
    [
        pytest.param({}, id="neither"),
        pytest.param({"command": "a", "url": "http://b"}, id="both"),
        pytest.param({"command": "a", "per": "group"}, id="per"),
        pytest.param({"command": "a", "args": (1,)}, id="args-of-numbers"),
        pytest.param({"url": "a/mcp"}, id="url"),
        pytest.param({"url": "http://a", "headers": {"A": None}}, id="headers"),
        pytest.param({"command": "a", "open_timeout_s": 0}, id="timeout"),
    ],
)
def test_a_toolset_that_contradicts_itself_is_refused(fields):
    with pytest.raises(ConfigError, match="MCPToolset 'x'"):
        MCPToolset(name="x", **fields)


def test_without_the_package_a_line_says_what_to_install():
    code = (
        "import sys, asyncio; sys.modules['mcp'] = None; sys.modules['mcp_types'] = None\n"
        "from tools.mcp.mcp_servers import MCPServers; from tools.mcp.mcp_toolset import MCPToolset\n"
        "async def main():\n"
        "    async with MCPServers([MCPToolset(name='x', command='y')]).connect(print): pass\n"
        "asyncio.run(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'turnwise[mcp]'" in done.stderr.splitlines()[-1]
