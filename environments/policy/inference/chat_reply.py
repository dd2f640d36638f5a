"""Readers of chat replies, whole or streamed, in every dialect of OpenAI's API."""

import asyncio
import json
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import groupby
from typing import Any, Literal, cast

from environments.policy.inference.dialect import UNCUT
from environments.policy.inference.http_client import IncompleteError, list_in, mapping, start_of
from environments.policy.inference.server_kind import ServerFacts
from environments.trajectory import NOT_SAMPLED, SEVERAL_VERSIONS, Message, WeightSpan
from tools.calls import ToolCall
from tools.json_input import JsonError, check_weight, collector_paused, read_exact_json, read_json
from tools.plain_text import one_line

_TEXTS = ("content", "refusal", "reasoning_content", "reasoning", "reasoning_details")
_LISTS = ("token_ids", "response_token_ids", "weight_versions")
_REPLY_FIELDS = ("prompt_token_ids", "usage", "metadata")
_COMMENTS = re.compile(rb"\A(?:\s*:[^\n]*\n)+\s*")
LARGEST_ID = 2**31
"""No vocabulary is larger; a negative id could equal `IGNORED` and drop out of the mask."""
CLAMPED = -9999.0
NO_NUMBERS = "NaN happened"
_KINDS: Mapping[type, str] = {str: "text", int: "an integer", list: "a list", dict: "an object"}
CallIds = Callable[[int], str]
REASONING_FIELDS = ("reasoning_content", "reasoning")
_MORE_REASONING = ("reasoning_details", "thinking")
_TEXT_PARTS = frozenset({"text", "output_text", "refusal"})
_REASONING_PARTS = frozenset({"thinking", "reasoning", "reasoning_text", "redacted_thinking"})
_CALL_PARTS = frozenset({"tool_use", "tool_call", "function_call"})
_TEXT_KEYS = ("text", "content", "thinking", "reasoning", "summary", "refusal")
_DEEPEST = 5
_ID_CHARS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_FINISHED: Mapping[str, re.Pattern[str]] = {
    "filtered": re.compile(
        "filter|safety|blocked|blocklist|prohibited|recitation|sensitive|refusal|guardrail"
    ),
    "lost": re.compile("abort|error|cancel|fail|time_?out|insufficient|interrupt|unload"),
    "length": re.compile("length|max|limit|truncat|window"),
}
_LONG_BYTES = 1_000_000
_NAME = b"prompt_token_ids"
_START = b'"%b":[' % _NAME
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "temperature": (1,),
    "top_p": (1,),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "repetition_penalty": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
}
_LOGPROBS_OF: Mapping[str, str] = {"sglang": "SGLang", "llama.cpp": "llama.cpp"}
_AFTER_LOGPROBS = frozenset({"top_p", "top_k", "min_p"})


class ReplyError(ValueError):
    pass


class NoReplyError(IncompleteError, ReplyError):
    pass


def field_of(fields: Mapping[str, Any], name: str, *kinds: type, where: str = "") -> Any:
    """Return a field or None; ReplyError if it has another type. A boolean is not a number."""
    value = fields.get(name)
    if value is None or (isinstance(value, kinds) and not isinstance(value, bool)):
        return value
    wanted = " or ".join(_KINDS[kind] for kind in kinds)
    raise ReplyError(f"{where}{name} is {reprlib.repr(value)}; {wanted} is possible")


def object_in(fields: Mapping[str, Any], name: str, *, where: str = "") -> Mapping[str, Any]:
    return cast("dict[str, Any]", field_of(fields, name, dict, where=where) or {})


def read_object(content: bytes, what: str = "completion") -> dict[str, Any]:
    try:
        value: object = read_json(content)
    except JsonError as error:
        raise NoReplyError(f"no {what} (no JSON: {error}): {start_of(content)}") from error
    if not isinstance(value, dict):
        raise NoReplyError(f"no {what} (no object): {start_of(content)}")
    return cast("dict[str, Any]", value)


