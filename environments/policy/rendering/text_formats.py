"""Formats of calls in text that are read here: they need no package, and some no package reads right."""

import ast
import json
import re
from collections.abc import Sequence
from typing import Final

from environments.policy.rendering.json_calls import JsonCall, checked_call, read_json_call
from environments.python_syntax import parse_expression
from tools.calls import CallStatus

PYTHON_TAG: Final = "<|python_tag|>"
"""Llama 3 writes it before calls, and before code."""
_DECODER = json.JSONDecoder()
_MISTRAL_NAME = re.compile(r"\s*(?:\[TOOL_CALLS\])?\s*([^\s\[\]{}]*)(?:\[CALL_ID\][^\s\[\]{}]*)?\[ARGS\]\s*")
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
