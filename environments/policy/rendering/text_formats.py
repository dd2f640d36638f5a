"""Formats of calls in text that are read here: they need no package, and some no package reads right."""

import ast
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from tools.calls import CallStatus
from tools.python_syntax import parse_expression

_CODE_START = re.compile(r"(?m)^[ \t]{0,20}(?:```|~~~)|`[^`\n]{1,2000}`")
_FENCE = re.compile(r"(?m)^[ \t]{0,20}(```|~~~)")
_THOUGHT_END = re.compile(r"</think[^<>\n]{0,20}>")
_THOUGHT_START = re.compile(r"\s*<think[^<>\n]{0,20}>")
_QUOTES = ("'", '"', "`", "\u201c", "\u201e", "\u00ab")
_INLINE = ("<tool_call>{", "<tool_call> {")
"""How a call inside a sentence begins: models begin a line between the marker and the JSON."""
_LOOK = 200
"""Characters around a block that show whether it stands alone."""


class Block(NamedTuple):
    """A stretch of text between an opening and a closing marker."""

    start: int
    end: int
    body: str
    closed: bool
    own_line: bool
    """Whether it begins a line; after other text, only what reads as a call is one."""


def answer_start(content: str) -> int:
    """Where the answer begins after the reasoning that some servers leave in the content."""
    closing = _THOUGHT_END.search(content)
    if closing is not None:
        return closing.end()
    return len(content) if _THOUGHT_START.match(content) else 0


def blocks(content: str, opening: str, closing: str) -> Iterator[Block]:
    """Blocks at the place of calls: from the start of a line, or up to the end of one.

    An empty `closing` means the end of the text. What a block holds is not looked at for code.
    """
    at = answer_start(content)
    block_end = 0
    code = _next_code(content, at)
    last_close = content.rfind(closing)
    while (start := content.find(opening, at)) >= 0:
        if code[0] < at:
            code = _next_code(content, at)
        if code[0] < start:
            at = code[1]
            continue
        body_start = start + len(opening)
        closed = last_close >= body_start
        end = content.find(closing, body_start) if closed and closing else len(content)
        after = end + len(closing) if closed else end
        line_before = content[max(block_end, start - _LOOK) : start].rpartition("\n")[2].rstrip()
        following = content[after : after + _LOOK].partition("\n")[0].strip()
        in_sentence = line_before.endswith(_QUOTES) or content.startswith(_INLINE, start)
        ends_line = closed and (not following or following.startswith(opening))
        if not line_before or (ends_line and not in_sentence):
            yield Block(start, after, content[body_start:end], closed, not line_before)
            at = block_end = after
        else:
            at = body_start


def _next_code(content: str, at: int) -> tuple[int, int]:
    """Where the next code, in a fence or in backticks, begins and ends; twice the end if it is missing."""
    opened = _CODE_START.search(content, at)
    if opened is None:
        return len(content), len(content)
    mark = opened[0].lstrip()
    if mark not in ("```", "~~~"):
        return opened.span()
    line_end = content.find("\n", opened.end())
    line_end = len(content) if line_end < 0 else line_end
    same_line = content.find(mark, opened.end(), line_end)
    if same_line >= 0:
        return opened.start(), same_line + len(mark)
    closings = (each.end() for each in _FENCE.finditer(content, line_end) if each[1] == mark)
    return opened.start(), next(closings, len(content))


def without(content: str, found: list[Block]) -> str:
    """The text beside the blocks."""
    if not found:
        return content
    pieces: list[str] = []
    at = 0
    for block in found:
        pieces.append(content[at : block.start])
        at = block.end
    pieces.append(content[at:])
    return "\n".join(filter(None, (piece.strip() for piece in pieces)))


_SPACE = " \t\r\n"
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]{1,64})"')
_ARGUMENTS = ("arguments", "parameters", "args")


class JsonCall(NamedTuple):
    """What can be read of a call."""

    name: str
    arguments: str
    """The text of its arguments, verbatim; all of it where nothing else could be read."""
    status: CallStatus


def checked_call(name: str, arguments: str) -> JsonCall:
    """A call with these arguments: `invalid_json` unless they are JSON or nothing."""
    if not name:
        return JsonCall(name, arguments, "missing_name")
    try:
        if arguments.strip():
            json.loads(arguments)
    except (ValueError, RecursionError):
        return JsonCall(name, arguments, "invalid_json")
    return JsonCall(name, arguments, "ok")