def merge_stream(content: bytes) -> dict[str, Any]:
    after_comments = _COMMENTS.sub(b"", content)
    if after_comments.startswith(b"{"):
        return read_object(after_comments)
    reply: dict[str, Any] = {}
    choice = _Choice()
    done = False
    for data in _events(content):
        if data == b"[DONE]":
            done = True
            continue
        chunk = read_object(data, "event")
        if chunk.get("error"):
            raise NoReplyError(f"the server gave up in the middle of its answer: {chunk['error']!r:.200}")
        for part in field_of(chunk, "choices", list) or ():
            if _is_first(part):
                choice.add(part)
        reply |= {name: chunk[name] for name in _REPLY_FIELDS if chunk.get(name) is not None}
    if not done and choice.fields.get("finish_reason") is None:
        raise NoReplyError("the event stream breaks off before its end")
    return {**reply, "choices": [choice.whole()]}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    prompt_ids: tuple[int, ...]
    extends_row: bool = False
    fork: str | None = None
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None


def read_tokens(reply: Mapping[str, Any], choice: Mapping[str, Any]) -> SampledTokens | None:
    """Return the sampled tokens, or None if the server gave text only; vLLM and SGLang differ."""
    pairs = token_pairs(object_in(choice, "meta_info"))
    given = [
        (name, choice[name]) for name in ("token_ids", "response_token_ids") if choice.get(name) is not None
    ]
    if not given and pairs is None:
        return None
    name, ids = given[0] if given else ("output_token_logprobs", [pair[1] for pair in pairs or ()])
    prompt = reply.get("prompt_token_ids") or choice.get("prompt_token_ids")
    if not prompt:
        raise ReplyError(
            f"the server gave {name} without prompt_token_ids, and nobody can tell what the model saw: "
            "update it, or send it the prompt's ids with --openai.server_type"
        )
    if not ids:
        raise NoReplyError(f"the server gave empty {name}; a completion has at least its stop token")
    token_ids, prompt_ids = read_ids(ids, name), read_ids(prompt, "prompt_token_ids")
    entries = field_of(object_in(choice, "logprobs"), "content", list, where="logprobs.")
    logprobs = None if pairs is None else [pair[0] for pair in pairs]
    try:
        logprobs = logprobs if entries is None else [entry["logprob"] for entry in entries]
    except (KeyError, TypeError, IndexError):
        raise ReplyError(
            f"logprobs.content holds an entry without a logprob: {reprlib.repr(entries)}"
        ) from None
    return SampledTokens(
        prompt_ids=prompt_ids, token_ids=token_ids, logprobs=read_logprobs(logprobs, len(token_ids))
    )


def read_ids(ids: object, name: str) -> tuple[int, ...]:
    if not isinstance(ids, list):
        raise ReplyError(f"{name} is not a list: {ids!r:.100}")
    values = cast("list[int]", ids)
    for index, value in enumerate(values):
        if type(value) is not int or not 0 <= value < LARGEST_ID:
            raise ReplyError(f"{name}.{index} is {value!r:.100}; a token id is an integer from 0 on")
    return tuple(values)


def read_logprobs(logprobs: Sequence[object] | None, tokens: int) -> tuple[float, ...] | None:
    if logprobs is None:
        return None
    if len(logprobs) != tokens:
        raise ReplyError(f"the server gave {len(logprobs)} logprobs for {tokens} token_ids")
    numbers = cast("Sequence[float]", logprobs)
    for index, value in enumerate(numbers):
        if type(value) not in (float, int) or not CLAMPED < value < NOT_SAMPLED:
            raise ReplyError(
                f"the server gave the logprob {value!r:.100} at token {index} of {tokens}; a sampled token "
                f"has a finite one above {CLAMPED:g}"
            )
    return tuple(map(float, numbers))


def read_message(given: Mapping[str, Any], call_ids: CallIds) -> tuple[Message, str | None]:
    """Return (message, field of its reasoning if it can be sent back there).

    `call_ids` names calls with a missing or repeated id.
    """
    role = given.get("role")
    if role not in (None, "", "assistant"):
        raise ReplyError(
            f"the server answered with a message of role {role!r:.100}; an answer is the assistant's"
        )
    text, thoughts, called = _parts(given.get("content"))
    refusal = field_of(given, "refusal", str)
    reasoning, reasoning_field = "", None
    for name in (*REASONING_FIELDS, *_MORE_REASONING):
        if reasoning := _text_in(field_of(given, name, str, list, dict)):
            reasoning_field = name if name in REASONING_FIELDS and isinstance(given[name], str) else None
            break
    calls = field_of(given, "tool_calls", list) or called
    if not calls and (function := object_in(given, "function_call")):
        calls = [{"function": function}]
    message = Message(
        role="assistant",
        content=text or refusal or "",
        reasoning=reasoning or thoughts or None,
        tool_calls=_calls(calls, call_ids),
    )
    return message, reasoning_field


