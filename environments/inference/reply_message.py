"""The assistant message of a chat reply, in whichever of the servers' shapes it comes."""

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from environments.inference.reply_tokens import ReplyError
from environments.trajectory import Message
from tools.calls import ToolCall

CallIds = Callable[[int], str]
"""The id of the call at an index, for one that has none of its own."""
REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Of a message, as text; the same names are understood when it is sent back."""
_MORE_REASONING = ("reasoning_details", "thinking")
_TEXT_PARTS = frozenset({"text", "output_text", "refusal"})
_REASONING_PARTS = frozenset({"thinking", "reasoning", "reasoning_text", "redacted_thinking"})
_CALL_PARTS = frozenset({"tool_use", "tool_call", "function_call"})
_TEXT_KEYS = ("text", "content", "thinking", "reasoning", "summary", "refusal")
_DEEPEST = 5


def read_message(given: Mapping[str, Any], call_ids: CallIds) -> tuple[Message, str | None]:
    """The message, and the field that its reasoning came in, where that is one that takes it back.

    Args:
        given: the message of a choice.
        call_ids: names the calls without an id, or with that of another.

    Raises:
        ReplyError: somebody else's message, or a content that is neither text nor a part of a known kind.
    """
    role = given.get("role") or "assistant"
    if role != "assistant":
        raise ReplyError(
            f"the server answered with a message of role {role!r:.100}; an answer is the assistant's"
        )
    parts = _Parts(given.get("content"))
    refusal = given.get("refusal")
    reasoning_field, reasoning = _reasoning(given, parts)
    calls = given.get("tool_calls") or parts.calls
    if not calls and isinstance(given.get("function_call"), dict):
        calls = [{"function": given["function_call"]}]
    message = Message(
        role="assistant",
        content=parts.text or (refusal if isinstance(refusal, str) else ""),
        reasoning=reasoning or None,
        tool_calls=_calls(calls, call_ids),
    )
    return message, reasoning_field


def is_empty(message: Message) -> bool:
    """Whether it says and calls nothing."""
    return not (message.content or message.reasoning or message.tool_calls)


class _Parts:
    """A content: text, or a list of parts, each of its kind."""

    def __init__(self, content: object) -> None:
        texts: list[str] = []
        thoughts: list[str] = []
        self.calls: list[dict[str, Any]] = []
        parts = cast("list[object]", content) if isinstance(content, list) else [content]
        for part in parts:
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, dict):
                fields = cast("dict[str, Any]", part)
                kind = fields.get("type", "text")
                kind = kind if isinstance(kind, str) else repr(kind)
                if kind in _TEXT_PARTS:
                    texts.append(_text_in(fields))
                elif kind in _REASONING_PARTS:
                    thoughts.append(_text_in(fields))
                elif kind in _CALL_PARTS:
                    self.calls.append(fields)
                else:
                    raise ReplyError(
                        f"the message has a content part of type {kind!r:.100}; text is possible"
                    )
            elif part is not None:
                raise ReplyError(
                    f"the content of the message is {part!r:.100}; text or its parts are possible"
                )
        self.text = "".join(texts)
        self.reasoning = "".join(thoughts)


def _reasoning(given: Mapping[str, Any], parts: _Parts) -> tuple[str | None, str]:
    for name in REASONING_FIELDS:
        if text := _text_in(given.get(name)):
            return (name if isinstance(given[name], str) else None), text
    return None, next(
        (text for name in _MORE_REASONING if (text := _text_in(given.get(name)))), parts.reasoning
    )


def _text_in(value: object, deepest: int = _DEEPEST) -> str:
    """All text in a value: itself, or that of an object or of a list of them."""
    if isinstance(value, str):
        return value
    if deepest == 0 or not isinstance(value, dict | list):
        return ""
    if isinstance(value, list):
        return "".join(_text_in(each, deepest - 1) for each in cast("list[object]", value))
    fields = cast("dict[str, object]", value)
    return next((text for key in _TEXT_KEYS if (text := _text_in(fields.get(key), deepest - 1))), "")


def _calls(given: object, call_ids: CallIds) -> tuple[ToolCall, ...]:
    if not given:
        return ()
    calls = cast("list[object]", given) if isinstance(given, list) else [given]
    read: list[ToolCall] = []
    ids: set[str] = set()
    for call in calls:
        if call is None:
            continue
        if not isinstance(call, dict):
            raise ReplyError(f"tool call {len(read)} is {call!r:.100}; an object is possible")
        read.append(_call(cast("dict[str, Any]", call), ids, call_ids(len(read))))
        ids.add(read[-1].id)
    return tuple(read)


def _call(call: dict[str, Any], ids: set[str], own_id: str) -> ToolCall:
    inner = call.get("function") or call.get("custom")
    function = cast("dict[str, Any]", inner) if isinstance(inner, dict) else call
    given = call.get("id")
    name = function.get("name")
    # Two results for one id could not be told apart.
    return ToolCall(
        id=given if isinstance(given, str) and given and given not in ids else own_id,
        name=name if isinstance(name, str) else "",
        arguments=_arguments(function),
        status="ok" if isinstance(name, str) and name else "missing_name",
    )


def _arguments(function: dict[str, Any]) -> str:
    """Their text, verbatim; what came as an object is written, and none at all are no arguments."""
    for name in ("arguments", "input", "parameters"):
        arguments = function.get(name)
        if isinstance(arguments, str):
            return arguments
        if arguments is not None:
            return json.dumps(arguments, ensure_ascii=False)
    return "{}"
