"""An assistant turn as ChatML writes it: reasoning, text and tool calls between markers, read and written."""

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from environments.policy.rendering.json_calls import JsonCall, checked_call, read_json_call
from environments.trajectory import Message
from tools.calls import ToolCall

THINK: Final = ("<think>", "</think>")
CALL: Final = ("<tool_call>", "</tool_call>")

_CALL_START = '\n{"name": '
_CALL_MIDDLE = ', "arguments": '
_CALL_END = "}\n"
_DECODER = json.JSONDecoder()


class Section(NamedTuple):
    """A marker and the text up to the next one."""

    marker: str
    """Empty for text before the first."""
    text: str
    start: int
    """Index of the marker's token."""
    end: int


def message_of(sections: Sequence[Section]) -> Message:
    """The message of a turn, its calls named `call_0`, `call_1` and so on.

    A block that is not closed, or that holds no call, is a call with a status that says so; what stands in
    the reasoning is no call.
    """
    reasoning, sections = _reasoning(sections)
    content = ""
    calls: list[ToolCall] = []
    for index, section in enumerate(sections):
        closed = index + 1 < len(sections) and sections[index + 1].marker == CALL[1]
        if section.marker == CALL[0]:
            content = content if calls else content.removesuffix("\n")
            calls.append(_read_call(section, closed=closed, index=len(calls)))
        elif section.marker == CALL[1] and index and sections[index - 1].marker == CALL[0]:
            content += section.text if section.text != "\n" else ""
        else:
            content += section.marker + section.text
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=tuple(calls))


def write_call(call: ToolCall) -> str:
    """The text between the call markers; the arguments stay as they are, even when they are not JSON."""
    return (
        f"{_CALL_START}{json.dumps(call.name, ensure_ascii=False)}{_CALL_MIDDLE}{call.arguments}{_CALL_END}"
    )


def _read_call(section: Section, *, closed: bool, index: int) -> ToolCall:
    """The call between two markers; the span takes in both of them."""
    text, span = section.text, (section.start, section.end + closed)
    name, arguments, status = _framed(text) or read_json_call(text.strip())
    return ToolCall(
        id=f"call_{index}",
        name=name,
        arguments=arguments,
        status=status if closed else "unclosed_block",
        span=span,
    )


def _framed(text: str) -> JsonCall | None:
    """A call in the spacing of `write_call`: there, arguments that are no JSON can be told apart, too."""
    if not (text.startswith(_CALL_START) and text.endswith(_CALL_END)):
        return None
    try:
        name, end = _DECODER.raw_decode(text, len(_CALL_START))
    except (json.JSONDecodeError, RecursionError):
        return None
    if not isinstance(name, str) or not text.startswith(_CALL_MIDDLE, end):
        return None
    return checked_call(name, text[end + len(_CALL_MIDDLE) : len(text) - len(_CALL_END)])


def _reasoning(sections: Sequence[Section]) -> tuple[str | None, Sequence[Section]]:
    """What was thought first, and the rest; reasoning that was not closed leaves no rest."""
    if not sections or sections[0].marker != THINK[0]:
        return None, sections
    close = next(
        (index for index, section in enumerate(sections) if section.marker == THINK[1]), len(sections)
    )
    inside = sections[0].text + "".join(each.marker + each.text for each in sections[1:close])
    if close == len(sections):
        return _between(inside, "\n", ""), []
    after = sections[close]
    answer = Section("", after.text.removeprefix("\n\n"), after.start + 1, after.end)
    return _between(inside, "\n", "\n"), [answer, *sections[close + 1 :]]


def _between(text: str, prefix: str, suffix: str) -> str:
    return text.removeprefix(prefix).removesuffix(suffix)
