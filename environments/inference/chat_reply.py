"""Reads a server's reply to a chat request, tolerantly, and refuses in one line what cannot be used."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, cast

import orjson

from environments.inference.event_stream import StreamError, is_event_stream, merged_stream
from environments.inference.reply_message import is_empty, read_message
from environments.inference.reply_tokens import LARGEST_ID, NO_NUMBERS, ReplyError, SampledTokens, tokens_of
from environments.inference.reply_weights import weight_version_of
from environments.inference.server_text import start_of
from environments.trajectory import Message

_ID_CHARS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 9
_FINISHED: Mapping[str, re.Pattern[str]] = {
    "filtered": re.compile(
        "filter|safety|blocked|blocklist|prohibited|recitation|sensitive|refusal|guardrail"
    ),
    "lost": re.compile("abort|error|cancel|fail|time_?out|insufficient|interrupt|unload"),
    "length": re.compile("length|max|limit|truncat|window"),
}
"""What the finish reasons of servers mean, by what they contain."""
_LONGEST_REASON = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledMessage:
    """What a server sampled."""

    message: Message
    finish_reason: Literal["stop", "tool_calls", "length"]
    tokens: SampledTokens | None
    """`None`: the server gave text alone."""
    reasoning_field: str | None = None
    """The field that the message's reasoning came in, where it can be sent back in it."""
    weight_version: str | None = None
    """Which weights sampled it, where the server says so."""
    usage: Mapping[str, int] = field(default_factory=dict[str, int])
    """The tokens that the server counted."""
    is_refusal: bool = False
    """Whether its text is what the server calls a refusal."""


class FilteredReplyError(ReplyError):
    """The server filtered the answer."""


def call_id(*names_it: object) -> str:
    """An id for a call that a server gave none: equal for equal reasons, and of the form that all accept.

    Mistral wants nine letters and digits; others take any text.
    """
    number = int.from_bytes(blake2b(repr(names_it).encode(), digest_size=8).digest(), "big")
    return "".join(_ID_CHARS[number // 62**place % 62] for place in range(_ID_LENGTH))


def read_reply(content: bytes, call_prefix: str, *, max_tokens: int | None = None) -> SampledMessage:
    """The message of a reply, with its tokens where the server gave them.

    Args:
        content: the body of the reply, JSON or an event stream.
        call_prefix: tells the calls of this reply from others, for those that have no id.
        max_tokens: how many were asked for: without a finish reason, so many tokens were cut.

    Raises:
        ReplyError: no completion, one that the server gave up or filtered, or one that does not fit together.
    """
    reply = _parsed(content)
    choice = _choice(reply, content)
    if choice.get("matched_stop") == NO_NUMBERS:
        raise ReplyError(f"the server gave up (it stopped at {NO_NUMBERS!r})")
    given = _message_in(choice, content)
    message, reasoning_field = read_message(given, lambda index: call_id(call_prefix, index))
    tokens = tokens_of(reply, choice)
    reason = _finish_reason(choice.get("finish_reason"), message, _sampled(reply, tokens), max_tokens)
    # An empty text is one that a model may write: it sampled its stop token first.
    says = isinstance(given.get("content"), str) or reason == "length" or _sampled(reply, tokens)
    if is_empty(message) and not says:
        raise ReplyError(f"the answer is empty, without a word, a call or a token: {start_of(content)}")
    return SampledMessage(
        message=message,
        finish_reason=reason,
        tokens=tokens,
        reasoning_field=reasoning_field,
        weight_version=weight_version_of(choice, choice.get("meta_info"), reply.get("metadata")),
        usage=_usage(reply),
        is_refusal=bool(given.get("refusal")) and message.content == given["refusal"],
    )


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        reply: object = merged_stream(content) if is_event_stream(content) else _json(content)
    except StreamError as error:
        raise ReplyError(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise ReplyError(f"no chat completion (no JSON): {start_of(content)}") from error
    if not isinstance(reply, dict):
        raise ReplyError(f"no chat completion (no object): {start_of(content)}")
    return cast("dict[str, Any]", reply)


def _json(content: bytes) -> object:
    """JSON, or what Python servers write for it: NaN, and text that ends in the middle of a character."""
    try:
        return orjson.loads(content)
    except ValueError:
        return _without_surrogates(json.loads(content))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _without_surrogates(each) for key, each in cast("dict[str, Any]", value).items()}
    return value


def _choice(reply: dict[str, Any], content: bytes) -> dict[str, Any]:
    choices: object = reply.get("choices")
    first: object = cast("list[object]", choices)[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, dict):
        raise ReplyError(f"no chat completion (choices are missing or empty): {start_of(content)}")
    choice = cast("dict[str, Any]", first)
    if choice.get("error"):
        raise ReplyError(f"the server gave up: {choice['error']!r:.200}")
    return choice


def _message_in(choice: dict[str, Any], content: bytes) -> dict[str, Any]:
    message: object = choice.get("message") or choice.get("delta")
    if not isinstance(message, dict):
        raise ReplyError(f"no chat completion (choices.0.message is missing): {start_of(content)}")
    return cast("dict[str, Any]", message)


def _finish_reason(
    given: object, message: Message, sampled: int | None, max_tokens: int | None
) -> Literal["stop", "tool_calls", "length"]:
    """`stop`, `tool_calls` or `length`, whatever words the server has for it."""
    if isinstance(given, dict):  # as SGLang's own API has it
        given = cast("dict[str, object]", given).get("type")
    if isinstance(given, str) and given:
        word = given[:_LONGEST_REASON].lower().replace("-", "_")
        meaning = next((name for name, pattern in _FINISHED.items() if pattern.search(word)), "stop")
        if meaning == "filtered":
            raise FilteredReplyError(f"the server filtered the answer (finish_reason {given!r:.100})")
        if meaning == "lost":
            raise ReplyError(f"the server gave up (finish_reason {given!r:.100})")
        if meaning == "length":
            return "length"
    elif None not in (sampled, max_tokens) and cast("int", sampled) >= cast("int", max_tokens):
        return "length"
    return "tool_calls" if message.tool_calls else "stop"


def _sampled(reply: dict[str, Any], tokens: SampledTokens | None) -> int | None:
    """How many tokens were sampled, where that is known."""
    if tokens is not None:
        return len(tokens.token_ids)
    return _usage(reply).get("completion_tokens")


def _usage(reply: dict[str, Any]) -> dict[str, int]:
    usage: object = reply.get("usage")
    counted = cast("dict[str, object]", usage) if isinstance(usage, dict) else {}
    return {
        name: count
        for name in ("prompt_tokens", "completion_tokens")
        if type(count := counted.get(name)) is int and 0 <= count < LARGEST_ID
    }