def is_empty(message: Message) -> bool:
    return not (message.content or message.reasoning or message.tool_calls)


def read_weight_spans(choice: Mapping[str, Any]) -> tuple[WeightSpan, ...]:
    """Return where each weight version starts in a completion; empty for one version or if unknown."""
    spans = [mapping(span) for span in list_in(choice.get("weight_versions"))]
    spans = [span for span in spans if span.get("start") != span.get("end") or span.get("end") is None]
    found = [(span.get("start"), _version_name(span.get("version"))) for span in spans]
    known = [
        WeightSpan(start=start, version=name)
        for start, name in found
        if isinstance(start, int) and name is not None
    ]
    starts = [span.start for span in known]
    if len(known) < len(found) or starts[:1] != [0] or starts != sorted(set(starts)):
        return ()
    changes = tuple(next(same) for _, same in groupby(known, key=lambda span: span.version))
    return changes if len(changes) > 1 else ()


def read_weight_version(choice: Mapping[str, Any], *facts: object) -> str | None:
    # If one stretch has no version, the others alone would understate the age.
    names = [_version_name(mapping(span).get("version")) for span in list_in(choice.get("weight_versions"))]
    if not names:
        given = [mapping(each).get("weight_version") for each in facts]
        names = [_version_name(version) for version in given if version is not None]
    return SEVERAL_VERSIONS.join(dict.fromkeys(cast("list[str]", names))) if names and all(names) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledMessage:
    message: Message
    finish_reason: Literal["stop", "tool_calls", "length"]
    tokens: SampledTokens | None
    reasoning_field: str | None = None
    weight_version: str | None = None
    weight_spans: tuple[WeightSpan, ...] = ()
    usage: Mapping[str, int] = field(default_factory=dict[str, int])
    is_refusal: bool = False


class FilteredReplyError(ReplyError):
    pass


