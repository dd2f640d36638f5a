"""What a model writes into tool calls and files, however large or odd, never stops the event loop."""

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tools.calls import ToolCall, ToolResult
from tools.files import file
from tools.registry import Toolset, tool
from tools.sandbox import open_sandbox
from tools.sandbox.base import Sandbox
from tools.terminal import terminal

MB10 = 10 << 20
LONGEST_STOP_S = 0.1


@tool
async def nested(sandbox: Sandbox, rows: list[list[int]], flag: bool = False) -> str:
    """Take rows.

    Args:
        rows: numbers.
        flag: or not.
    """
    del sandbox
    return f"{len(rows)} {flag}"


ALL = Toolset.merged([file, terminal, Toolset("own", (nested,))])

# ruff: noqa: UP031  # of JSON, whose braces would have to be doubled
FILES = {
    "one line": b"x" * MB10,
    "invalid UTF-8": b"\xff\xfe" * (MB10 // 2),
    "too large": b"x\n" * MB10,
}
CALLS: dict[str, tuple[str, dict[str, object]]] = {
    "read": ("read_file", {}),
    "edit all": ("edit_file", {"old": "\n", "new": "yy", "replace_all": True}),
    "edit into much": ("edit_file", {"old": "a", "new": "b" * 900_000, "replace_all": True}),
    "edit nothing": ("edit_file", {"old": "def f(x):\n\treturn 2\n" * 1000, "new": "y"}),
    "edit a long near match": ("edit_file", {"old": "ab" * 200_000 + "c", "new": "y"}),
    "search with bait": ("search", {"pattern": "(a+a+)+$b"}),
    "search all": ("search", {"pattern": ""}),
    "cat": ("terminal", {"command": "cat file"}),
}
TEXTS = {
    "unclosed string": '{"path": "' + '\\"' * (MB10 // 2),
    "surrogates": '{"path": "a", "content": "%s"}' % ("\\ud800" * (MB10 // 6)),
    "many keys": "{%s}" % ",".join(f'"{number}":1' for number in range(MB10 // 11)),
    "values of 32 KB": '{"rows": [%s1]}' % ("[]," * 10_800),
    "deep": '{"path": %s' % ("[" * MB10),
    "digits": '{"path": %s}' % ("9" * MB10),
    "a long command": '{"command": "%s"}' % ("true;" * 190_000),
}


@asynccontextmanager
async def unstopped():
    """Fails when the event loop worked for long without coming back; other programs' work does not count."""
    longest_s = 0.0

    async def beat():
        nonlocal longest_s
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest_s, last = max(longest_s, now - last), now

    gc.disable()  # a collection looks through all that pytest and its plugins hold, too
    beating = asyncio.create_task(beat())
    try:
        yield
        await asyncio.sleep(0)
    finally:
        beating.cancel()
        gc.enable()
    assert longest_s < LONGEST_STOP_S, f"the event loop stood still for {longest_s:.3f} s"


async def call(sandbox: Sandbox, name: str, arguments: str) -> ToolResult:
    wanted = ToolCall(id="c", name=name, arguments=arguments)
    return await ALL.execute(wanted, sandbox, timeout_s=5.0, max_output_chars=10_000)


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with open_sandbox("local") as opened:
        yield opened


@pytest.mark.parametrize("content", FILES)
async def test_no_content_of_a_file_stops_the_loop(sandbox: Sandbox, content: str, soak: bool):
    # Every content meets every third call, and every call every third content; with `--soak` all meet.
    first, every = (0, 1) if soak else (list(FILES).index(content) % 3, 3)
    for name, arguments in list(CALLS.values())[first::every]:
        await sandbox.write_file("file", FILES[content])
        where = {} if name == "terminal" else {"path": "file"}
        async with unstopped():
            result = await call(sandbox, name, json.dumps(where | arguments))
        assert len(result.content) <= 10_000
    assert (await sandbox.exec("true")).exit_code == 0


@pytest.mark.parametrize("text", TEXTS)
async def test_no_arguments_stop_the_loop(sandbox: Sandbox, text: str):
    for name in ("write_file", "edit_file", "read_file", "search", "terminal", "nested"):
        async with unstopped():
            result = await call(sandbox, name, TEXTS[text])
        assert len(result.content) <= 10_000


async def test_a_crowded_folder_stops_nothing(sandbox: Sandbox):
    await sandbox.exec(
        ["python3", "-c", "import os; os.mkdir('many'); [open(f'many/{i:0200}', 'w') for i in range(60_000)]"]
    )
    for name, arguments in (
        ("list_files", {}),
        ("search", {"pattern": "x"}),
        ("terminal", {"command": "ls"}),
    ):
        where = {"command": "ls many"} if name == "terminal" else {"path": "many", **arguments}
        async with unstopped():
            result = await call(sandbox, name, json.dumps(where))
        assert len(result.content) <= 10_000
    await sandbox.exec("rm -r many")
