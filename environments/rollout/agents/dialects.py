"""The APIs of agents, OpenAI's chat completions and Responses and Anthropic's Messages.

References: `POST /v1/chat/completions`, `POST /v1/responses` and `POST /v1/messages`, as the two Python
clients use them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import orjson

from environments.policy.base import Constraint
from environments.policy.inference.http_client import list_in, mapping
from environments.policy.inference.written_messages import (
    ITEM_FIELDS,
    MessageError,
    messages_of_items,
    parse_tools,
    split_tools,
    tool_name,
)
from environments.policy.row_prompt import first_stop_text
from environments.trajectory import Message
from tools.calls import ToolSpec
from tools.json_input import JsonError, read_json

_MAX_WEIGHT = 250_000
_MAX_TOOLS = 1000
_MAX_STOPS = 16
MAX_IGNORED, _MAX_NAME_CHARS = 20, 100
_MAX_MODEL_CHARS, _MAX_REASON_CHARS = 1000, 1000
NOT_RETRIED = {"x-should-retry": "false"}
"""Response header that keeps the clients of OpenAI and Anthropic from retrying."""


class Refused(Exception):
    """A request that is answered with an error; the text is for the agent's developer."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "invalid_request_error",
        param: str | None = None, code: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message[:_MAX_REASON_CHARS])
        self.status, self.kind, self.param, self.code = status, kind, param, code


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    body: bytes
    model: str
    entries: list[Any]
    """The messages as JSON; a separate system prompt comes first."""
    names: Sequence[str]
    """Where each entry stands in the request's body, such as `messages[3]`: errors quote it."""
    tools: Sequence[Any]
    max_tokens: int | None
    stream: bool
    with_usage: bool
    ignored: tuple[str, ...]
    stops: tuple[str, ...]
    constraint: Constraint | None
    namespaces: Mapping[str, str]
    """For each tool that the agent listed in a namespace: the tool's name, and the namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    id: str
    model: str
    message: Message
    finish_reason: str
    stopped_by: str | None = None
    """The stop text of the request at which the message was cut."""
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


def to_agent_message(message: Message, stops: Sequence[str] = ()) -> tuple[Message, str | None]:
    """Return a sampled message as an agent receives it, and the stop text before which it is cut.

    A call without a valid tool name stays text. Calls are kept if the message ends with the stop text, since
    they precede it then.
    """
    calls = tuple(call for call in message.tool_calls if call.status in ("ok", "invalid_json"))
    if len(calls) < len(message.tool_calls):
        rest = [call.arguments for call in message.tool_calls if call not in calls]
        text = "\n".join(filter(None, [message.content, *rest]))
        message = replace(message, content=text, tool_calls=calls)
    if (found := first_stop_text(message.content, stops)) is None:
        return message, None
    at, stop = found
    is_end = not message.content[at + len(stop) :].strip()
    return replace(message, content=message.content[:at], tool_calls=calls if is_end else ()), stop


def tools_of(request: AgentRequest) -> tuple[ToolSpec, ...]:
    try:
        return parse_tools(list(request.tools))
    except MessageError as error:
        raise Refused(f"{error}", param="tools") from None


def cannot_honour(name: str, value: Any) -> Refused:
    shown = orjson.dumps(value).decode()
    return Refused(f"{name}={shown:.200} cannot be honoured here; leave it out", param=name)


def read_stops(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    given: Any = fields.get(name) or []
    texts = cast("list[Any]", given) if isinstance(given, list) else [given]
    if len(texts) > _MAX_STOPS or not all(isinstance(each, str) for each in texts):
        raise Refused(f"{name} must be a text or a list of at most {_MAX_STOPS} texts", param=name)
    return tuple(dict.fromkeys(filter(None, texts)))


def _json_schema(name: str, given: Any) -> Mapping[str, Any] | None:
    form = mapping(given)
    schema = mapping(form.get("json_schema", form)).get("schema")
    kind = form.get("type")
    if kind in ("text", "json_object"):
        return None if kind == "text" else {"type": "object"}
    if kind != "json_schema" or not isinstance(schema, dict):
        raise cannot_honour(name, given)
    return cast("dict[str, Any]", schema)


def _forced_tool(choice: Any, tools: Sequence[Any]) -> str | None:
    """Return the tool that must be called, empty for any, or None if the model may choose."""
    kind = mapping(choice).get("type", choice)
    if kind in (None, "auto", "none"):
        return None
    tool = "" if kind in ("required", "any") else tool_name(choice)
    offered = [tool_name(each) for each in tools]
    if kind not in ("required", "any", "function", "tool") or not isinstance(tool, str):
        raise cannot_honour("tool_choice", choice)
    if not offered or (tool and tool not in offered):
        problem = f"tool_choice demands {tool or 'a tool'!r:.100}; offered are {offered!r:.200}"
        raise Refused(problem, param="tool_choice")
    return tool


_OUR_REASONING = "turnwise:"
"""Begins the `encrypted_content` of our reasoning items, which is the id of their turn."""
_EMPTY: tuple[Any, ...] = (False, 0, "", [], {})


class _Requests:
    """The requests of an API, and OpenAI's shape of errors; a subclass writes the replies."""

    ping = b": waiting for the model\n\n"
    history = "messages"
    stops = "stop"
    limits: Sequence[str] = ("max_tokens",)
    formats: Sequence[str]
    """Fields that demand JSON or a schema. `text.format` means the field `format` in the object `text`."""
    others: Sequence[str] = ()
    """Further fields that are accepted and not counted as ignored."""
    refused: Mapping[str, Sequence[Any]]
    """Fields that cannot be honoured, with the values that demand nothing."""

    def read(self, body: bytes) -> AgentRequest:
        try:
            given: Any = read_json(body, most=_MAX_WEIGHT)
        except JsonError as error:
            raise Refused(f"the body is not valid JSON: {error}") from None
        if not isinstance(given, dict):
            raise Refused("the body is not a JSON object")
        fields = {name: value for name, value in cast("dict[str, Any]", given).items() if value is not None}
        for name in fields.keys() & self.refused.keys():
            if fields[name] not in self.refused[name]:
                raise cannot_honour(name, fields[name])
        limits = {name: fields[name] for name in self.limits if name in fields}
        if wrong := [name for name, limit in limits.items() if type(limit) is not int or limit < 1]:
            raise Refused(f"{wrong[0]} must be a whole number above 0", param=wrong[0])
        model = fields.get("model", "")
        if not isinstance(model, str) or len(model) > _MAX_MODEL_CHARS:
            raise Refused("model must be a short text", param="model")
        written = [*self._entries(fields)]
        offered = fields.get("tools", [])
        tools, namespaces, ignored = split_tools(list_in(offered))
        if not isinstance(offered, list) or len(tools) > _MAX_TOOLS:
            raise Refused(f"tools must be a list of at most {_MAX_TOOLS}", param="tools")
        tools = tools if fields.get("tool_choice") not in ("none", {"type": "none"}) else []
        understood = {
            *_COMMON, self.history, self.stops, *self.limits, *self.others, *self.refused,
            *(name.partition(".")[0] for name in self.formats),
        }  # fmt: skip
        if b"encrypted_content" in body:
            hidden = [mapping(each).get("encrypted_content") for each in list_in(fields.get(self.history))]
            if any(each and not str(each).startswith(_OUR_REASONING) for each in hidden):
                ignored.append("encrypted_content")
        ignored += (name for name in fields if name not in understood)
        return AgentRequest(
            body=body,
            model=model,
            entries=[entry for _, entry in written],
            names=[name for name, _ in written],
            tools=tools,
            max_tokens=min(limits.values(), default=None),
            stream=fields.get("stream") is True,
            with_usage=mapping(fields.get("stream_options")).get("include_usage") is True,
            ignored=tuple(name[:_MAX_NAME_CHARS] for name in ignored[:MAX_IGNORED]),
            stops=read_stops(fields, self.stops),
            constraint=self._constraint(fields, tools),
            namespaces=namespaces,
        )

    def _constraint(self, fields: Mapping[str, Any], tools: Sequence[Any]) -> Constraint | None:
        given = {name: _field_at(fields, name) for name in self.formats}
        schemas = {name: _json_schema(name, each) for name, each in given.items() if each}
        demanded = {name: schema for name, schema in schemas.items() if schema is not None}
        tool = _forced_tool(fields.get("tool_choice"), tools)
        single_call = fields.get("parallel_tool_calls") is False
        single_call = single_call or _field_at(fields, "tool_choice.disable_parallel_tool_use") is True
        found = (*demanded, *(["tool_choice"] if tool is not None else []))
        if not found and not single_call:
            return None
        schema = next(iter(demanded.values()), None)
        return Constraint(fields=found, schema=schema, tool=tool, single_call=single_call)

    def error(self, refused: Refused) -> dict[str, Any]:
        about = {"message": str(refused), "type": refused.kind, "param": refused.param, "code": refused.code}
        return {"error": about}

    def _entries(self, fields: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
        entries = fields.get(self.history)
        if not isinstance(entries, list) or not entries:
            raise Refused(f"{self.history} must be a list of at least one message", param=self.history)
        return [(f"messages[{at}]", entry) for at, entry in enumerate(cast("list[Any]", entries))]


_COMMON = (
    "model", "tools", "stream", "stream_options", "user", "metadata", "tool_choice", "parallel_tool_calls",
)  # fmt: skip


def _field_at(fields: Mapping[str, Any], path: str) -> Any:
    name, _, inner = path.partition(".")
    return mapping(fields.get(name)).get(inner) if inner else fields.get(name)


class ChatCompletions(_Requests):
    limits = ("max_completion_tokens", "max_tokens")
    formats = ("response_format",)
    refused: Mapping[str, Sequence[Any]] = {
        "n": (1,),
        "functions": _EMPTY,
        "function_call": ("auto", "none"),
        "modalities": (["text"],),
        "audio": _EMPTY,
        "prediction": _EMPTY,
        "web_search_options": (),
        "logprobs": _EMPTY,
        "top_logprobs": _EMPTY,
        "logit_bias": _EMPTY,
    }

    def reply(self, reply: Reply, request: AgentRequest) -> dict[str, Any]:
        message = reply.message.to_openai() | {"refusal": None}
        if reply.message.tool_calls and not reply.message.content:
            message["content"] = None
        choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason, "logprobs": None}
        return self._head(reply, "chat.completion") | {"choices": [choice], "usage": self._usage(reply)}

    def events(self, reply: Reply, request: AgentRequest) -> bytes:
        head = self._head(reply, "chat.completion.chunk")
        message = reply.message.to_openai()
        calls = message.pop("tool_calls", ())
        deltas = [message, *({"tool_calls": [{"index": at, **call}]} for at, call in enumerate(calls)), {}]
        chunks: list[dict[str, Any]] = []
        for delta in deltas:
            ended = reply.finish_reason if not delta else None
            choice = {"index": 0, "delta": delta, "finish_reason": ended, "logprobs": None}
            chunks.append(head | {"choices": [choice]})
        if request.with_usage:
            chunks.append(head | {"choices": [], "usage": self._usage(reply)})
        return b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"

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


