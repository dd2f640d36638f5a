"""A logged call of a model API as a session: request and reply as one list of chat messages.

References: OpenAI's `chat/completions`, `responses` and batch files, Anthropic's `messages`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from environments.policy.inference.http_client import list_in
from environments.policy.inference.written_messages import MessageError

LISTS = ("messages", "conversation", "conversations")
_RESULTS = frozenset({"function_call_output", "custom_tool_call_output"})
_OF_ITEMS = frozenset(
    {"type", "id", "status", "role", "phase", "summary", "call_id", "name", "arguments", "input"},
)
"""Fields of an item; others, such as a vote, belong to its turn."""
_CALLS = {"function_call": "function", "custom_tool_call": "custom"}


def as_session(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a call as a session, and anything else unchanged."""
    call: dict[str, Any] = dict(fields)
    for name in ("request", "body"):
        if isinstance(sent := fields.get(name), dict) and {"messages", "input"} & sent.keys():
            call = {**cast("dict[str, Any]", sent), **call}
    given = call.get("response")
    reply = call if given is None else _object(_object(given, "response").get("body", given), "response.body")
    is_items = call.get("input") is not None and not any(isinstance(call.get(name), list) for name in LISTS)
    replied = _reply_messages(reply, with_output=is_items or given is not None)
    if given is not None and not replied:
        raise MessageError(f"response has only {sorted(reply)!s:.200}; give choices, output or content")
    if not replied and not is_items:
        return call
    before = _request_messages(call) if is_items else call.get("messages")
    if not isinstance(before, list):
        raise MessageError("has a reply and not what was sent; give messages or input beside it")
    names = {name: call.get(name) or reply.get(name) for name in ("id", "model")}
    return {**call, **names, "messages": [*cast("list[Any]", before), *replied]}


def _reply_messages(reply: Mapping[str, Any], *, with_output: bool) -> list[Any]:
    given: Any = reply.get("choices")
    entries = cast("list[Any]", given) if isinstance(given, list) else []
    choices = [cast("dict[str, Any]", each) for each in entries if isinstance(each, dict)]
    messages = [each["message"] for each in choices if "message" in each]
    if len(messages) > 1:
        raise MessageError(f"has {len(messages)} choices; give each in a line of its own")
    if messages:
        return messages
    if with_output and isinstance(output := reply.get("output"), list):
        return _messages_of(cast("list[Any]", output), "output")
    return [reply] if reply.get("role") == "assistant" else []


def _request_messages(call: Mapping[str, Any]) -> list[Any]:
    if call.get("previous_response_id") or call.get("conversation"):
        raise MessageError("goes on from what is at the server alone; give the whole conversation as input")
    written = call["input"]
    if not isinstance(written, str | list):
        raise MessageError(f"input is {written!r:.100}; give text or a list of items")
    items = [{"role": "user", "content": written}] if isinstance(written, str) else cast("list[Any]", written)
    system = [{"role": "system", "content": call["instructions"]}] if call.get("instructions") else []
    return [*system, *_messages_of(items, "input")]


def _messages_of(items: Sequence[Any], where: str) -> list[dict[str, Any]]:
    """Return items as messages; the model's items between two answers form one message."""
    messages: list[dict[str, Any]] = []
    for index, each in enumerate(items):
        item = _object(each, f"{where}[{index}]")
        kind, role = item.get("type", "message"), item.get("role")
        if not isinstance(kind, str):
            raise MessageError(f"{where}[{index}] has the type {kind!r:.100}; give text")
        if kind in _RESULTS:
            result = {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
            messages.append(result)
        elif kind == "message" and role != "assistant":
            messages.append(item)
        elif kind in ("message", "reasoning", *_CALLS):
            if not messages or messages[-1].get("role") != "assistant":
                messages.append({"role": "assistant", "content": [], "reasoning": [], "tool_calls": []})
            _add(messages[-1], kind, item, f"{where}[{index}]")
        else:
            raise MessageError(
                f"{where}[{index}] has the type {kind!r:.100}; messages, reasoning, function calls and their "
                f"outputs are taken"
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
    for name in item.keys() - _OF_ITEMS - {"content", "reasoning", "tool_calls"}:
        if None not in (message.get(name), item[name]) and message[name] != item[name]:
            raise MessageError(f"{where} has another {name} than the items of its turn before it")
        message[name] = message.get(name) if item[name] is None else item[name]


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MessageError(f"{where} is {value!r:.100}; give an object")
    return cast("dict[str, Any]", value)
