"""The APIs of agents, OpenAI's chat completions and Anthropic's Messages: requests in, replies out.

References: `POST /v1/chat/completions` and `POST /v1/messages`, as the two Python clients use them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

import orjson

from environments.policy.inference.written_messages import MessageError, parse_tools
from environments.trajectory import Message
from tools.calls import ToolCall, ToolSpec
from tools.json_input import JsonError, read_json

_MAX_WEIGHT = 250_000
_MAX_TOOLS = 1000
MAX_IGNORED, _MAX_NAME_CHARS = 20, 100
_MAX_MODEL_CHARS, _MAX_REASON_CHARS = 1000, 1000
NOT_RETRIED = {"x-should-retry": "false"}
"""Response header that keeps the clients of OpenAI and Anthropic from retrying."""


class Refused(Exception):
    """A request that is answered with an error; the text is for the agent's developer."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "invalid_request_error",
        param: str | None = None, code: str | None = None, details: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message[:_MAX_REASON_CHARS])
        self.status, self.kind, self.param, self.code = status, kind, param, code
        self.details = details


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    body: bytes
    model: str
    entries: list[Any]
    """The messages as JSON; a separate system prompt comes first."""
    tools: Sequence[Any]
    max_tokens: int | None
    stream: bool
    with_usage: bool
    ignored: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    id: str
    model: str
    message: Message
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    created: int


def arguments_object(arguments: str) -> dict[str, Any]:
    """Return a call's arguments as object; text that is not a JSON object is wrapped in one."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"arguments": arguments}


def to_agent_message(message: Message) -> Message:
    """Return a sampled message as an agent receives it: a call without a valid tool name stays text."""
    calls = tuple(call for call in message.tool_calls if call.status in ("ok", "invalid_json"))
    if len(calls) == len(message.tool_calls):
        return message
    rest = [call.arguments for call in message.tool_calls if call not in calls]
    return replace(message, content="\n".join(filter(None, [message.content, *rest])), tool_calls=calls)


def tools_of(request: AgentRequest) -> tuple[ToolSpec, ...]:
    try:
        return parse_tools(list(request.tools))
    except MessageError as error:
        raise Refused(f"{error}", param="tools") from None


Check = Callable[[Any], bool]


def _read(
    body: bytes, *, refused: Mapping[str, Check], known: Sequence[str], max_tokens: Sequence[str]
) -> tuple[dict[str, Any], AgentRequest]:
    try:
        fields: Any = read_json(body, most=_MAX_WEIGHT)
    except JsonError as error:
        raise Refused(f"the body is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise Refused("the body is not a JSON object")
    given = {name: value for name, value in cast("dict[str, Any]", fields).items() if value is not None}
    for name in given.keys() & refused.keys():
        if not refused[name](given[name]):
            shown_value = orjson.dumps(given[name]).decode()
            raise Refused(f"{name}={shown_value:.200} cannot be honoured here; leave it out", param=name)
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused("messages must be a list of at least one message", param="messages")
    limits = [given[name] for name in max_tokens if name in given]
    if any(type(limit) is not int or limit < 1 for limit in limits):
        raise Refused(f"{max_tokens[0]} must be a whole number above 0", param=max_tokens[0])
    tools = given.get("tools", [])
    if not isinstance(tools, list) or len(cast("list[Any]", tools)) > _MAX_TOOLS:
        raise Refused(f"tools must be a list of at most {_MAX_TOOLS}", param="tools")
    model = given.get("model", "")
    if not isinstance(model, str) or len(model) > _MAX_MODEL_CHARS:
        raise Refused("model must be a short text", param="model")
    options = given.get("stream_options")
    understood = {*refused, *known, *max_tokens}
    unknown = (name for name in given if name not in understood)
    return given, AgentRequest(
        body=body,
        model=model,
        entries=cast("list[Any]", messages),
        tools=cast("list[Any]", tools) if given.get("tool_choice") not in _NO_TOOLS else [],
        max_tokens=min(limits, default=None),
        stream=given.get("stream") is True,
        with_usage=isinstance(options, dict) and cast("dict[str, Any]", options).get("include_usage") is True,
        ignored=tuple(name[:_MAX_NAME_CHARS] for name in islice(unknown, MAX_IGNORED)),
    )


_NO_TOOLS: tuple[Any, ...] = ("none", {"type": "none"})
_COMMON = ("model", "messages", "tools", "stream", "stream_options", "user", "metadata", "tool_choice")


def _is_free(choice: Any) -> bool:
    """Whether the model may choose; Anthropic's object may have more fields."""
    kind = cast("dict[str, Any]", choice).get("type") if isinstance(choice, dict) else choice
    return kind in ("auto", "none")


def _is_empty(value: Any) -> bool:
    return not value


