"""Outputs of tools: text or JSON, limited in length."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_jsonable_python

from tools.errors import ToolError

_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """A tool's output with more than text."""

    content: str
    exit_code: int | None = None
    """Exit status of the tool's command."""
    timed_out: bool = False


def output_of(given: Any, tool: str) -> ToolOutput:
    """Convert a tool's return value: text as it is, other values as JSON.

    Raises:
        ToolError: if a number is too long to print, which the model may have requested.
        TypeError: if the value is not JSON, a bug in the tool.
    """
    if isinstance(given, ToolOutput):
        if not isinstance(given.content, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
            raise TypeError(f"tool {tool!r}: the content of a ToolOutput is text, got {given.content!r:.100}")
        return given
    if isinstance(given, str):
        return ToolOutput(content=given)
    try:
        # Python's encoder keeps lone surrogates of an agent's text; `bounded` replaces them.
        return ToolOutput(content=json.dumps(given, ensure_ascii=False, default=_plain))
    except (TypeError, ValueError) as error:
        if "integer string conversion" in str(error):  # Python's limit on digits, as with 10**5000
            raise ToolError("the result holds a number that is too long to be written") from None
        reason = str(error)[:_SHOWN]
        raise TypeError(
            f"tool {tool!r} returned {type(given).__name__}, which is no JSON ({reason}); return str, "
            "ToolOutput, or what JSON holds: numbers, lists, dicts, dataclasses, pydantic models"
        ) from error


def bounded(text: str, max_chars: int) -> str:
    """Return the text, or its head and tail around a note about the cut, at most `max_chars` long."""
    if len(text) <= max_chars:
        return _encodable(text)
    room = max(0, max_chars - len(_cut_note(len(text), len(text))))
    head, tail = room - room // 2, room // 2
    note = _cut_note(len(text) - head - tail, len(text))
    return _encodable((text[:head] + note + text[len(text) - tail :])[:max_chars])


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(
            "bytes are no text: decode them"
        )  # not decoded here: whether it succeeds may depend on the agent
    if isinstance(value, Iterator):
        raise TypeError("an iterator is no value: make a list of it")
    return to_jsonable_python(value, bytes_mode="base64")


def _encodable(text: str) -> str:
    # Lone surrogates of undecodable file names cannot be recorded as UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8")


def _cut_note(cut: int, total: int) -> str:
    return f"\n[... {cut} of {total} characters cut ...]\n"
