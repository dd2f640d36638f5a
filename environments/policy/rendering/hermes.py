"""Parser of JSON calls between tags (Hermes, Qwen 2.5 and 3, ChatML) and of their places in text."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from tools.calls import CallStatus, ToolCall
from tools.plain_text import utf8_text

CALL: Final = ("<tool_call>", "</tool_call>")

_CODE_START = re.compile(r"(?m)^[ \t]{0,20}(?:```|~~~)|`[^`\n]{1,2000}`")
_FENCE = re.compile(r"(?m)^[ \t]{0,20}(```|~~~)")
_THOUGHT_END = re.compile(r"</think[^<>\n]{0,20}>")
_THOUGHT_START = re.compile(r"\s*<think[^<>\n]{0,20}>")
_QUOTES = ("'", '"', "`", "\u201c", "\u201e", "\u00ab")
_INLINE = ("<tool_call>{", "<tool_call> {")
"""Openings of calls quoted in a sentence; real ones have a line break before the JSON."""
_CONTEXT_CHARS = 200
_SEPARATOR = re.compile(r"[ \t\r\n]*+([{:,}])[ \t\r\n]*+")
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]{1,64})"')
_ARGUMENTS = ("arguments", "parameters", "args")
_DECODER = json.JSONDecoder()


class Block(NamedTuple):
    start: int
    end: int
    body: str
    closed: bool
    own_line: bool
    """After other text on its line, a block counts only if it parses as a call."""


def find_blocks(content: str, opening: str, closing: str) -> Iterator[Block]:
    """Yield blocks that start or end a line, outside of reasoning and code."""
    thought = _THOUGHT_END.search(content)
    at = thought.end() if thought else len(content) if _THOUGHT_START.match(content) else 0
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
        end = content.find(closing, body_start) if closed else len(content)
        after = end + len(closing) if closed else end
        line_before = content[max(block_end, start - _CONTEXT_CHARS) : start].rpartition("\n")[2].rstrip()
        following = content[after : after + _CONTEXT_CHARS].partition("\n")[0].strip()
        in_sentence = line_before.endswith(_QUOTES) or content.startswith(_INLINE, start)
        ends_line = closed and (not following or following.startswith(opening))
        if not line_before or (ends_line and not in_sentence):
            yield Block(start, after, content[body_start:end], closed, not line_before)
            at = block_end = after
        else:
            at = body_start


def _next_code(content: str, at: int) -> tuple[int, int]:
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


def read_blocks(
    content: str, tags: tuple[str, str], read: Callable[[Block], Sequence[ToolCall]]
) -> tuple[str, tuple[ToolCall, ...]]:
    """Return (content without calls, calls named `call_0`, `call_1`, …)."""
    kept = [
        (block, calls)
        for block in find_blocks(content, *tags)
        if (calls := read(block)) and (block.own_line or any(call.status == "ok" for call in calls))
    ]
    if not kept:
        return content, ()
    ends = [0, *(block.end for block, _ in kept)]
    starts = [*(block.start for block, _ in kept), len(content)]
    pieces = (content[end:start].strip() for end, start in zip(ends, starts, strict=True))
    found = number_calls([call for _, calls in kept for call in calls])
    return "\n".join(filter(None, pieces)), found


def read_hermes_calls(content: str, _: object = None) -> tuple[str, tuple[ToolCall, ...]]:
    return read_blocks(content, CALL, read_hermes_block)


def read_hermes_block(block: Block) -> list[ToolCall]:
    name, arguments, status = read_json_call(block.body.strip())
    status = status if block.closed else "unclosed_block"
    return [ToolCall(id="", name=name, arguments=arguments, status=status)]


def number_calls(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    return tuple(replace(call, id=f"call_{index}", span=None) for index, call in enumerate(calls))


class JsonCall(NamedTuple):
    name: str
    arguments: str
    status: CallStatus


def make_call(name: str, arguments: str) -> JsonCall:
    name, arguments = utf8_text(name), utf8_text(arguments)  # JSON can escape half of a character
    if not name:
        return JsonCall(name, arguments, "missing_name")
    try:
        if arguments.strip():
            json.loads(arguments)
    except (ValueError, RecursionError):
        return JsonCall(name, arguments, "invalid_json")
    return JsonCall(name, arguments, "ok")


def read_json_call(text: str) -> JsonCall:
    """Parse `{"name": …, "arguments": …}` in any spacing and order, also with `parameters` (Llama)."""
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
        arguments = value
    return make_call(name, arguments)


def _fields(text: str) -> Iterator[tuple[str, tuple[Any, str]]]:
    _, after = _separator(text, 0, "{")
    separator, after = _separator(text, after, "}") if text[after : after + 1] == "}" else (",", after)
    while separator != "}":
        key, end = _DECODER.raw_decode(text, after)
        _, start = _separator(text, end, ":")
        value, end = _DECODER.raw_decode(text, start)
        if not isinstance(key, str):
            raise ValueError("a key is not a string")
        yield key, (value, text[start:end])
        separator, after = _separator(text, end, ",}")
    if after < len(text):
        raise ValueError("something after the object")


def _separator(text: str, start: int, expected: str) -> tuple[str, int]:
    found = _SEPARATOR.match(text, start)
    if found is None or found[1] not in expected:
        raise ValueError(f"none of {expected} at {start}")
    return found[1], found.end()
