import pytest

from tests.tables import cases
from tools.calls import ToolCall, ToolContext, ToolResult
from tools.errors import ConfigError, SandboxUnavailable, ToolError
from tools.registry import ToolOutput, Toolset, tool
from tools.sandbox.base import ExecResult, Sandbox, SandboxLimits, SandboxRecord


class RecordingSandbox:
    """Answers every command with the time it was given; these tests need no machine."""

    record = SandboxRecord(backend="recording", tier="-", limits=SandboxLimits(), enforced=())
    workdir = "/"

    async def exec(self, command: object, *, timeout_s: float = 60.0, **_: object) -> ExecResult:
        return ExecResult(
            exit_code=0, stdout=b"", stderr=b"", stdout_total=0, stderr_total=0, duration_s=timeout_s
        )

    async def shell(self, command: str, *, timeout_s: float = 60.0, **_: object) -> ExecResult:
        return await self.exec(command, timeout_s=timeout_s)

    async def read_file(self, path: str, *, max_bytes: int = 0) -> bytes:
        return path.encode()

    async def write_file(self, path: str, data: bytes, *, mode: int = 0) -> None:
        raise FileExistsError(path)

    async def put_archive(self, archive: bytes, path: str = ".") -> None:
        raise FileExistsError(path)

    async def get_archive(self, path: str, *, max_bytes: int = 0) -> bytes:
        return path.encode()


ran: list[str] = []


@tool
async def shout(sandbox: Sandbox, text: str, times: int = 1) -> str:
    """Repeat in capitals."""
    ran.append(text)
    return text.upper() * times


@tool
async def refuse(sandbox: Sandbox) -> str:
    """Refuse."""
    raise ToolError("not today")


@tool
async def crash(sandbox: Sandbox) -> str:
    """Crash."""
    raise KeyError("bug")


@tool
async def vanish(sandbox: Sandbox) -> str:
    """Lose the sandbox."""
    raise SandboxUnavailable("gone")


@tool
async def exit_with(sandbox: Sandbox, code: int) -> ToolOutput:
    """Fail like a command."""
    return ToolOutput(content="done", exit_code=code, timed_out=code == 124)


@tool
async def wait(sandbox: Sandbox, timeout_s: float | None = None) -> str:
    """Say how long a command may take."""
    given = {} if timeout_s is None else {"timeout_s": timeout_s}
    return f"{(await sandbox.exec('x', **given)).duration_s} {(await sandbox.shell('x', **given)).duration_s}"


TOOLS = Toolset("test", (shout, refuse, crash, vanish, exit_with, wait))


async def execute(name: str, arguments: str = "{}", max_output_chars: int = 8000) -> ToolResult:
    call = ToolCall(id="c1", name=name, arguments=arguments)
    return await TOOLS.execute(call, RecordingSandbox(), timeout_s=30.0, max_output_chars=max_output_chars)


def test_a_tool_can_be_given_a_name():
    @tool(name="say-it")
    async def anything(sandbox: Sandbox) -> str:
        """Say."""
        return ""

    assert anything.name == "say-it"


@pytest.mark.parametrize("name", ["", "two words", "größe", "x" * 65])
def test_a_name_that_servers_refuse_is_an_error(name: str):
    async def anything(sandbox: Sandbox) -> str:
        """Say."""
        return ""

    with pytest.raises(ConfigError, match="use 1 to 64 ASCII letters"):
        tool(name=name)(anything)


def test_two_tools_of_one_name_are_an_error():
    with pytest.raises(ConfigError, match="more than one tool called shout"):
        Toolset("double", (shout, shout))


def test_merged_toolsets_keep_their_order():
    merged = Toolset.merged([Toolset("a", (crash,)), Toolset("b", (shout, refuse))])
    assert (merged.name, [spec.name for spec in merged.specs]) == ("a+b", ["crash", "shout", "refuse"])


async def test_a_call_gives_what_the_function_returned():
    result = await execute("shout", '{"text": "hey", "times": 2}')
    assert (result.content, result.error, result.call_id, result.name) == ("HEYHEY", None, "c1", "shout")


async def test_an_unknown_tool_is_answered_with_the_tools_there_are():
    result = await execute("bash")
    assert result.error == "unknown_tool"
    assert result.content == (
        "There is no tool 'bash'. Tools: shout, refuse, crash, vanish, exit_with, wait."
    )


