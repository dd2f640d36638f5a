"""Messages and tools in the formats of OpenAI, Anthropic and ShareGPT."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from environments.policy.inference.chat_reply import ReplyError, is_empty, read_message
from environments.policy.inference.http_client import list_in, mapping
from environments.trajectory import Message, Role
from tools.calls import ToolSpec
from tools.json_input import JsonError, read_exact_json

_CALL_ROLES = frozenset({"function_call", "tool_call"})
_RESULTS = ("function_call_output", "custom_tool_call_output")
_CALLS = {"function_call": "function", "custom_tool_call": "custom"}
ITEM_FIELDS = frozenset({
    "type", "id", "status", "role", "phase", "content", "summary", "call_id", "name", "arguments", "input",
    "output", "namespace", "encrypted_content",
})  # fmt: skip
"""Fields of an item; others, such as a vote, belong to its turn."""
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
    tools: list[ToolSpec] = []
    for index, each in enumerate(split_tools(cast("list[Any]", given))[0]):
        known, where = _function(each), f"tools[{index}]"
        name = known.get("name")
        schema: Any = known.get("parameters") or known.get("input_schema") or {}
        if not isinstance(name, str) or not isinstance(schema, dict):
            raise MessageError(f"{where} is {each!r:.100}; a tool has a name and a schema of its parameters")
        described = require_text(known.get("description") or "", f"{where}.description")
        tools.append(ToolSpec(name=name, description=described, parameters=cast("dict[str, Any]", schema)))
    return tuple(tools)


def split_tools(given: Sequence[Any]) -> tuple[list[Any], dict[str, str], list[str]]:
    """Return (functions, their namespaces, names of tools that are left out).

    Tools of other types than function are left out unless they have name and schema. A namespace is a list of
    tools; if two have one name, the first counts.
    """
    functions, names, namespaces, left_out = list[Any](), set[str](), dict[str, str](), list[str]()
    for tool in given:
        fields = mapping(tool)
        space = fields.get("name") if fields.get("type") == "namespace" else None
        for each in [tool] if space is None else list_in(fields.get("tools")):
            kind, name = mapping(each).get("type"), str(tool_name(each) or "")
            has_schema = any(schema in _function(each) for schema in ("parameters", "input_schema"))
            is_function = not isinstance(kind, str) or kind == "function" or (name and has_schema)
            if not is_function or (name in names and (space is not None or name in namespaces)):
                left_out.append(f"tools.{name or kind}")
                continue
            functions.append(each)
            names.add(name)
            if space is not None:
                namespaces[name] = str(space)
    return functions, namespaces, left_out


def tool_name(tool: Any) -> Any:
    return _function(tool).get("name")


def _function(tool: Any) -> Mapping[str, Any]:
    fields = mapping(tool)
    return mapping(fields.get("function", fields))


def require_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise MessageError(f"{where} is {value!r:.100}; give text")
    return value


def messages_of_items(
    items: Sequence[Any], where: str, instructions: Any = None
) -> list[tuple[str, dict[str, Any]]]:
    """Return (name, chat message) of items of the Responses API, after the instructions.

    The model's items between two answers form one message, named by the first.
    """
    messages: list[tuple[str, dict[str, Any]]] = []
    if instructions:
        messages.append(("instructions", {"role": "system", "content": instructions}))
    for index, each in enumerate(items):
        name = f"{where}[{index}]"
        item = require_object(each, name)
        kind, role = item.get("type", "message"), item.get("role")
        if kind in _RESULTS:
            result = {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
            messages.append((name, result))
        elif kind == "message" and role != "assistant":
            messages.append((name, item))
        elif kind in ("message", "reasoning", *_CALLS):
            if not messages or messages[-1][1].get("role") != "assistant":
                messages.append(
                    (name, {"role": "assistant", "content": [], "reasoning": [], "tool_calls": []})
                )
            _add(messages[-1][1], kind, item, name)
        else:
            raise MessageError(
                f"{name} has the type {kind!r:.100}; messages, reasoning, function calls and their outputs "
                f"are taken"
            )
    return messages


def _add(message: dict[str, Any], kind: str, item: Mapping[str, Any], where: str) -> None:
    if kind == "message":
        content = item.get("content")
        message["content"] += content if isinstance(content, list) else [content]
    elif kind == "reasoning":
        message["reasoning"] += list_in(item.get("content")) or list_in(item.get("summary"))
    else:
        function = {name: item.get(name) for name in ("name", "arguments", "input")}
        message["tool_calls"].append({"id": item.get("call_id"), _CALLS[kind]: function})
    for name in item.keys() - ITEM_FIELDS - {"reasoning", "tool_calls"}:
        if None not in (message.get(name), item[name]) and message[name] != item[name]:
            raise MessageError(f"{where} has another {name} than the items of its turn before it")
        message[name] = message.get(name) if item[name] is None else item[name]


def require_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MessageError(f"{where} is {value!r:.100}; give an object")
    return cast("dict[str, Any]", value)


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
    parts = cast("list[Any]", content) if isinstance(content, list) else [content]
    texts = [] if content is None else [each for each in parts if _part_type(each) in (None, *_TEXT_PARTS)]
    _text(texts, f"{where}.content")
    given: dict[str, Any] = {**fields, "role": "assistant", "content": content}
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


def _part_type(part: Any) -> str | None:
    return str(cast("dict[str, Any]", part).get("type", "text")) if isinstance(part, dict) else None


def parse_json(written: str, where: str) -> Any:
    try:
        return read_exact_json(written)
    except JsonError:
        raise MessageError(f"{where} holds {written!r:.100}, which is not JSON") from None
