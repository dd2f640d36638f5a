"""Messages and tools in the formats of OpenAI, Anthropic and ShareGPT."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from environments.policy.inference.chat_reply import ReplyError, is_empty, read_message
from environments.trajectory import Message, Role
from tools.calls import ToolSpec
from tools.json_input import JsonError, read_exact_json

_CALL_ROLES = frozenset({"function_call", "tool_call"})
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


class MessageError(Exception):
    """An invalid message or tool; the text says where and what is possible."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenMessage:
    message: Message
    fields: Mapping[str, Any]
    where: str


def parse_tools(given: Any) -> tuple[ToolSpec, ...]:
    if isinstance(given, str):
        given = parse_json(given, "tools") if given.strip() else None
    if given is None:
        return ()
    if not isinstance(given, list):
        raise MessageError(f"tools is {given!r:.100}; give a list of tools")
    return tuple(_tool(each, f"tools[{index}]") for index, each in enumerate(cast("list[Any]", given)))


def require_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise MessageError(f"{where} is {value!r:.100}; give text")
    return value


def system_messages(given: Any) -> Iterator[WrittenMessage]:
    if given:
        yield WrittenMessage(
            message=Message(role="system", content=_text(given, "system")), fields={}, where="system"
        )


def parse_entry(entry: Any, where: str, index: int) -> Iterator[WrittenMessage]:
    """Yield the messages of one entry; a user entry may hold several tool results as blocks."""
    if not isinstance(entry, dict):
        raise MessageError(f"{where} is {entry!r:.100}; a message is an object")
    fields = cast("dict[str, Any]", entry)
    written = fields.get("role", fields.get("from"))
    role = _ROLES.get(written) if isinstance(written, str) else None
    if role is None:
        raise MessageError(f"{where} has the role {written!r:.100}; choose one of {', '.join(_ROLES)}")
    content = fields.get("content", fields.get("value"))
    if role == "assistant":
        messages = [_assistant(fields, content, where, f"call_{index}", is_call=written in _CALL_ROLES)]
    elif role == "tool":
        messages = [_result(_text(content, f"{where}.content"), fields.get("tool_call_id"), where)]
    else:
        messages = _from_blocks(role, content, where)
    for message in messages:
        yield WrittenMessage(message=message, fields=fields, where=where)


def _assistant(fields: Mapping[str, Any], content: Any, where: str, prefix: str, *, is_call: bool) -> Message:
    if content is not None:
        _refuse_other_parts(content, f"{where}.content")
    given = {**fields, "role": "assistant", "content": content}
    if is_call:
        calls = parse_json(require_text(content, where), where)
        given = {"tool_calls": cast("list[Any]", calls) if isinstance(calls, list) else [calls]}
    try:
        message, _ = read_message(given, lambda index: f"{prefix}_{index}")
    except ReplyError as error:
        raise MessageError(f"{where}: {error}") from None
    if content is None and is_empty(message):
        raise MessageError(f"{where} says and calls nothing; give its content as text, empty if it was so")
    if unnamed := [call for call in message.tool_calls if call.status != "ok"]:
        raise MessageError(f"{where} has a call without a name: {unnamed[0].arguments!r:.100}")
    return message


def _from_blocks(role: Role, content: Any, where: str) -> list[Message]:
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    results = [each for each in blocks if _part_type(each) == "tool_result"]
    if not results:
        return [Message(role=role, content=_text(content, f"{where}.content"))]
    rest = blocks[len(results) :]
    if role != "user" or any(_part_type(each) == "tool_result" for each in rest):
        raise MessageError(f"{where} has a tool_result after other blocks; results come first, of role user")
    messages = [
        _result(_text(each.get("content", ""), where), each.get("tool_use_id"), where) for each in results
    ]
    return [*messages, Message(role="user", content=_text(rest, where))] if rest else messages


def _result(content: str, call_id: Any, where: str) -> Message:
    named = None if call_id is None else require_text(call_id, f"{where}, the id of its call,")
    return Message(role="tool", content=content, tool_call_id=named)


def _text(content: Any, where: str) -> str:
    parts = cast("list[Any]", content) if isinstance(content, list) else [content]
    texts: list[str] = []
    for part in parts:
        kind = _part_type(part)
        if kind is not None and kind not in _TEXT_PARTS:
            raise MessageError(f"{where} has a part of type {kind!r:.100}; only text is taken, no images")
        texts.append(require_text(part if kind is None else part.get("text"), where))
    return "".join(texts)


def _refuse_other_parts(content: Any, where: str) -> None:
    for part in cast("list[Any]", content) if isinstance(content, list) else [content]:
        if (kind := _part_type(part)) is None or kind in _TEXT_PARTS:
            _text([part], where)


def _part_type(part: Any) -> str | None:
    return str(cast("dict[str, Any]", part).get("type", "text")) if isinstance(part, dict) else None


def _tool(given: Any, where: str) -> ToolSpec:
    fields = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    inner = fields.get("function", fields)
    known = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
    schema = known.get("parameters", known.get("input_schema", {}))
    name = known.get("name")
    if not isinstance(name, str) or not isinstance(schema, dict):
        raise MessageError(f"{where} is {given!r:.100}; a tool has a name and a schema of its parameters")
    described = require_text(known.get("description") or "", f"{where}.description")
    return ToolSpec(name=name, description=described, parameters=cast("dict[str, Any]", schema))


def parse_json(written: str, where: str) -> Any:
    try:
        return read_exact_json(written)
    except JsonError:
        raise MessageError(f"{where} holds {written!r:.100}, which is not JSON") from None
