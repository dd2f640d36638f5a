import json
import re
from collections.abc import AsyncIterator

import pytest

from tests.tables import cases
from tools.calls import ToolCall, ToolResult
from tools.sandbox import open_sandbox
from tools.sandbox.base import Sandbox, SandboxLimits
from tools.terminal import terminal


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with open_sandbox("local", limits=SandboxLimits(memory_mb=128, disk_mb=32, output_mb=4)) as opened:
        yield opened


async def run(sandbox: Sandbox, command: str, limit_s: float = 20.0, **arguments: object) -> ToolResult:
    call = ToolCall(id="c", name="terminal", arguments=json.dumps({"command": command, **arguments}))
    return await terminal.execute(call, sandbox, timeout_s=limit_s, max_output_chars=2000)


SHOWN = {
    "output": ("echo hello", "hello\n[exit code: 0]"),
    "errors apart": ("echo out; echo err >&2; false", "out\n[stderr]\nerr\n[exit code: 1]"),
    "silence": ("true", "[no output]\n[exit code: 0]"),
    "the end of the shell": ("exit 3", "[the shell had to be restarted: "),
    "no memory": (
        "python3 -c 'bytearray(1 << 30)'", "[killed: the command used more memory than the sandbox has]"
    ),
    "much output": (
        "head -c 1000000 /dev/zero | tr '\\0' x", "printed 1000000 bytes to stdout and 0 bytes to stderr; "
    ),
}  # fmt: skip


@cases("command, shown", SHOWN.values(), ids=SHOWN)
async def test_the_model_is_told_what_a_command_did(sandbox: Sandbox, command: str, shown: str):
    assert shown in (await run(sandbox, command)).content


async def test_directory_variables_and_functions_stay(sandbox: Sandbox):
    await run(sandbox, "mkdir -p deep && cd deep && colour=blue && greet() { echo hi; }")
    assert (await run(sandbox, "pwd; echo $colour; greet")).content == (
        f"{sandbox.workdir}/deep\nblue\nhi\n[exit code: 0]"
    )


async def test_a_timeout_is_said_in_words(sandbox: Sandbox):
    result = await run(sandbox, "echo begun; sleep 1000", limit_s=2.0)
    assert result.timed_out
    assert "begun\n" in result.content
    assert re.search(r"\[stopped: still running after \d+\.\d s\]", result.content)


async def test_the_model_may_ask_for_less_time(sandbox: Sandbox):
    assert (await run(sandbox, "sleep 1000", timeout_s=0.2)).timed_out


@pytest.mark.parametrize("command", ["", "  \n", "echo a\0b"])
async def test_what_is_no_command_is_refused(sandbox: Sandbox, command: str):
    assert (await run(sandbox, command)).error == "tool_error"
