"""A logged call of a model API as a session: request and reply as one list of chat messages.

References: OpenAI's `chat/completions`, `responses` and batch files, Anthropic's `messages`.
"""

from collections.abc import Mapping
from typing import Any, cast

from environments.policy.inference.written_messages import (
    MessageError,
    messages_of_items,
    require_object,
)

LISTS = ("messages", "conversation", "conversations")


def as_session(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a call as a session, and anything else unchanged."""
    call: dict[str, Any] = dict(fields)
    for name in ("request", "body"):
        if isinstance(sent := fields.get(name), dict) and {"messages", "input"} & sent.keys():
            call = {**cast("dict[str, Any]", sent), **call}
    given = call.get("response")
    reply = call
    if given is not None:
        reply = require_object(require_object(given, "response").get("body", given), "response.body")
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
        return [message for _, message in messages_of_items(cast("list[Any]", output), "output")]
    return [reply] if reply.get("role") == "assistant" else []


def _request_messages(call: Mapping[str, Any]) -> list[Any]:
    if call.get("previous_response_id") or call.get("conversation"):
        raise MessageError("goes on from what is at the server alone; give the whole conversation as input")
    written = call["input"]
    if not isinstance(written, str | list):
        raise MessageError(f"input is {written!r:.100}; give text or a list of items")
    items = [{"role": "user", "content": written}] if isinstance(written, str) else cast("list[Any]", written)
    return [message for _, message in messages_of_items(items, "input", call.get("instructions"))]
