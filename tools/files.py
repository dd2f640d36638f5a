"""The `file` toolset: read, write, edit, search and list files, all inside the sandbox."""

import errno
import inspect
import json
from typing import Annotated, Any

from pydantic import Field

from tools import file_walk
from tools.errors import ToolError
from tools.registry import Toolset, tool
from tools.sandbox.base import Sandbox

_WALK_SOURCE = inspect.getsource(file_walk)
_DEFAULT_MODE = 0o644


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
    text = await _read_text(sandbox, path)
    if not text:
        return f"[{path} is empty]"
    lines = text.removesuffix("\n").split("\n")
    if start_line > len(lines):
        raise ToolError(f"{path} has {len(lines)} lines, so there is no line {start_line}")
    shown = lines[start_line - 1 : end_line]
    numbered = [f"{number}\t{line}" for number, line in enumerate(shown, start_line)]
    if len(shown) < len(lines):
        numbered.append(f"[lines {start_line} to {start_line + len(shown) - 1} of {len(lines)}]")
    return "\n".join(numbered)


@tool
async def write_file(sandbox: Sandbox, path: str, content: str) -> str:
    """Write a text file: create it, or replace everything that was in it.

    Missing parent directories are created. To change part of a file use edit_file.

    Args:
        path: The file; a relative path starts at the workspace, not at the terminal's directory.
        content: The whole new content, exactly as it should be in the file.
    """
    await _write_text(sandbox, path, content)
    size = len(content.encode())
    return f"Wrote {path} ({size} bytes, {len(content.splitlines())} lines)."


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
    text = await _read_text(sandbox, path)
    count = text.count(old)
    if count == 0:
        raise ToolError(f"`old` was found 0 times in {path}. {_why_no_match(text, old)}")
    lines = _match_lines(text, old)
    if count > 1 and not replace_all:
        raise ToolError(
            f"`old` was found {count} times in {path}, at lines {_listed(lines)}. Include more of the lines "
            f"around it so that it is unique, or set replace_all to true."
        )
    await _write_text(sandbox, path, text.replace(old, new))
    places = "1 place" if count == 1 else f"{count} places"
    return f"Replaced {places} in {path}, at line{'s' * (count > 1)} {_listed(lines)}."


@tool
async def search(sandbox: Sandbox, pattern: str, path: str = ".", glob: str = "*") -> str:
    r"""Search the lines of text files for a regular expression.

    Each match is shown as `file:line number: line`. Binary files and folders like `.git` are left out.

    Args:
        pattern: A Python regular expression, for example `def \w+_total`.
        path: The file or directory to search; the workspace when left out.
        glob: Search only files whose name or path matches, for example `*.py`.
    """
    return await _walk(sandbox, {"do": "search", "path": path, "pattern": pattern, "glob": glob})


@tool
async def list_files(sandbox: Sandbox, path: str = ".", depth: Annotated[int, Field(ge=1, le=20)] = 2) -> str:
    """List a directory: its files with their sizes, its directories with a `/` at the end.

    Args:
        path: The directory; the workspace when left out.
        depth: How many levels of directories to list.
    """
    return await _walk(sandbox, {"do": "list", "path": path, "depth": depth})


file = Toolset("file", (read_file, write_file, edit_file, search, list_files))
"""Toolset `file`."""


async def _read_text(sandbox: Sandbox, path: str) -> str:
    _check_path(path)
    try:
        data = await sandbox.read_file(path)
    except OSError as error:
        raise ToolError(_reason(path, error)) from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ToolError(f"{path} is not UTF-8 text ({len(data)} bytes); look at it with a terminal command")
    return text


async def _write_text(sandbox: Sandbox, path: str, text: str) -> None:
    _check_path(path)
    mode = await _mode(sandbox, path)
    try:
        await sandbox.write_file(path, text.encode(), mode=mode)
    except OSError as error:
        raise ToolError(_reason(path, error)) from None


async def _mode(sandbox: Sandbox, path: str) -> int:
    """Permissions to keep: those of the file, or the default for a new one."""
    result = await sandbox.exec(["stat", "-L", "-c", "%a", "--", path])
    return int(result.stdout, 8) if result.exit_code == 0 else _DEFAULT_MODE


async def _walk(sandbox: Sandbox, request: dict[str, Any]) -> str:
    _check_path(request["path"])
    result = await sandbox.exec(
        ["python3", "-I", "-S", "-c", _WALK_SOURCE], stdin=json.dumps(request).encode(), timeout_s=20.0
    )
    if result.timed_out:
        raise ToolError(
            f"stopped after {result.duration_s:.0f} s; narrow the path or glob, or use a simpler pattern"
        )
    if result.exit_code != 0:
        said = result.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ToolError(said[-1] if said else f"stopped with exit code {result.exit_code}")
    return result.text().removesuffix("\n")


def _check_path(path: str) -> None:
    if not path or "\0" in path:
        raise ToolError(f"{path!r} is not a path")


def _reason(path: str, error: OSError) -> str:
    match error:
        case FileNotFoundError():
            return f"{path} does not exist; list_files shows what does"
        case IsADirectoryError():
            return f"{path} is a directory, not a file"
        case NotADirectoryError() | FileExistsError():
            return f"part of {path} is a file, not a directory"
        case PermissionError():
            return f"no permission for {path}"
        case OSError(errno=errno.ENOSPC):
            return f"no space is left in the workspace for {path}"
        case _:
            return f"{path}: {error.strerror or error}"


def _match_lines(text: str, old: str) -> list[int]:
    lines, start = list[int](), text.find(old)
    while start >= 0:
        lines.append(text.count("\n", 0, start) + 1)
        start = text.find(old, start + len(old))
    return lines


def _listed(lines: list[int]) -> str:
    more = f" and {len(lines) - 10} more" if len(lines) > 10 else ""
    return ", ".join(map(str, lines[:10])) + more


def _why_no_match(text: str, old: str) -> str:
    """The likely reason, so that the next try can work."""
    if "".join(old.split()) in "".join(text.split()):
        return "It is there with other spaces or line breaks: copy the indentation exactly from read_file."
    first = old.strip().split("\n")[0].strip()
    near = [number for number, line in enumerate(text.split("\n"), 1) if first and first in line]
    if near:
        return f"Its first line is at line {_listed(near)}, but what follows differs: read the file again."
    return "Read the file again and copy the text exactly, without line numbers."