class ChatCompletions:
    ping = b": waiting for the model\n\n"
    _refused: Mapping[str, Check] = {
        "n": lambda value: value == 1,
        "stop": _is_empty,
        "functions": _is_empty,
        "function_call": lambda value: value in ("auto", "none"),
        "response_format": lambda value: value == {"type": "text"},
        "modalities": lambda value: value == ["text"],
        "audio": _is_empty,
        "prediction": _is_empty,
        "web_search_options": lambda value: False,
        "logprobs": _is_empty,
        "top_logprobs": _is_empty,
        "logit_bias": _is_empty,
        "tool_choice": _is_free,
    }

    def read(self, body: bytes) -> AgentRequest:
        limits = ("max_completion_tokens", "max_tokens")
        return _read(body, refused=self._refused, known=_COMMON, max_tokens=limits)[1]

    def reply(self, reply: Reply) -> dict[str, Any]:
        message = reply.message.to_openai() | {"refusal": None}
        if reply.message.tool_calls and not reply.message.content:
            message["content"] = None
        choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason, "logprobs": None}
        return self._head(reply, "chat.completion") | {"choices": [choice], "usage": self._usage(reply)}

    def events(self, reply: Reply, *, with_usage: bool) -> bytes:
        head = self._head(reply, "chat.completion.chunk")
        message = reply.message.to_openai()
        calls = message.pop("tool_calls", ())
        deltas = [message, *({"tool_calls": [{"index": at, **call}]} for at, call in enumerate(calls)), {}]
        chunks: list[dict[str, Any]] = []
        for delta in deltas:
            ended = reply.finish_reason if not delta else None
            choice = {"index": 0, "delta": delta, "finish_reason": ended, "logprobs": None}
            chunks.append(head | {"choices": [choice]})
        if with_usage:
            chunks.append(head | {"choices": [], "usage": self._usage(reply)})
        return b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"

    def error(self, refused: Refused) -> dict[str, Any]:
        about = {"message": str(refused), "type": refused.kind, "param": refused.param, "code": refused.code}
        return {"error": about}

    def error_event(self, refused: Refused) -> bytes:
        return b"data: " + orjson.dumps(self.error(refused)) + b"\n\n"

    def _head(self, reply: Reply, kind: str) -> dict[str, Any]:
        return {"id": reply.id, "object": kind, "created": reply.created, "model": reply.model}

    def _usage(self, reply: Reply) -> dict[str, int]:
        return {
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        }


class AnthropicMessages:
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    _refused: Mapping[str, Check] = {
        "stop_sequences": _is_empty,
        "tool_choice": _is_free,
        "mcp_servers": _is_empty,
        "container": _is_empty,
        "output_format": _is_empty,
        "output_config": lambda value: not (isinstance(value, dict) and "format" in value),
    }

    def read(self, body: bytes) -> AgentRequest:
        known = (*_COMMON, "system")
        fields, request = _read(body, refused=self._refused, known=known, max_tokens=("max_tokens",))
        for index, tool in enumerate(request.tools):
            kind = cast("dict[str, Any]", tool).get("type") if isinstance(tool, dict) else None
            if kind not in (None, "custom"):
                where = f"tools[{index}]"
                raise Refused(
                    f"{where}: tools of type {kind!r} are not supported; give it an input_schema",
                    param=where,
                )
        if "thread" in fields:  # the client then falls back to whole histories
            details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
            raise Refused(
                "stateful threads are not supported; send the whole history", param="thread", details=details
            )
        system = {"role": "system", "content": fields.get("system")}
        return replace(request, entries=[*([system] if fields.get("system") else []), *request.entries])

    def reply(self, reply: Reply) -> dict[str, Any]:
        message = self._start(reply) | {
            "content": self._blocks(reply.message),
            "stop_reason": self._end(reply),
        }
        message["usage"] = self._usage(reply)
        return message

    def events(self, reply: Reply, *, with_usage: bool) -> bytes:
        events: list[dict[str, Any]] = [{"type": "message_start", "message": self._start(reply)}]
        for index, block in enumerate(self._blocks(reply.message)):
            if block["type"] == "text":
                empty, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
            else:
                written = orjson.dumps(block["input"]).decode()
                empty = block | {"input": dict[str, Any]()}
                delta = {"type": "input_json_delta", "partial_json": written}
            events += [
                {"type": "content_block_start", "index": index, "content_block": empty},
                {"type": "content_block_delta", "index": index, "delta": delta},
                {"type": "content_block_stop", "index": index},
            ]
        ended = {"stop_reason": self._end(reply), "stop_sequence": None}
        events.append({"type": "message_delta", "delta": ended, "usage": self._usage(reply)})
        events.append({"type": "message_stop"})
        return b"".join(map(_event, events))

    def error(self, refused: Refused) -> dict[str, Any]:
        about = {"type": refused.kind, "message": str(refused)}
        return {"type": "error", "error": about | ({"details": refused.details} if refused.details else {})}

    def error_event(self, refused: Refused) -> bytes:
        return _event(self.error(refused))

    def _start(self, reply: Reply) -> dict[str, Any]:
        usage = {"input_tokens": reply.prompt_tokens, "output_tokens": 0}
        return {
            "id": reply.id, "type": "message", "role": "assistant", "model": reply.model, "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": usage,
        }  # fmt: skip

    def _blocks(self, message: Message) -> list[dict[str, Any]]:
        texts = (
            [{"type": "text", "text": message.content}] if message.content or not message.tool_calls else []
        )
        return [*texts, *map(_tool_use, message.tool_calls)]

    def _usage(self, reply: Reply) -> dict[str, int]:
        return {"input_tokens": reply.prompt_tokens, "output_tokens": reply.completion_tokens}

    def _end(self, reply: Reply) -> str:
        return {"tool_calls": "tool_use", "length": "max_tokens"}.get(reply.finish_reason, "end_turn")


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call.arguments)}


def _event(fields: Mapping[str, Any]) -> bytes:
    return b"event: " + str(fields["type"]).encode() + b"\ndata: " + orjson.dumps(fields) + b"\n\n"


Dialect = ChatCompletions | AnthropicMessages
CHAT, MESSAGES = ChatCompletions(), AnthropicMessages()
