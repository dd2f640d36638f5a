"""What the error answer of a model server says, also where it comes with the status 200."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import orjson

_LONGEST_ERROR = 100_000
_STATUS_BY_NAME = (
    (429, re.compile(r"rate.?limit|too.?many|throttl|resource.?exhausted", re.IGNORECASE)),
    (
        503,
        re.compile(
            r"overload|unavailable|busy|capacity|internal|server.?error|api.?error|time.?out|timed.?out"
            r"|deadline|upstream|bad.?gateway",
            re.IGNORECASE,
        ),
    ),
)
"""How OpenAI, Anthropic, vLLM, SGLang, Google and gateways name what may pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What an error answer says."""

    message: str | None
    code: str | None
    """The server's name for it."""
    status: int
    """Of HTTP, as its code or type says; 400 where neither says that it may pass."""


def problem_of(content: str | bytes) -> Problem | None:
    """What the body of an error status says; OpenAI's shape, with `error` around or not."""
    fields = _object(content)
    return None if fields is None else _problem(_error_in(fields) or fields)


def problem_in_success(content: bytes) -> Problem | None:
    """The error that came with a status of success, if one did."""
    # In a JSON text every quote inside a string is escaped: what has no such key or value costs no parsing.
    if len(content) > _LONGEST_ERROR or b'"error"' not in content:
        return None
    # One object, alone or behind comments, or one in an event.
    for line in (content, *content.splitlines()):
        fields = _object(line.removeprefix(b"data:")) if b'"error"' in line else None
        error = None if fields is None else _error_in(fields)
        if error is not None:
            return _problem(error)
    return None


def _object(content: str | bytes) -> Mapping[str, object] | None:
    try:
        read: object = orjson.loads(content)
    except ValueError:
        return None
    return cast("Mapping[str, object]", read) if isinstance(read, dict) else None


def _error_in(fields: Mapping[str, object]) -> Mapping[str, object] | None:
    """The error of an answer, of its first choice (OpenRouter), or the answer that is one (vLLM)."""
    error = fields.get("error")
    choices = fields.get("choices")
    if not error and isinstance(choices, list) and choices:
        first = cast("list[object]", choices)[0]
        error = cast("Mapping[str, object]", first).get("error") if isinstance(first, dict) else None
    if isinstance(error, dict) and error:
        return cast("Mapping[str, object]", error)
    if isinstance(error, str) and error:
        return {"message": error}
    return fields if fields.get("object") == "error" else None


def _problem(fields: Mapping[str, object]) -> Problem:
    message, code = fields.get("message"), fields.get("code")
    return Problem(
        message=f"{message}{_provider_text(fields)}" if isinstance(message, str) else None,
        code=_word(code),
        status=_status(fields),
    )


def _provider_text(fields: Mapping[str, object]) -> str:
    """What OpenRouter passes on from the server behind it: "Provider returned error" alone helps nobody."""
    metadata = fields.get("metadata")
    raw = cast("Mapping[str, object]", metadata).get("raw") if isinstance(metadata, dict) else None
    if isinstance(raw, dict | list):
        raw = orjson.dumps(raw).decode()
    return f": {raw}" if isinstance(raw, str) and raw else ""


def _status(fields: Mapping[str, object]) -> int:
    words = [_word(fields.get(name)) for name in ("code", "status", "status_code", "type")]
    named = [word for word in words if word]
    for text in named:
        if re.fullmatch("[45][0-9]{2}", text):
            return int(text)
    return next((status for status, names in _STATUS_BY_NAME if any(map(names.search, named))), 400)


def _word(value: object) -> str | None:
    """A name or a number; lists in lists are neither, and too deep ones have no text."""
    return str(value)[:100] if isinstance(value, str | int | float) else None