def call_id(*names_it: object) -> str:
    number = int.from_bytes(blake2b(repr(names_it).encode(), digest_size=8).digest(), "big")
    return "".join(_ID_CHARS[number // 62**place % 62] for place in range(9))


@collector_paused()
def read_reply(content: bytes, call_prefix: str, *, max_tokens: int | None = None) -> SampledMessage:
    """Parse a chat reply, JSON or an event stream.

    Without a finish reason, a reply of `max_tokens` tokens counts as cut.

    Raises:
        ReplyError: if the reply is not a completion, inconsistent, filtered or aborted.
    """
    reply = _parse(content)
    choices = field_of(reply, "choices", list)
    choice: Mapping[str, Any] = choices[0] if choices and _is_first(choices[0]) else {}
    if choice.get("error"):
        raise NoReplyError(f"the server gave up: {choice['error']!r:.200}")
    if choice.get("matched_stop") == NO_NUMBERS:
        raise ReplyError(f"the server gave up (it stopped at {NO_NUMBERS!r})")
    given = field_of(choice, "message", dict) or field_of(choice, "delta", dict)
    if given is None:
        lacking = "choices.0.message is missing" if choice else "choices are missing or empty"
        raise NoReplyError(f"no chat completion ({lacking}): {start_of(content)}")
    message, reasoning_field = read_message(given, lambda index: call_id(call_prefix, index))
    tokens, counted = read_tokens(reply, choice), object_in(reply, "usage")
    counts = {
        name: field_of(counted, name, int, where="usage.") for name in ("prompt_tokens", "completion_tokens")
    }
    usage = {name: count for name, count in counts.items() if count is not None and 0 < count < LARGEST_ID}
    sampled = usage.get("completion_tokens") if tokens is None else len(tokens.token_ids)
    reason = _finish_reason(choice, message, sampled, max_tokens)
    # An empty text with a stop token is a valid completion.
    if is_empty(message) and not (isinstance(given.get("content"), str) or reason == "length" or sampled):
        raise NoReplyError(f"the answer is empty, without a word, a call or a token: {start_of(content)}")
    return SampledMessage(
        message=message,
        finish_reason=reason,
        tokens=tokens,
        reasoning_field=reasoning_field,
        weight_version=read_weight_version(choice, choice.get("meta_info"), reply.get("metadata")),
        weight_spans=read_weight_spans(choice),
        usage=usage,
        is_refusal=bool(given.get("refusal")) and message.content == given["refusal"],
    )


async def read_long_reply(content: bytes, call_prefix: str, *, max_tokens: int) -> SampledMessage:
    """Return `read_reply`, in a thread if parsing takes more than about 10 ms."""
    read = partial(read_reply, content, call_prefix, max_tokens=max_tokens)
    return read() if len(content) < _LONG_BYTES else await asyncio.to_thread(read)


def find_known_ids(content: bytes, known: Sequence[bytes]) -> tuple[int, int] | None:
    """Return the span of `known` ids (JSON pieces) at the start of a reply's `prompt_token_ids`.

    They are compared, not parsed, so that a turn's cost does not grow with its row. None if the prompt starts
    or is written differently, or if the name occurs twice, as the other one might be read.
    """
    start = end = content.find(_START) + len(_START)
    if start < len(_START) or content.count(_NAME) > 1:
        return None
    for piece in known:
        if not content.startswith(piece, end):
            return None
        end += len(piece)
    return (start, end) if end > start else None


def remove_row(content: bytes, row_json: bytes) -> bytes | None:
    """Remove the row's ids from a reply's prompt ids; None if the prompt does not start with them."""
    known = find_known_ids(content, [row_json])
    if known is None or content[known[1] : known[1] + 1] != b",":
        return None
    return content[: known[0]] + content[known[1] + 1 :]


def logprobs_warning(sampling: Mapping[str, Any], facts: ServerFacts) -> str | None:
    known = {name: (None, value) for name, value in UNCUT.items()} if facts.kind == "llama.cpp" else {}
    known |= _NEUTRAL
    reshaping = [name for name, neutral in known.items() if sampling.get(name, neutral[0]) not in neutral]
    if facts.kind == "sglang":
        reshaping = [name for name in reshaping if name in _AFTER_LOGPROBS]
    processed = str(facts.logprobs_mode).startswith("processed")
    if not reshaping or processed:
        return None
    shown = ", ".join(f"{name} {sampling[name]}" for name in reshaping)
    if (name := _LOGPROBS_OF.get(facts.kind)) is not None:
        return (
            f"{shown}: {name}'s logprobs are those before this, so a trainer's ratios are off; leave it out"
        )
    server = "vLLM's" if facts.kind == "vllm" else "the server's"
    return (
        f"{shown}: {server} logprobs are those of the model before any such setting, so a trainer's ratios "
        f"are off, unless vLLM is started with --logprobs-mode processed_logprobs"
    )


class _Choice:
    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self._message: dict[str, Any] = {}
        self._texts: dict[str, list[Any]] = {}
        self._calls: list[dict[str, Any]] = []
        self._latest: dict[object, dict[str, Any]] = {}

    def add(self, part: Mapping[str, Any]) -> None:
        self._add_delta(object_in(part, "delta") or object_in(part, "message"))
        for name in _LISTS:
            if ids := field_of(part, name, list):
                self.fields.setdefault(name, []).extend(ids)
        if logprobs := field_of(object_in(part, "logprobs"), "content", list, where="logprobs."):
            self.fields.setdefault("logprobs", {"content": []})["content"].extend(logprobs)
        for name in ("finish_reason", "prompt_token_ids", "meta_info", "error"):
            if part.get(name) is not None:
                self.fields[name] = part[name]

    def whole(self) -> dict[str, Any]:
        message = dict(self._message)
        for name, pieces in self._texts.items():
            message[name] = "".join(pieces) if all(isinstance(each, str) for each in pieces) else pieces
        if self._calls:
            message["tool_calls"] = [
                {**call, "function": _whole_function(call["function"])} for call in self._calls
            ]
        if "function_call" in message:
            message["function_call"] = _whole_function(message["function_call"])
        return {**self.fields, "message": message}

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        if delta.get("role"):
            self._message["role"] = delta["role"]
        for name in _TEXTS:
            kinds = (str, list) if name in ("content", "refusal") else (str, list, dict)
            if (given := field_of(delta, name, *kinds)) is not None:
                self._texts.setdefault(name, []).extend(
                    cast("list[Any]", given) if isinstance(given, list) else [given]
                )
        if function := object_in(delta, "function_call"):
            _add_function(self._message.setdefault("function_call", {}), function)
        for number, call in enumerate(field_of(delta, "tool_calls", list) or ()):
            if call is not None:
                self._add_call(_as_object(call, f"tool call {number} is"))

    def _add_call(self, piece: Mapping[str, Any]) -> None:
        """Join a piece to the latest call of its index, unless ids differ: ollama gives each call index 0."""
        function = object_in(piece, "function")
        index, given = piece.get("index"), field_of(piece, "id", str, where="a tool call's ")
        call = self._latest.get(str(index))
        another = call is not None and given and call["id"] not in (None, given)
        if call is None or another or (index is None and not given and function.get("name")):
            call = dict[str, Any](id=given, function={})
            self._calls.append(call)
            self._latest[str(index)] = call
        call["id"] = call["id"] or given
        _add_function(call["function"], function)


def _events(content: bytes) -> Iterator[bytes]:
    for event in content.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n"):
        lines = [line[5:] for line in event.split(b"\n") if line.startswith(b"data:")]
        if data := b"\n".join(lines).strip():
            yield data


def _add_function(function: dict[str, Any], piece: Mapping[str, Any]) -> None:
    if name := field_of(piece, "name", str, where="a tool call's "):
        function["name"] = name
    if piece.get("arguments") is not None:
        function.setdefault("arguments", []).append(piece["arguments"])


def _whole_function(function: dict[str, Any]) -> dict[str, Any]:
    pieces: list[Any] = function.get("arguments", [])
    if not all(isinstance(piece, str) for piece in pieces):
        return {**function, "arguments": pieces[-1]}
    return {**function, "arguments": "".join(pieces) if pieces else None}


def token_pairs(meta_info: Mapping[str, Any], name: str = "output_token_logprobs") -> list[list[Any]] | None:
    pairs = field_of(meta_info, name, list)
    if pairs is None:
        return None
    if not all(isinstance(pair, list) and len(cast("list[Any]", pair)) >= 2 for pair in pairs):
        raise ReplyError(f"{name} is not a list of (logprob, id, text): {reprlib.repr(pairs)}")
    return pairs


def _parts(content: object) -> tuple[str, str, list[dict[str, Any]]]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    if isinstance(content, dict):
        content = cast("object", content)
        raise ReplyError(f"content is {reprlib.repr(content)}; text or a list of its parts is possible")
    for part in cast("list[object]", content) if isinstance(content, list) else [content]:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            fields = cast("dict[str, Any]", part)
            kind = fields.get("type", "text")
            if not isinstance(kind, str) or kind not in _TEXT_PARTS | _REASONING_PARTS | _CALL_PARTS:
                raise ReplyError(f"the message has a content part of type {kind!r:.100}; text is possible")
            if kind in _TEXT_PARTS:
                where = "a content part's "
                held: list[str | None] = [field_of(fields, key, str, where=where) for key in _TEXT_KEYS]
                texts.append(next((each for each in held if each), ""))
            elif kind in _REASONING_PARTS:
                thoughts.append(_text_in(fields))
            else:
                calls.append(fields)
        elif part is not None:
            raise ReplyError(f"content holds {reprlib.repr(part)}; text or its parts are possible")
    return "".join(texts), "".join(thoughts), calls


def _text_in(value: object, deepest: int = _DEEPEST) -> str:
    if isinstance(value, str):
        return value
    if deepest == 0 or value is None:
        return ""
    if isinstance(value, list):
        return "".join(_text_in(each, deepest - 1) for each in cast("list[object]", value))
    if not isinstance(value, dict):
        raise ReplyError(f"a text of the message is {reprlib.repr(value)}; text is possible")
    fields = cast("dict[str, object]", value)
    return next((text for key in _TEXT_KEYS if (text := _text_in(fields.get(key), deepest - 1))), "")


def _is_first(part: object) -> bool:
    return (field_of(_as_object(part, "choices holds"), "index", int, where="a choice's ") or 0) == 0


def _as_object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ReplyError(f"{what} {reprlib.repr(value)}; an object is possible")
    return cast("dict[str, Any]", value)


def _calls(given: Sequence[object], call_ids: CallIds) -> tuple[ToolCall, ...]:
    read: list[ToolCall] = []
    # Results are matched by id, so ids must be unique and not empty.
    ids = {""}
    for call in given:
        if call is None:
            continue
        where = f"tool call {len(read)}: "
        fields = _as_object(call, f"tool call {len(read)} is")
        inner = (object_in(fields, key, where=where) for key in ("function", "custom"))
        function = next(filter(None, inner), fields)
        given_id = field_of(fields, "id", str, where=where) or ""
        name = field_of(function, "name", str, where=where) or ""
        named = (function.get(key) for key in ("arguments", "input", "parameters"))
        arguments = next((each for each in named if each is not None), "{}")
        read.append(
            ToolCall(
                id=call_ids(len(read)) if given_id in ids else given_id,
                name=name,
                arguments=arguments
                if isinstance(arguments, str)
                else json.dumps(arguments, ensure_ascii=False),
                status="ok" if name else "missing_name",
            )
        )
        ids.add(read[-1].id)
    return tuple(read)


def _version_name(version: object) -> str | None:
    """Return a version as one short line; one that had to be changed ends in a digest of the original."""
    if not isinstance(version, str | int) or isinstance(version, bool):
        return None
    text = str(version).strip()
    line = one_line(text).replace(SEVERAL_VERSIONS, " ")
    if line in ("", text):
        return line or None
    return f"{line} #{blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"


def _parse(content: bytes) -> dict[str, Any]:
    try:
        check_weight(content)  # counts all events of a stream together
        if content[:200].lstrip().startswith((b"data:", b"event:", b"id:", b"retry:", b":")):
            return merge_stream(content)
        try:
            reply: object = read_json(content)
        except JsonError:
            text = content.decode(json.detect_encoding(content))
            reply = replace_surrogates(read_exact_json(text, lenient=True))
    except ReplyError:
        raise
    except ValueError as error:
        reason = error if isinstance(error, JsonError) else "no UTF-8"
        raise NoReplyError(f"no chat completion (no JSON: {reason}): {start_of(content)}") from error
    if not isinstance(reply, dict):
        raise NoReplyError(f"no chat completion (no object): {start_of(content)}")
    return cast("dict[str, Any]", reply)


def replace_surrogates(value: Any) -> Any:
    """Return text or JSON with U+FFFD in place of lone surrogates."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [replace_surrogates(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: replace_surrogates(each) for key, each in cast("dict[str, Any]", value).items()}
    return value


def classify_finish(reason: str) -> str:
    word = reason[:100].lower().replace("-", "_")
    return next((name for name, pattern in _FINISHED.items() if pattern.search(word)), "stop")


def _finish_reason(
    choice: Mapping[str, Any], message: Message, sampled: int | None, max_tokens: int | None
) -> Literal["stop", "tool_calls", "length"]:
    given = field_of(choice, "finish_reason", str, dict)
    if isinstance(given, dict):  # SGLang's native form
        given = field_of(cast("dict[str, Any]", given), "type", str, where="finish_reason.")
    if given:
        meaning = classify_finish(given)
        if meaning == "filtered":
            raise FilteredReplyError(f"the server filtered the answer (finish_reason {given!r:.100})")
        if meaning == "lost":
            raise NoReplyError(f"the server gave up (finish_reason {given!r:.100})")
        if meaning == "length":
            return "length"
    elif None not in (sampled, max_tokens) and cast("int", sampled) >= cast("int", max_tokens):
        return "length"
    return "tool_calls" if message.tool_calls else "stop"