class Responses(_Requests):
    """OpenAI's Responses API without a state at the server: each request has the whole conversation."""

    history, stops, limits = "input", "", ("max_output_tokens",)
    formats = ("text.format",)
    others = ("instructions", "store")
    refused: Mapping[str, Sequence[Any]] = {
        "previous_response_id": _EMPTY,
        "conversation": _EMPTY,
        "prompt": _EMPTY,
        "background": _EMPTY,
        "top_logprobs": _EMPTY,
    }

    def _entries(self, fields: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
        given = fields.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else list_in(given)
        if not given or not items:
            raise Refused("input must be a text or a list of at least one item", param="input")
        # Fields that only the client knows may differ within one message.
        known = [
            each
            if mapping(each).keys() <= ITEM_FIELDS
            else {name: each[name] for name in each if name in ITEM_FIELDS} or each
            for each in items
        ]
        try:
            return messages_of_items(known, "input", fields.get("instructions"))
        except MessageError as error:
            raise Refused(str(error), param="input") from None

    def reply(self, reply: Reply, request: AgentRequest) -> dict[str, Any]:
        is_cut = reply.finish_reason == "length"
        message, items = reply.message, list[dict[str, Any]]()
        if message.reasoning:
            summary = [{"type": "summary_text", "text": message.reasoning}]
            hidden = _OUR_REASONING + reply.id
            items.append(
                {"type": "reasoning", "id": f"rs_{reply.id}", "summary": summary, "encrypted_content": hidden}
            )
        if message.content or not message.tool_calls:
            text: dict[str, Any] = {"type": "output_text", "text": message.content}
            text |= {"annotations": [], "logprobs": []}
            items.append({"type": "message", "id": f"msg_{reply.id}", "role": "assistant", "content": [text]})
        for call in message.tool_calls:
            named = {"name": call.name, "arguments": call.arguments}
            if call.name in request.namespaces:
                named["namespace"] = request.namespaces[call.name]
            items.append({"type": "function_call", "id": f"fc_{call.id}", "call_id": call.id, **named})
        return {
            "id": reply.id, "object": "response", "created_at": reply.created, "model": reply.model,
            "status": "incomplete" if is_cut else "completed", "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [item | {"status": "completed"} for item in items],
            "usage": self._usage(reply), "store": False,
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "metadata": {},
        }  # fmt: skip

    def events(self, reply: Reply, request: AgentRequest) -> bytes:
        response = self.reply(reply, request)
        later: dict[str, Any] = {"incomplete_details": None, "output": [], "usage": None}
        begun = response | {"status": "in_progress", **later}
        events: list[dict[str, Any]] = [
            {"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")
        ]
        for index, item in enumerate(response["output"]):
            events += _item_events(index, item)
        events.append({"type": f"response.{response['status']}", "response": response})
        return b"".join(_event(each | {"sequence_number": at}) for at, each in enumerate(events))

    def error_event(self, refused: Refused) -> bytes:
        about = self.error(refused)["error"]
        return _event({**about, "type": "error", "sequence_number": 0, "error": about})

    def _usage(self, reply: Reply) -> dict[str, Any]:
        return {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": reply.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        }


def _item_events(index: int, item: dict[str, Any]) -> list[dict[str, Any]]:
    begun = item | {"status": "in_progress"}
    steps: list[dict[str, Any]] = []
    at: dict[str, Any] = {"item_id": item["id"], "output_index": index}
    if item["type"] == "message":
        (part,) = item["content"]
        begun["content"], at["content_index"] = [], 0
        steps = [
            {"type": "response.content_part.added", "part": part | {"text": ""}},
            {"type": "response.output_text.delta", "delta": part["text"], "logprobs": []},
            {"type": "response.output_text.done", "text": part["text"], "logprobs": []},
            {"type": "response.content_part.done", "part": part},
        ]
    elif item["type"] == "function_call":
        begun["arguments"], arguments = "", item["arguments"]
        steps = [
            {"type": "response.function_call_arguments.delta", "delta": arguments},
            {"type": "response.function_call_arguments.done", "arguments": arguments, "name": item["name"]},
        ]
    return [
        {"type": "response.output_item.added", "output_index": index, "item": begun},
        *(step | at for step in steps),
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


class AnthropicMessages(_Requests):
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    stops = "stop_sequences"
    formats = ("output_format", "output_config.format")
    others = ("system",)
    refused: Mapping[str, Sequence[Any]] = {"mcp_servers": _EMPTY, "container": _EMPTY, "thread": ()}

    def _entries(self, fields: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
        system = {"role": "system", "content": fields.get("system")}
        return (*([("system", system)] if fields.get("system") else []), *super()._entries(fields))

    def reply(self, reply: Reply, request: AgentRequest) -> dict[str, Any]:
        message = self._start(reply) | {"content": self._blocks(reply.message), **self._end(reply)}
        message["usage"] = self._usage(reply)
        return message

    def events(self, reply: Reply, request: AgentRequest) -> bytes:
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
        events.append({"type": "message_delta", "delta": self._end(reply), "usage": self._usage(reply)})
        events.append({"type": "message_stop"})
        return b"".join(map(_event, events))

    def error(self, refused: Refused) -> dict[str, Any]:
        about: dict[str, Any] = {"type": refused.kind, "message": str(refused)}
        if refused.param == "thread":  # with these details the client falls back to whole histories
            about |= {"details": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}}
        return {"type": "error", "error": about}

    def error_event(self, refused: Refused) -> bytes:
        return _event(self.error(refused))

    def _start(self, reply: Reply) -> dict[str, Any]:
        return {
            "id": reply.id, "type": "message", "role": "assistant", "model": reply.model, "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": self._usage(reply) | {"output_tokens": 0},
        }  # fmt: skip

    def _blocks(self, message: Message) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = [
            {"type": "tool_use", "id": each.id, "name": each.name, "input": arguments_object(each.arguments)}
            for each in message.tool_calls
        ]
        is_silent = blocks and not message.content
        return blocks if is_silent else [{"type": "text", "text": message.content}, *blocks]

    def _usage(self, reply: Reply) -> dict[str, int]:
        return {"input_tokens": reply.prompt_tokens, "output_tokens": reply.completion_tokens}

    def _end(self, reply: Reply) -> dict[str, str | None]:
        natural = "end_turn" if reply.stopped_by is None else "stop_sequence"
        reason = {"tool_calls": "tool_use", "length": "max_tokens"}.get(reply.finish_reason, natural)
        return {"stop_reason": reason, "stop_sequence": reply.stopped_by}


def _event(fields: Mapping[str, Any]) -> bytes:
    return b"event: " + str(fields["type"]).encode() + b"\ndata: " + orjson.dumps(fields) + b"\n\n"


Dialect = ChatCompletions | Responses | AnthropicMessages
CHAT, RESPONSES, MESSAGES = ChatCompletions(), Responses(), AnthropicMessages()
