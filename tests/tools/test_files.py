import json
from collections.abc import AsyncIterator

import pytest

from tests.tables import cases
from tools.calls import ToolCall, ToolResult
from tools.files import file
from tools.sandbox import open_sandbox
from tools.sandbox.base import Sandbox


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with open_sandbox("local") as opened:
        yield opened


async def use(sandbox: Sandbox, name: str, **arguments: object) -> ToolResult:
    call = ToolCall(id="c", name=name, arguments=json.dumps(arguments))
    return await file.execute(call, sandbox, timeout_s=10.0, max_output_chars=100_000)


async def said(sandbox: Sandbox, name: str, **arguments: object) -> str:
    result = await use(sandbox, name, **arguments)
    assert result.error is None, result.content
    return result.content


async def refused(sandbox: Sandbox, name: str, **arguments: object) -> str:
    result = await use(sandbox, name, **arguments)
    assert result.error == "tool_error", result.content
    return result.content


READS = {
    "its lines are numbered": (b"one\n\nthree\n", {}, "1\tone\n2\t\n3\tthree"),
    "a part": (b"1\n2\n3\n4\n5", {"start_line": 2, "end_line": 3}, "2\t2\n3\t3\n[lines 2 to 3 of 5]"),
    "beyond its end": (b"1\n2\n", {"start_line": 2, "end_line": 99}, "2\t2\n[lines 2 to 2 of 2]"),
    "an empty one": (b"", {}, "[a.txt is empty]"),
}


@cases("content, lines, text", READS.values(), ids=READS)
async def test_read_file_shows_the_lines_that_are_asked_for(sandbox: Sandbox, content, lines, text):
    await sandbox.write_file("a.txt", content)
    assert await said(sandbox, "read_file", path="a.txt", **lines) == text


async def test_read_file_starts_within_the_file(sandbox: Sandbox):
    await sandbox.write_file("a.txt", b"1\n2\n")
    message = await refused(sandbox, "read_file", path="a.txt", start_line=3)
    assert message == "Error: a.txt has 2 lines, so there is no line 3"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing.txt", "does not exist"),
        ("folder", "is a directory"),
        ("folder/a.txt/b.txt", "is a file, not a directory"),
        ("binary", "is not UTF-8 text (4 bytes)"),
        ("zeros", "is not UTF-8 text (3 bytes)"),
        ("", "is not a path"),
        ("a\0b", "is not a path"),
    ],
)
async def test_a_file_that_cannot_be_read_is_refused_with_the_reason(
    sandbox: Sandbox, path: str, reason: str
):
    await sandbox.write_file("folder/a.txt", b"x")
    await sandbox.write_file("binary", b"\xff\xfe\x80\x81")
    await sandbox.write_file("zeros", b"a\0b")
    assert reason in await refused(sandbox, "read_file", path=path)


async def test_write_file_makes_the_folders(sandbox: Sandbox):
    assert await said(sandbox, "write_file", path="a/b/c.txt", content="naïve\n") == (
        "Wrote a/b/c.txt (7 bytes, 1 lines)."
    )
    assert await sandbox.read_file("a/b/c.txt") == "naïve\n".encode()


async def test_write_file_keeps_what_the_model_wrote(sandbox: Sandbox):
    content = "\ufeffa\r\nb\rc\n\n\t$HOME `x` \\n ' \" \u2028"
    await use(sandbox, "write_file", path="a.txt", content=content)
    assert await sandbox.read_file("a.txt") == content.encode()


async def test_write_file_keeps_a_script_executable(sandbox: Sandbox):
    await sandbox.write_file("run.sh", b"#!/bin/sh\n", mode=0o755)
    await use(sandbox, "write_file", path="run.sh", content="#!/bin/sh\necho done\n")
    assert (await sandbox.exec(["./run.sh"])).text() == "done\n"


@pytest.mark.parametrize(
    ("path", "reason"), [("folder", "directory"), ("folder/a/b", "is a file"), ("/proc/x", "/proc/x")]
)
async def test_a_file_that_cannot_be_written_is_refused(sandbox: Sandbox, path: str, reason: str):
    await sandbox.write_file("folder/a", b"x")
    assert reason in await refused(sandbox, "write_file", path=path, content="x")


