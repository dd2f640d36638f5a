"""Where in a reply's text calls stand: not in its reasoning, not in code, and not quoted in a sentence."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_CODE_START = re.compile(r"(?m)^[ \t]{0,20}(?:```|~~~)|`[^`\n]{1,2000}`")
_FENCE = re.compile(r"(?m)^[ \t]{0,20}(```|~~~)")
_THOUGHT_END = re.compile(r"</think[^<>\n]{0,20}>")
_THOUGHT_START = re.compile(r"\s*<think[^<>\n]{0,20}>")
_QUOTES = ("'", '"', "`", "\u201c", "\u201e", "\u00ab")
_INLINE = ("<tool_call>{", "<tool_call> {")
"""How a call begins that is told in a sentence: models begin a line between the marker and the JSON."""
_LOOK = 200
"""Characters around a block that tell whether it stands alone."""


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
    """Where the next code, in a fence or in backticks, begins and ends; twice the end if there is none."""
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