def read_json_call(text: str) -> JsonCall:
    """The call in `{"name": …, "arguments": …}`, whatever its spacing and order; Llama says `parameters`."""
    try:
        fields = dict(_fields(text))
    except (ValueError, RecursionError):
        named = _NAME.search(text)
        return JsonCall(named[1] if named else "", text, "invalid_json")
    name, _ = fields.get("name", ("", ""))
    if not isinstance(name, str) or not name:
        return JsonCall("", text, "missing_name")
    value, arguments = next((fields[key] for key in _ARGUMENTS if key in fields), (None, ""))
    if isinstance(value, str):
        arguments = value  # some models write the object's text as a string
    return checked_call(name, arguments)


def _fields(text: str) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Each field of an object with its value and the value's text.

    Raises:
        ValueError: no JSON object, or something after it.
    """
    after = _skip(text, 0, "{")
    separator = text[after : after + 1]
    end = after
    while separator != "}":
        key, end = _DECODER.raw_decode(text, after)
        start = _skip(text, end, ":")
        value, end = _DECODER.raw_decode(text, start)
        if not isinstance(key, str):
            raise ValueError("a key is no string")
        yield key, (value, text[start:end])
        end = _spaces(text, end)
        separator = text[end : end + 1]
        if separator not in (",", "}"):
            raise ValueError(f"no , or }} at {end}")
        after = _spaces(text, end + 1)
    if text[end + 1 :].strip(_SPACE):
        raise ValueError("something after the object")


def _skip(text: str, start: int, expected: str) -> int:
    """Where the next thing begins after one character and the space around it."""
    start = _spaces(text, start)
    if text[start : start + 1] != expected:
        raise ValueError(f"no {expected} at {start}")
    return _spaces(text, start + 1)


def _spaces(text: str, start: int) -> int:
    while start < len(text) and text[start] in _SPACE:
        start += 1
    return start


PYTHON_TAG: Final = "<|python_tag|>"
"""Llama 3 writes it before calls, and before code."""
_DECODER = json.JSONDecoder()
_MISTRAL_NAME = re.compile(
    r"\s*+(?:\[TOOL_CALLS\]\s*+)?+([^\s\[\]{}]*+)(?:\[CALL_ID\][^\s\[\]{}]*+)?+\[ARGS\]\s*+"
)
_DEEPSEEK_CALL = re.compile(
    "<\uff5ctool\u2581call\u2581begin\uff5c>(.*?)(<\uff5ctool\u2581call\u2581end\uff5c>|\\Z)", re.DOTALL
)
_DEEPSEEK_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
_FENCED = re.compile(r"\s*```(?:json)?\n(.*?)\n?```\s*", re.DOTALL)
_BUILT_IN = re.compile(r"\s*([A-Za-z_]\w*)\.call\((.*)\)\s*", re.DOTALL)
_BETWEEN_OBJECTS = re.compile(r"\s*;?\s*")
_BETWEEN_ENTRIES = re.compile(r"[ \t\r\n,]*")
_NAMES_CALL = re.compile(r'\s*\{\s*"(?:name|type|function)"\s*:')


def hermes_calls(body: str, *, closed: bool) -> list[JsonCall]:
    """`<tool_call>{"name": …, "arguments": …}</tool_call>` (Hermes, Qwen 2.5 and 3, ChatML)."""
    return [_with_status(read_json_call(body.strip()), closed=closed)]


def mistral_calls(body: str) -> tuple[list[JsonCall], str]:
    """Calls after `[TOOL_CALLS]`, as `[{…}, …]` or as `name[ARGS]{…}` each, and what follows them."""
    if body.lstrip().startswith("[") and not _MISTRAL_NAME.match(body):
        return _listed(body.lstrip())
    calls: list[JsonCall] = []
    end = 0
    while (named := _MISTRAL_NAME.match(body, end)) is not None:
        try:
            _, end = _DECODER.raw_decode(body, named.end())
        except (ValueError, RecursionError) as error:
            return [*calls, JsonCall(named[1], body[named.end() :], _failed(error, body))], ""
        calls.append(checked_call(named[1], body[named.end() : end]))
    return calls or [_malformed(body)], body[end:] if calls else ""


def deepseek_calls(body: str, *, closed: bool) -> list[JsonCall]:
    """Calls of DeepSeek V3 and R1 (a fenced JSON block after the name), and of V3.1 (JSON after the name)."""
    calls: list[JsonCall] = []
    for found in _DEEPSEEK_CALL.finditer(body):
        before, separator, after = found[1].partition(_DEEPSEEK_SEPARATOR)
        name, arguments = before.strip(), after.strip()
        if name == "function" and "```" in after:
            name, _, fenced = after.partition("\n")
            inside = _FENCED.fullmatch(fenced)
            name, arguments = name.strip(), inside[1] if inside else fenced.strip()
        call = checked_call(name, arguments) if separator else JsonCall(name, found[1].strip(), "malformed")
        calls.append(_with_status(call, closed=bool(found[2])))
    return calls or [JsonCall("", body.strip(), "malformed" if closed else "unclosed_block")]


def harmony_calls(body: str, *, closed: bool) -> list[JsonCall]:
    """What follows `<|channel|>commentary to=`: `functions.name <|constrain|>json<|message|>{…}<|call|>`."""
    header, marker, arguments = body.partition("<|message|>")
    name = header.partition("<|")[0].strip().removeprefix("functions.")
    call = checked_call(name, arguments.strip()) if marker else _malformed(body, name)
    return [_with_status(call, closed=closed)]


def llama_calls(text: str, names: Sequence[str]) -> list[JsonCall]:
    """A reply that is `{"name": …, "parameters": …}`, several of them with `;` between, and nothing else.

    A JSON answer that names no call stays an answer: only an offered name, or both keys, make it a call.
    """
    calls: list[JsonCall] = []
    text = text.strip()
    at = 0
    while text.startswith("{", at):
        try:
            _, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            call = read_json_call(text[at:])
            known = call.name in names and _NAMES_CALL.match(text, at) is not None
            return [*calls, call._replace(status=_failed(error, text))] if known else []
        call = read_json_call(text[at:end])
        if not call.name or not (call.name in names or call.arguments):
            return []  # an object that is an answer
        calls.append(call)
        at = _after(_BETWEEN_OBJECTS, text, end)
    return [] if at < len(text) else calls


def python_tag_calls(body: str, names: Sequence[str]) -> list[JsonCall]:
    """What follows `<|python_tag|>`: JSON calls, or `name.call(key=value)` of a built-in tool."""
    if calls := llama_calls(body, names):
        return calls
    built_in = _BUILT_IN.fullmatch(body)
    if built_in is None:
        return [read_json_call(body.strip()) if body.lstrip().startswith("{") else _malformed(body)]
    try:
        written = parse_expression(f"f({built_in[2]})")
        assert isinstance(written, ast.Call)
        if written.args or any(each.arg is None for each in written.keywords):
            return [_malformed(body, built_in[1])]
        values = {str(each.arg): ast.literal_eval(each.value) for each in written.keywords}
        return [JsonCall(built_in[1], json.dumps(values, ensure_ascii=False, allow_nan=False), "ok")]
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return [_malformed(body, built_in[1])]


def bare_list_calls(text: str, names: Sequence[str]) -> list[JsonCall]:
    """A reply that is a list of calls of offered tools and nothing else: its marker was lost on the way."""
    if not text.strip().startswith("["):
        return []
    calls, rest = _listed(text.strip())
    return (
        calls
        if not rest.strip() and all(call.name in names and call.status == "ok" for call in calls)
        else []
    )


def _listed(text: str) -> tuple[list[JsonCall], str]:
    """The calls of a JSON list, each with its own status, and what follows the list."""
    calls: list[JsonCall] = []
    at = 1
    while True:
        at = _after(_BETWEEN_ENTRIES, text, at)
        if text[at : at + 1] == "]":
            return calls or [_malformed(text)], text[at + 1 :]
        try:
            _, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            call = read_json_call(text[at:])
            return [*calls, call._replace(status=_failed(error, text))], ""
        calls.append(read_json_call(text[at:end]))
        at = end


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _failed(error: Exception, text: str) -> CallStatus:
    """Whether JSON ended too early, or is wrong."""
    cut = isinstance(error, json.JSONDecodeError) and (
        error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
    )
    return "unclosed_block" if cut else "invalid_json"


def _malformed(body: str, name: str = "") -> JsonCall:
    return JsonCall(name, body.strip(), "malformed")


def _with_status(call: JsonCall, *, closed: bool) -> JsonCall:
    return call if closed else call._replace(status="unclosed_block")