EDITS = {
    "one": ({"old": "y\r\n", "new": "z\r\n"}, "Replaced 1 place in a.py, at line 2.", b"x\r\nz\r\nx\n"),
    "several": ({"old": "x", "new": "z"}, "found 2 times in a.py, at lines 1, 3.", b"x\r\ny\r\nx\n"),
    "all": (
        {"old": "x", "new": "xx", "replace_all": True},
        "Replaced 2 places in a.py, at lines 1, 3.",
        b"xx\r\ny\r\nxx\n",
    ),
}


@cases("edit, message, left", EDITS.values(), ids=EDITS)
async def test_edit_file_replaces_the_one_match_or_all_when_asked(sandbox: Sandbox, edit, message, left):
    await sandbox.write_file("a.py", b"x\r\ny\r\nx\n")
    assert message in (await use(sandbox, "edit_file", path="a.py", **edit)).content
    assert await sandbox.read_file("a.py") == left


@pytest.mark.parametrize(
    ("old", "hint"),
    [
        ("if x :\n  return", "other spaces or line breaks"),
        ("if x:\n    pass", "Its first line is at line 1"),
        ("while x:", "without line numbers"),
    ],
)
async def test_edit_file_without_match_says_what_to_do(sandbox: Sandbox, old: str, hint: str):
    await sandbox.write_file("a.py", b"if x:\n    return\n")
    message = await refused(sandbox, "edit_file", path="a.py", old=old, new="new")
    assert "found 0 times" in message
    assert hint in message


async def test_search_finds_lines_by_regular_expression(sandbox: Sandbox):
    await sandbox.write_file("b.py", b"total = 1\nnot this\n")
    await sandbox.write_file("a/c.py", b"\nsub_total = 2\n")
    await sandbox.write_file("a/binary", b"total\0")
    await sandbox.write_file(".git/d.py", b"total\n")
    assert await said(sandbox, "search", pattern=r"\w*total\b") == (
        "b.py:1: total = 1\na/c.py:2: sub_total = 2\n[2 matching lines in 3 files searched]"
    )


async def test_search_takes_a_path_and_a_glob(sandbox: Sandbox):
    for name in ("a/x.py", "a/x.txt", "b/x.py"):
        await sandbox.write_file(name, b"hit\n")
    assert await said(sandbox, "search", pattern="hit", path="a", glob="*.py") == (
        "a/x.py:1: hit\n[1 matching lines in 1 files searched]"
    )


async def test_search_output_is_bounded(sandbox: Sandbox):
    await sandbox.write_file("long.txt", b"x" * 5000 + b"\n" + b"x\n" * 500)
    content = await said(sandbox, "search", pattern="x")
    assert len(content.splitlines()) == 201
    assert "[stopped after 200 matching lines; " in content
    assert len(content.splitlines()[0]) < 400


async def test_a_pattern_is_data_and_never_runs(sandbox: Sandbox):
    await sandbox.write_file("a.txt", b"x'; touch owned; '\n")
    assert "a.txt:1: " in await said(sandbox, "search", pattern="'; touch owned; '", path="./a.txt")
    assert "owned" not in await said(sandbox, "list_files")


async def test_a_pattern_that_is_no_expression_is_refused(sandbox: Sandbox):
    assert "not a valid Python regular expression" in await refused(sandbox, "search", pattern="(")


async def test_a_pattern_that_takes_for_ever_is_stopped(sandbox: Sandbox):
    await sandbox.write_file("a.txt", b"x" * 60)
    call = ToolCall(id="c", name="search", arguments='{"pattern": "(x+x+)+y"}')
    result = await file.execute(call, sandbox, timeout_s=0.5, max_output_chars=1000)
    assert (result.error, "simpler pattern" in result.content) == ("tool_error", True)


async def test_list_files_shows_sizes_folders_and_links(sandbox: Sandbox):
    await sandbox.write_file("a/b/c.txt", b"123")
    await sandbox.write_file("d.txt", b"")
    await sandbox.exec(["ln", "-s", "/etc", "etc"])
    assert await said(sandbox, "list_files") == "a/\na/b/\nd.txt (0 bytes)\netc -> /etc"


async def test_list_files_is_bounded(sandbox: Sandbox):
    await sandbox.exec("for i in $(seq 300); do : > f$i; done")
    content = await said(sandbox, "list_files")
    assert len(content.splitlines()) == 201
    assert content.endswith("or use a smaller depth]")


@pytest.mark.parametrize("tool", ["list_files", "search"])
async def test_a_folder_that_is_missing_is_refused(sandbox: Sandbox, tool: str):
    arguments = {"pattern": "x"} if tool == "search" else {}
    assert "nowhere does not exist" in await refused(sandbox, tool, path="nowhere", **arguments)
