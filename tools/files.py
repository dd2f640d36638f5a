"""The `file` toolset: read, write, edit, search and list files inside the sandbox."""

import inspect
import json
from typing import Annotated, Any

from pydantic import Field

from tools import file_program
from tools.errors import ToolError
from tools.registry import Toolset, tool
from tools.sandbox.base import Sandbox, run_python

_PROGRAM = inspect.getsource(file_program)
_LONGEST_S = 20.0
_LONGEST_PATH = 4096


@tool
async def read_file(
    sandbox: Sandbox,
    path: str,
    start_line: Annotated[int, Field(ge=1)] = 1,
    end_line: Annotated[int | None, Field(ge=1)] = None,
) -> str:
    """Read a text file.

    Each line is shown as its number, a tab, and the line itself. For a long file read only the lines that
    you need.

    Args:
        path: The file; a relative path starts at the workspace, not at the terminal's directory.
        start_line: First line to show, counted from 1.
        end_line: Last line to show; the end of the file when left out.
    """
    if end_line is not None and end_line < start_line:
        raise ToolError(f"end_line {end_line} is before start_line {start_line}")
    return await _run(sandbox, "read", path, first=start_line, last=end_line)


@tool
async def write_file(sandbox: Sandbox, path: str, content: str) -> str:
    """Write a text file: create it, or replace everything that was in it.

    Missing parent directories are created. To change part of a file use edit_file.

    Args:
        path: The file; a relative path starts at the workspace, not at the terminal's directory.
        content: The whole new content, exactly as it should be in the file.
    """
    return await _run(sandbox, "write", path, content=content)


@tool
async def edit_file(sandbox: Sandbox, path: str, old: str, new: str, replace_all: bool = False) -> str:
    """Replace a piece of text in a file.

    `old` must be in the file exactly once, character for character, with its indentation and line breaks and
    without the line numbers that read_file shows. Include a few lines around the change to make it unique.

    Args:
        path: The file; a relative path starts at the workspace, not at the terminal's directory.
        old: The text to replace.
        new: The text to put there.
        replace_all: Replace every place where `old` is found instead of requiring exactly one.
    """
    if not old:
        raise ToolError("`old` is empty; give the text to replace, or use write_file for a whole file")
    if old == new:
        raise ToolError("`old` and `new` are the same, nothing would change")
    return await _run(sandbox, "edit", path, old=old, new=new, everywhere=replace_all)


@tool
async def search(sandbox: Sandbox, pattern: str, path: str = ".", glob: str = "*") -> str:
    r"""Search the lines of text files for a regular expression.

    Each match is shown as `file:line number: line`. Binary files and folders like `.git` are left out.

    Args:
        pattern: A Python regular expression, for example `def \w+_total`.
        path: The file or directory to search; the workspace when left out.
        glob: Search only files whose name or path matches, for example `*.py`.
    """
    return await _run(sandbox, "search", path, pattern=pattern, glob=glob)


@tool
async def list_files(sandbox: Sandbox, path: str = ".", depth: Annotated[int, Field(ge=1, le=20)] = 2) -> str:
    """List a directory: its files with their sizes, its directories with a `/` at the end.

    Args:
        path: The directory; the workspace when left out.
        depth: How many levels of directories to list.
    """
    return await _run(sandbox, "list", path, depth=depth)


file = Toolset("file", (read_file, write_file, edit_file, search, list_files))
"""Toolset `file`."""


async def _run(sandbox: Sandbox, do: str, path: str, **request: Any) -> str:
    if not path or "\0" in path or len(path) > _LONGEST_PATH:
        raise ToolError(f"{path[:_LONGEST_PATH]!r} is not a path")
    stdin = json.dumps({"do": do, "path": path, **request}).encode()
    result = await run_python(sandbox, _PROGRAM, stdin=stdin, timeout_s=_LONGEST_S)
    if result.timed_out:
        raise ToolError(
            f"stopped after {result.duration_s:.0f} s; narrow the path or glob, or use a simpler pattern"
        )
    if result.oom_killed:
        raise ToolError("stopped: it needs more memory than the sandbox has; use a terminal command")
    if result.exit_code != 0:
        said = result.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ToolError(said[-1] if said else f"stopped with exit code {result.exit_code}")
    return result.text().removesuffix("\n")
