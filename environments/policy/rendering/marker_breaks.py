"""Text of a message is marked so that no format takes it for its own control tokens.

A library joins its own markers and our text into one string before it encodes it. So each marker in our text
gets a character inside that no text has; where that stands, no control token is made, and it is taken out.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise

_BREAK = "\ufdd0\ufdd1"
_ITSELF = "\ufdd0\ufdd2"
"""Stands for U+FDD0, a code point that Unicode leaves to programs, should a text have it."""
_PLACED = re.compile("\ufdd0([\ufdd1\ufdd2])")


class MarkerBreaks:
    """Finds markers in text; a marker is any string that could become a control token."""

    def __init__(self, markers: Iterable[str]) -> None:
        """Know `markers`, of one character or more."""
        self._markers = frozenset(markers)
        self._lengths: dict[str, list[int]] = {}
        for marker in self._markers:
            lengths = self._lengths.setdefault(marker[:2], [])
            if len(marker) not in lengths:
                lengths.append(len(marker))
        for lengths in self._lengths.values():
            lengths.sort(reverse=True)
        starts = sorted(self._lengths, key=len, reverse=True)
        self._start = re.compile("|".join(map(re.escape, starts)) or r"(?!)")
        self._heads = {marker[:size] for marker in self._markers for size in range(1, len(marker))}
        self._tails = {marker[size:] for marker in self._markers for size in range(1, len(marker))}
        self._longest = max(map(len, self._markers), default=0)

    def broken(self, text: str) -> str:
        """The text of a message, from which no marker comes, alone or together with what it stands beside."""
        text = text.replace("\ufdd0", _ITSELF)
        found = list(self._found(text, overlapping=True))
        if found:
            cut = [0, *(start + 1 for start, _ in found), len(text)]
            text = _BREAK.join(text[a:b] for a, b in pairwise(cut))
        ends = range(1, min(self._longest, len(text)) + 1)
        if any(text[:size] in self._tails for size in ends):
            text = _BREAK + text
        if any(text[-size:] in self._heads for size in ends):
            text += _BREAK
        return text

    def pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """What a library wants to encode, as (text, whether it is a control token), without the breaks."""
        breaks: list[int] = []
        if "\ufdd0" in text:
            text = _without_breaks(text, breaks)
        end = 0
        for start, marker in self._found(text, overlapping=bool(breaks)):
            after = start + len(marker)
            if start < end or bisect_right(breaks, start) < bisect_left(breaks, after):
                continue  # a break stands inside
            if start > end:
                yield text[end:start], False
            yield marker, True
            end = after
        if end < len(text):
            yield text[end:], False

    def _found(self, text: str, *, overlapping: bool) -> Iterator[tuple[int, str]]:
        """Markers from left to right, the longest one at each place."""
        at = 0
        while (start := self._start.search(text, at)) is not None:
            at = start.start()
            lengths = self._lengths[start[0]]
            marker = next((text[at : at + n] for n in lengths if text[at : at + n] in self._markers), None)
            if marker is not None:
                yield at, marker
            at += 1 if marker is None or overlapping else len(marker)


def _without_breaks(text: str, breaks: list[int]) -> str:
    """The text as it was; `breaks` gets where a break stood."""
    parts: list[str] = []
    size = end = 0
    for placed in _PLACED.finditer(text):
        parts.append(text[end : placed.start()])
        size += len(parts[-1])
        if placed[1] == "\ufdd1":
            breaks.append(size)
        else:
            parts.append("\ufdd0")
            size += 1
        end = placed.end()
    return "".join([*parts, text[end:]])
