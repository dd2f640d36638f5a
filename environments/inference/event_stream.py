"""A chat completion that came as an event stream, merged into the reply that it is as a whole."""

import re
from collections.abc import Iterator
from typing import Any, cast

import orjson

_TEXTS = ("content", "refusal", "reasoning_content", "reasoning", "reasoning_details")
_LISTS = ("token_ids", "response_token_ids", "weight_versions")
_REPLY_FIELDS = ("prompt_token_ids", "usage", "metadata")
_COMMENTS = re.compile(rb"\A(?:\s*:[^\n]*\n)+\s*")


class StreamError(ValueError):
    """An event stream that is no completion, or that breaks off."""


def is_event_stream(content: bytes) -> bool:
    """Whether a body is one: it begins with a field of server-sent events, or with a comment."""
    return content[:200].lstrip().startswith((b"data:", b"event:", b"id:", b"retry:", b":"))


def merged_stream(content: bytes) -> dict[str, Any]:
    """The one reply that the chunks of an event stream add up to.

    A body of comments and one object after them, as OpenRouter sends while it waits, is that object.

    Raises:
        StreamError: a chunk that is no object, an error in one, or no end.
    """
    after_comments = _COMMENTS.sub(b"", content)
    if after_comments.startswith(b"{"):
        return _object(after_comments)
    reply: dict[str, Any] = {}
    choice = _Choice()
    done = False
    for data in _events(content):
        if data == b"[DONE]":
            done = True
            continue
        chunk = _object(data)
        if chunk.get("error"):
            raise StreamError(f"the server gave up in the middle of its answer: {chunk['error']!r:.200}")
        for part in _dicts(chunk.get("choices")):
            if part.get("index", 0) == 0:
                choice.add(part)
        reply |= {name: chunk[name] for name in _REPLY_FIELDS if chunk.get(name) is not None}
    if not done and choice.fields.get("finish_reason") is None:
        raise StreamError("the event stream breaks off before its end")
    return {**reply, "choices": [choice.whole()]}


class _Choice:
    """What the chunks of a choice add up to; texts are joined once, at the end."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self._message: dict[str, Any] = {}
        self._texts: dict[str, list[Any]] = {}
        self._calls: list[dict[str, Any]] = []
        self._latest: dict[object, dict[str, Any]] = {}

    def add(self, part: dict[str, Any]) -> None:
        for delta in _dicts([part.get("delta") or part.get("message")]):
            self._add_delta(delta)
        for name in _LISTS:
            if isinstance(part.get(name), list):
                self.fields.setdefault(name, []).extend(part[name])
        for logprobs in _dicts([part.get("logprobs")]):
            if isinstance(logprobs.get("content"), list):
                self.fields.setdefault("logprobs", {"content": []})["content"].extend(logprobs["content"])
        for name in ("finish_reason", "prompt_token_ids", "meta_info", "error"):
            if part.get(name) is not None:
                self.fields[name] = part[name]

    def whole(self) -> dict[str, Any]:
        """The choice of a reply."""
        message = self._message | {name: _joined(pieces) for name, pieces in self._texts.items()}
        if self._calls:
            message["tool_calls"] = [
                {**call, "function": _whole_function(call["function"])} for call in self._calls
            ]
        if "function_call" in message:
            message["function_call"] = _whole_function(message["function_call"])
        return {**self.fields, "message": message}

    def _add_delta(self, delta: dict[str, Any]) -> None:
        if delta.get("role"):
            self._message["role"] = delta["role"]
        for name in _TEXTS:
            if delta.get(name) is not None:
                pieces = delta[name] if isinstance(delta[name], list) else [delta[name]]
                self._texts.setdefault(name, []).extend(pieces)
        for function in _dicts([delta.get("function_call")]):
            _add_function(self._message.setdefault("function_call", {}), function)
        for call in _dicts(delta.get("tool_calls")):
            self._add_call(call)

    def _add_call(self, piece: dict[str, Any]) -> None:
        """Join a piece to the latest call of its index, unless it is another's: ollama calls each 0."""
        function: dict[str, Any] = next(_dicts([piece.get("function")]), dict[str, Any]())
        index, given = piece.get("index"), piece.get("id")
        call = self._latest.get(str(index))
        another = call is not None and given and call["id"] not in (None, given)
        if call is None or another or (index is None and not given and function.get("name")):
            call = dict[str, Any](id=given, function={})
            self._calls.append(call)
            self._latest[str(index)] = call
        call["id"] = call["id"] or given
        _add_function(call["function"], function)


def _events(content: bytes) -> Iterator[bytes]:
    """The data of each event."""
    lines: list[bytes] = []
    for line in content.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[5:])
        elif not line and lines:
            yield b"\n".join(lines).strip()
            lines = []
    if lines:
        yield b"\n".join(lines).strip()


def _object(data: bytes) -> dict[str, Any]:
    try:
        chunk: object = orjson.loads(data)
    except ValueError as error:
        raise StreamError(f"a chunk of the event stream is no JSON: {data[:100]!r}") from error
    if not isinstance(chunk, dict):
        raise StreamError(f"a chunk of the event stream is no object: {data[:100]!r}")
    return cast("dict[str, Any]", chunk)


def _dicts(values: object) -> Iterator[dict[str, Any]]:
    """The objects in a list; none in what is no list."""
    if isinstance(values, list):
        yield from (
            cast("dict[str, Any]", each) for each in cast("list[object]", values) if isinstance(each, dict)
        )


def _joined(pieces: list[Any]) -> Any:
    """One text; where some of it came as content parts, as Mistral streams what it thinks, a list of all."""
    return "".join(pieces) if all(isinstance(piece, str) for piece in pieces) else pieces


def _add_function(function: dict[str, Any], piece: dict[str, Any]) -> None:
    if piece.get("name"):
        function["name"] = piece["name"]
    if piece.get("arguments") is not None:
        function.setdefault("arguments", []).append(piece["arguments"])


def _whole_function(function: dict[str, Any]) -> dict[str, Any]:
    pieces: list[Any] = function.get("arguments", [])
    if not all(isinstance(piece, str) for piece in pieces):
        return {**function, "arguments": pieces[-1]}  # an object, in one piece
    return {**function, "arguments": "".join(pieces) if pieces else None}
