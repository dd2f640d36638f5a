"""Reads a tool call that a model wrote as a JSON object; its arguments stay as they were written."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tools.calls import CallStatus

_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]{1,64})"')
_ARGUMENTS = ("arguments", "parameters", "args")


class JsonCall(NamedTuple):
    """What can be read of a call."""

    name: str
    arguments: str
    """The text of its arguments, verbatim; all of it where nothing else could be read."""
    status: CallStatus


def checked_call(name: str, arguments: str) -> JsonCall:
    """A call with these arguments: `invalid_json` unless they are JSON or nothing."""
    if not name:
        return JsonCall(name, arguments, "missing_name")
    try:
        if arguments.strip():
            json.loads(arguments)
    except (ValueError, RecursionError):
        return JsonCall(name, arguments, "invalid_json")
    return JsonCall(name, arguments, "ok")


def read_json_call(text: str) -> JsonCall:
    """The call in `{"name": …, "arguments": …}`, whatever its spacing and order; Llama says `parameters`."""
    try:
        fields = dict(_fields(text))
    except (ValueError, RecursionError):
        named = _NAME.search(text)
        return JsonCall(named[1] if named else "", text, "invalid_json")
    name, _ = fields.get("name", ("", ""))
    if not isinstance(name, str) or not name:
        return JsonCall("", text, "missing_name")
    value, arguments = next((fields[key] for key in _ARGUMENTS if key in fields), (None, ""))
    if isinstance(value, str):
        arguments = value  # some models write the object's text as a string
    return checked_call(name, arguments)


def _fields(text: str) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Each field of an object with its value and the value's text.

    Raises:
        ValueError: no JSON object, or something after it.
    """
    after = _skip(text, 0, "{")
    separator = text[after : after + 1]
    end = after
    while separator != "}":
        key, end = _DECODER.raw_decode(text, after)
        start = _skip(text, end, ":")
        value, end = _DECODER.raw_decode(text, start)
        if not isinstance(key, str):
            raise ValueError("a key is no string")
        yield key, (value, text[start:end])
        end = _spaces(text, end)
        separator = text[end : end + 1]
        if separator not in (",", "}"):
            raise ValueError(f"no , or }} at {end}")
        after = _spaces(text, end + 1)
    if text[end + 1 :].strip(_SPACE):
        raise ValueError("something after the object")


def _skip(text: str, start: int, expected: str) -> int:
    """Where the next thing begins after one character and the space around it."""
    start = _spaces(text, start)
    if text[start : start + 1] != expected:
        raise ValueError(f"no {expected} at {start}")
    return _spaces(text, start + 1)


def _spaces(text: str, start: int) -> int:
    while start < len(text) and text[start] in _SPACE:
        start += 1
    return start