@cases(
    ("arguments", "kind"),
    [
        ('{"text": "never"', "invalid_json"),
        ('["never"]', "invalid_json"),
        ('{"text": "never", "text": "never"}', "invalid_json"),
        ('{"text": "never", "volume": 3}', "invalid_arguments"),
        ('{"text": ["never"]}', "invalid_arguments"),
        ("{}", "invalid_arguments"),
    ],
)
async def test_a_call_that_is_not_understood_runs_nothing(arguments: str, kind: str):
    ran.clear()
    result = await execute("shout", arguments)
    assert (result.error, ran) == (kind, [])


@pytest.mark.parametrize("status", ["invalid_json", "unclosed_block", "missing_name", "malformed"])
async def test_a_call_that_a_parser_could_not_read_runs_nothing(status: str):
    ran.clear()
    call = ToolCall(id="c1", name="shout", arguments='{"text": "never"}', status=status)
    result = await TOOLS.execute(call, RecordingSandbox(), timeout_s=30.0, max_output_chars=8000)
    assert (ran, result.error) == ([], "invalid_json")
    assert result.content.startswith("The call was not run: it ")


async def test_a_tool_error_is_shown_to_the_model():
    result = await execute("refuse")
    assert (result.error, result.content) == ("tool_error", "Error: not today")


async def test_a_bug_in_a_tool_leaves_the_rollout():
    with pytest.raises(KeyError):
        await execute("crash")


async def test_a_broken_sandbox_leaves_the_rollout():
    with pytest.raises(SandboxUnavailable):
        await execute("vanish")


@pytest.mark.parametrize(
    ("arguments", "given"),
    [("{}", "30.0 30.0"), ('{"timeout_s": 5}', "5.0 5.0"), ('{"timeout_s": 900}', "30.0 30.0")],
)
async def test_no_command_of_a_tool_may_take_longer_than_the_limit(arguments: str, given: str):
    assert (await execute("wait", arguments)).content == given


async def test_long_output_keeps_head_and_tail_and_says_what_was_cut():
    result = await execute("shout", '{"text": "abcdefghij", "times": 1000}', max_output_chars=200)
    assert result.content.startswith("ABCDEFGHIJ")
    assert result.content.endswith("ABCDEFGHIJ")
    assert "of 10000 characters cut" in result.content


@cases("made_of", [3, len, str, staticmethod(len), type("Called", (), {})()], ids=type)
def test_what_is_no_function_is_no_tool(made_of: object):
    with pytest.raises(ConfigError, match="@tool makes a tool of a function, and not of "):
        tool(made_of)  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_a_def_cannot_be_parallel():
    def add(a: int) -> int:
        """Add."""
        return a

    with pytest.raises(ConfigError, match="tool 'add': a parallel tool is `async def`"):
        tool(parallel=True)(add)


@tool(parallel=True)
async def fetch(page: str) -> str:
    """Fetch."""
    return page


@cases(
    ("names", "status", "side_by_side"),
    [
        (["fetch", "fetch"], "ok", True),
        (["fetch"], "ok", False),
        (["fetch", "shout"], "ok", False),
        (["fetch", "nothing"], "ok", False),
        (["fetch", "fetch"], "malformed", False),
    ],
    ids=["all marked", "one alone", "one unmarked", "one unknown", "one unreadable"],
)
def test_calls_run_side_by_side_only_when_all_of_them_may(names: list[str], status: str, side_by_side: bool):
    calls = [ToolCall(id=str(i), name=name, arguments="{}", status=status) for i, name in enumerate(names)]
    assert Toolset("mixed", (fetch, shout)).are_parallel(calls) is side_by_side


@pytest.mark.parametrize("name", ["sandbox", "self", "context", "shop"])
async def test_no_model_gives_what_the_rollout_gives(name: str):
    result = await execute("refuse", f'{{"{name}": "mine"}}')
    assert result.content == f"refuse was not run. `{name}` is not a parameter. Parameters: none."


async def test_a_tool_of_a_rollout_says_so_where_there_is_none():
    @tool
    def ending(ctx: ToolContext) -> None:
        """End."""

    call = ToolCall(id="c", name="ending", arguments="")
    with pytest.raises(ConfigError, match="tool 'ending' takes ToolContext, which only a rollout gives"):
        await Toolset("t", (ending,)).execute(call, RecordingSandbox(), timeout_s=1, max_output_chars=200)
