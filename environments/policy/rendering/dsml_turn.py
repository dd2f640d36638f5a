"""Reads a turn in DeepSeek V4's markup, in time that grows with its length alone.

The `renderers` library decodes a turn from its start again for each of its ids, and looks through the rest of
it for each parameter that is opened.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

Decode = Callable[[Sequence[int]], str]

_DSML: Final = "\uff5cDSML\uff5c"
_TERMINALS: Final[Mapping[str, str]] = {
    f"<{_DSML}tool_calls>": "section",
    f"<{_DSML}toolcalls>": "section",
    f"<{_DSML}tool>": "section",
    f"</{_DSML}tool_calls>": "section_end",
    f"<{_DSML}invoke": "call",
    f"</{_DSML}invoke>": "call_end",
}
_TERMINAL: Final = re.compile("|".join(map(re.escape, _TERMINALS)))
_NEXT: Final[Mapping[tuple[str, str], str]] = {
    ("content", "think"): "reasoning",
    ("content", "think_end"): "content",
    ("reasoning", "think"): "reasoning",
    ("reasoning", "think_end"): "content",
    ("content", "section"): "between",
    ("reasoning", "section"): "between",
    ("content", "call"): "call",
    ("between", "call"): "call",
    ("call", "call_end"): "between",
    ("call", "section_end"): "between",
}
"""What is read after a terminal, by what is read before it; any other terminal is text there."""
_HEADER: Final = re.compile(f'<{_DSML}invoke name="([^"\n]*)">\n')
_PARAMETER: Final = re.compile(f'\n*<{_DSML}parameter name="([^"\n]*)" string="(true|false)">')
_PARAMETER_END: Final = f"</{_DSML}parameter>"


@dataclass(frozen=True, slots=True, kw_only=True)
class DsmlCall:
    """An attempt at a call, with the fields of the library's."""

    raw: str
    name: str
    arguments: Mapping[str, Any]
    token_span: tuple[int, int]
    status: str
    id: None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DsmlTurn:
    """A turn, with the fields of the library's."""

    content: str
    reasoning_content: str | None
    tool_calls: list[DsmlCall]
    reasoning_complete: bool


class _Piece(NamedTuple):
    terminal: str | None
    """`None`: text."""
    text: str
    start: int
    """In ids."""
    end: int


def read_dsml(ids: Sequence[int], decode: Decode, *, thinks: Mapping[int, str], thinking: bool) -> DsmlTurn:
    """The turn that ids hold.

    Args:
        ids: without a stop token.
        decode: gives the text of ids.
        thinks: the ids of the markers of reasoning, `think` and `think_end`.
        thinking: whether the prompt has opened the reasoning.
    """
    state = "reasoning" if thinking else "content"
    texts: dict[str, list[str]] = {"reasoning": [], "content": [], "call": [], "between": []}
    calls: list[DsmlCall] = []
    start = 0
    for piece in _pieces(ids, decode, thinks):
        after = None if piece.terminal is None else _NEXT.get((state, piece.terminal))
        if after is None:
            texts[state].append(piece.text)
            continue
        if state == "call":
            closed = piece.terminal == "call_end"
            span = (start, piece.end if closed else piece.start)
            calls.append(_call("".join(texts["call"]), span, closed=closed))
        elif after == "call":
            start, texts["call"] = piece.start, [piece.text]
        state = after
    if state == "call":
        calls.append(_call("".join(texts["call"]), (start, len(ids)), closed=False))
    content, reasoning = "".join(texts["content"]), "".join(texts["reasoning"]).rstrip()
    return DsmlTurn(
        content=content if content.strip() else "",
        reasoning_content=reasoning or None,
        tool_calls=calls,
        reasoning_complete=state != "reasoning",
    )


def _pieces(ids: Sequence[int], decode: Decode, thinks: Mapping[int, str]) -> Iterator[_Piece]:
    """Text and terminals; what ordinary ids spell is no marker of reasoning."""
    start = 0
    for index, token_id in enumerate(ids):
        if token_id in thinks:
            yield from _spelled(ids[start:index], decode, start)
            yield _Piece(thinks[token_id], decode([token_id]), index, index + 1)
            start = index + 1
    yield from _spelled(ids[start:], decode, start)


def _spelled(ids: Sequence[int], decode: Decode, offset: int) -> Iterator[_Piece]:
    text = decode(ids)
    found = list(_TERMINAL.finditer(text))
    ends = _ends(ids, decode) if found else []
    at = 0
    for each in found:
        start, end = bisect_right(ends, each.start()), bisect_left(ends, each.end()) + 1
        yield _Piece(None, text[at : each.start()], offset, offset + start)
        yield _Piece(_TERMINALS[each[0]], each[0], offset + start, min(offset + end, offset + len(ids)))
        at = each.end()
    yield _Piece(None, text[at:], offset, offset + len(ids))


def _ends(ids: Sequence[int], decode: Decode) -> list[int]:
    """Characters up to the end of each id: a character of several ids ends with the last of them."""
    ends: list[int] = []
    start = before = 0
    for index in range(len(ids)):
        text = decode(ids[start : index + 1])
        ends.append(before + len(text.rstrip("\ufffd")))
        if not text.endswith("\ufffd") or index - start > 8:
            start, before = index + 1, before + len(text)
    return ends


def _call(text: str, span: tuple[int, int], *, closed: bool) -> DsmlCall:
    """The call between its opening and, where it is `closed`, its end."""
    header = _HEADER.match(text)
    name = "" if header is None else header[1]
    arguments: dict[str, Any] = {}
    status = "ok" if header is not None else "malformed_structure"
    at = 0 if header is None else header.end()
    while header is not None and (opened := _PARAMETER.match(text, at)) is not None:
        end = text.find(_PARAMETER_END, opened.end())
        if end < 0:
            break
        value, fits = _value(text[opened.end() : end], is_text=opened[2] == "true")
        status = "malformed_structure" if opened[1] in arguments else status
        status = "invalid_json" if not fits and status == "ok" else status
        arguments.setdefault(opened[1], value)
        at = end + len(_PARAMETER_END)
    if text[at:].strip("\n"):
        status = "malformed_structure"
    if header is not None and not name:
        status = "missing_name"
    raw = text + (f"</{_DSML}invoke>" if closed else "")
    return DsmlCall(
        raw=raw,
        name=name,
        arguments=arguments,
        token_span=span,
        status=status if closed else "unclosed_block",
    )


def _value(text: str, *, is_text: bool) -> tuple[Any, bool]:
    """What a parameter holds, and whether it is what it says."""
    if is_text:
        return text, True
    try:
        return json.loads(text), True
    except (ValueError, RecursionError):
        return text, False
