"""The messages of a logged session, in each of the shapes that logs have, as ours.

OpenAI's chat messages; content blocks with `tool_use` and `tool_result`, as Anthropic has them; and
`{"from": …, "value": …}`, as ShareGPT has them. What could mean two things is refused.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from environments.inference.reply_message import is_empty, read_message
from environments.inference.reply_tokens import ReplyError
from environments.sessions.session_votes import SessionError
from environments.trajectory import Message, Role
from tools.calls import ToolSpec

LISTS = ("messages", "conversation", "conversations")
"""Fields that hold the messages, one of them."""
_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
}
_CALL_ROLES = frozenset({"function_call", "tool_call"})
"""Messages whose text is a call, or a list of calls, as JSON."""
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedMessage:
    """A message, and the fields that it was logged with."""

    message: Message
    fields: Mapping[str, Any]
    where: str
    """For people: `messages[3]`."""


def messages_in(session: Mapping[str, Any]) -> list[LoggedMessage]:
    """All messages of a session, in order.

    Raises:
        SessionError: there are none, or one cannot be taken.
    """
    named = [name for name in LISTS if session.get(name) is not None]
    if len(named) != 1:
        has = " and ".join(named) or f"only {sorted(session)!s:.200}"
        raise SessionError(f"has {has}; a session has one list of messages, in one of {', '.join(LISTS)}")
    entries = session[named[0]]
    if not isinstance(entries, list) or not entries:
        raise SessionError(f"{named[0]} is {entries!r:.100}; give a list of at least one message")
    said = list(_system(session.get("system")))
    for index, entry in enumerate(cast("list[Any]", entries)):
        said += _messages_of(entry, f"{named[0]}[{index}]", index)
    return said


def tools_in(session: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    """The tools that the agent was offered, as OpenAI or Anthropic have them, or as JSON text of them.

    Raises:
        SessionError: they are something else.
    """
    given: Any = session.get("tools")
    if isinstance(given, str):
        given = _json(given, "tools") if given.strip() else None
    if given is None:
        return ()
    if not isinstance(given, list):
        raise SessionError(f"tools is {given!r:.100}; give a list of tools")
    return tuple(_tool(each, f"tools[{index}]") for index, each in enumerate(cast("list[Any]", given)))


def text(value: Any, where: str) -> str:
    """Text that a session has somewhere.

    Raises:
        SessionError: it is something else.
    """
    if not isinstance(value, str):
        raise SessionError(f"{where} is {value!r:.100}; give text")
    return value


def _system(given: Any) -> Iterator[LoggedMessage]:
    """A system prompt that stands beside the messages."""
    if given:
        yield LoggedMessage(
            message=Message(role="system", content=_text(given, "system")), fields={}, where="system"
        )


def _messages_of(entry: Any, where: str, index: int) -> Iterator[LoggedMessage]:
    """One entry as messages: several where tool results are blocks of a user's message."""
    if not isinstance(entry, dict):
        raise SessionError(f"{where} is {entry!r:.100}; a message is an object")
    fields = cast("dict[str, Any]", entry)
    written = fields.get("role", fields.get("from"))
    role = _ROLES.get(written) if isinstance(written, str) else None
    if role is None:
        raise SessionError(f"{where} has the role {written!r:.100}; choose one of {', '.join(_ROLES)}")
    content = fields.get("content", fields.get("value"))
    if role == "assistant":
        messages = [_assistant(fields, content, where, f"call_{index}", is_call=written in _CALL_ROLES)]
    elif role == "tool":
        messages = [_result(_text(content, f"{where}.content"), fields.get("tool_call_id"), where)]
    else:
        messages = _from_blocks(role, content, where)
    for message in messages:
        yield LoggedMessage(message=message, fields=fields, where=where)


def _assistant(fields: Mapping[str, Any], content: Any, where: str, prefix: str, *, is_call: bool) -> Message:
    if content is not None:
        _refuse_other_parts(content, f"{where}.content")
    given = {**fields, "role": "assistant", "content": content}
    if is_call:
        given = {"tool_calls": _json(text(content, where), where)}
    try:
        message, _ = read_message(given, lambda index: f"{prefix}_{index}")
    except ReplyError as error:
        raise SessionError(f"{where}: {error}") from None
    if content is None and is_empty(message):
        raise SessionError(f"{where} says and calls nothing; give its content as text, empty if it was so")
    if unnamed := [call for call in message.tool_calls if call.status != "ok"]:
        raise SessionError(f"{where} has a call without a name: {unnamed[0].arguments!r:.100}")
    return message


def _from_blocks(role: Role, content: Any, where: str) -> list[Message]:
    """What a user or the system said, after the tool results that stand before it in blocks."""
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    results = [each for each in blocks if _kind(each) == "tool_result"]
    if not results:
        return [Message(role=role, content=_text(content, f"{where}.content"))]
    rest = blocks[len(results) :]
    if role != "user" or any(_kind(each) == "tool_result" for each in rest):
        raise SessionError(f"{where} has a tool_result after other blocks; results come first, of role user")
    messages = [
        _result(_text(each.get("content", ""), where), each.get("tool_use_id"), where) for each in results
    ]
    return [*messages, Message(role="user", content=_text(rest, where))] if rest else messages


def _result(content: str, call_id: Any, where: str) -> Message:
    """A result; one without an id answers the next call."""
    named = None if call_id is None else text(call_id, f"{where}, the id of its call,")
    return Message(role="tool", content=content, tool_call_id=named)


def _text(content: Any, where: str) -> str:
    """The text of a content: itself, or that of its parts."""
    parts = cast("list[Any]", content) if isinstance(content, list) else [content]
    texts: list[str] = []
    for part in parts:
        kind = _kind(part)
        if kind is not None and kind not in _TEXT_PARTS:
            raise SessionError(f"{where} has a part of type {kind!r:.100}; only text is taken, no images")
        texts.append(text(part if kind is None else part.get("text"), where))
    return "".join(texts)


def _refuse_other_parts(content: Any, where: str) -> None:
    """Refuse what would be read as no text at all: of an assistant's parts only some are text."""
    for part in cast("list[Any]", content) if isinstance(content, list) else [content]:
        if (kind := _kind(part)) is None or kind in _TEXT_PARTS:
            _text([part], where)


def _kind(part: Any) -> str | None:
    """The type of a content part; `None`: it is none."""
    return str(cast("dict[str, Any]", part).get("type", "text")) if isinstance(part, dict) else None


def _tool(given: Any, where: str) -> ToolSpec:
    fields = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    inner = fields.get("function", fields)
    known = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
    schema = known.get("parameters", known.get("input_schema", {}))
    name = known.get("name")
    if not isinstance(name, str) or not isinstance(schema, dict):
        raise SessionError(f"{where} is {given!r:.100}; a tool has a name and a schema of its parameters")
    described = text(known.get("description") or "", f"{where}.description")
    return ToolSpec(name=name, description=described, parameters=cast("dict[str, Any]", schema))


def _json(written: str, where: str) -> Any:
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        raise SessionError(f"{where} holds {written!r:.100}, which is not JSON") from None
