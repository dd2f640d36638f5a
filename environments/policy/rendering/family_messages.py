"""Our messages as the `renderers` library takes them, their text marked as text."""

import json
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from environments.trajectory import Message
from tools.calls import ToolCall

AsText = Callable[[str], str]
"""Marks text of a message, so that no control token is made of it."""


def given_messages(
    messages: Sequence[Message], as_text: AsText, *, calls_as_text: bool = False
) -> list[dict[str, Any]]:
    """A conversation; a call that is no JSON object stands in the content.

    With `calls_as_text` each call does, and its result is what a user says. Calls are numbered through the
    conversation: one format (Kimi) writes these ids.
    """
    named: dict[str, tuple[str, str]] = {}
    numbers = count()
    given: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "tool" and not calls_as_text:
            written_id, name = named.get(message.tool_call_id or "", (message.tool_call_id, None))
            given.append(_answer(message, written_id, name, as_text))
            continue
        for call in message.tool_calls:
            named[call.id] = (f"functions.{call.name}:{next(numbers)}", call.name)
        given.append(_spoken(message, named, as_text, calls_as_text=calls_as_text))
    return given


def given_answers(messages: Sequence[Message], found: Sequence[Any], as_text: AsText) -> list[dict[str, Any]]:
    """What answers a turn in which the library `found` calls; results come in the order of the calls."""
    names = iter([(call_id(call, index), call.name) for index, call in enumerate(found)])
    given: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "tool":
            written_id, name = next(names, (message.tool_call_id, None))
            given.append(_answer(message, written_id, name, as_text))
        else:
            given.append(_spoken(message, {}, as_text, calls_as_text=False))
    return given


def call_id(found: Any, index: int) -> str:
    """The id that a turn gives a call, where its format has ids."""
    return found.id or f"functions.{found.name}:{index}"


def _answer(message: Message, written_id: str | None, name: str | None, as_text: AsText) -> dict[str, Any]:
    given = {"role": "tool", "content": as_text(message.content)}
    if written_id:
        given["tool_call_id"] = as_text(written_id)
    if name:
        given["name"] = as_text(name)
    return given


def _spoken(
    message: Message, named: dict[str, tuple[str, str]], as_text: AsText, *, calls_as_text: bool
) -> dict[str, Any]:
    calls = [call for call in message.tool_calls if not calls_as_text and _is_object(call)]
    others = [_as_json(call) for call in message.tool_calls if call not in calls]
    content = "\n".join(filter(None, [message.content, *others]))
    role = "user" if message.role == "tool" else message.role
    given: dict[str, Any] = {"role": role, "content": as_text(content)}
    if message.reasoning:
        given["reasoning_content"] = as_text(message.reasoning)
    if calls:
        given["tool_calls"] = [
            {
                "id": as_text(named[call.id][0]),
                "type": "function",
                "function": {"name": as_text(call.name), "arguments": as_text(call.arguments or "{}")},
            }
            for call in calls
        ]
    return given


def _is_object(call: ToolCall) -> bool:
    if call.status != "ok":
        return False
    try:
        return isinstance(json.loads(call.arguments or "{}"), dict)
    except (ValueError, RecursionError):
        return False


def _as_json(call: ToolCall) -> str:
    """A call that the format cannot write: what the model wrote of it."""
    return call.arguments if not call.name else f"{call.name}({call.arguments})"
