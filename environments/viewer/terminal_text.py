"""Text of a record for a terminal: what a model, a tool or a user wrote is shown, and drives nothing."""

import unicodedata
from collections.abc import Mapping
from typing import Any

import orjson

from environments.viewer.page_values import CutText, Text

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that do something instead of being seen: escapes, marks of direction, joiners."""
_MARKS = frozenset({"Mn", "Me"})
_MOST_MARKS = 4
"""On one character; a terminal may take its time for more."""
_TAB = "    "


def shown(text: Text) -> str:
    """The text, where what would not be seen is written as in Python, such as an escape; lines stay lines.

    Of a text that was cut, it says how much is missing.
    """
    if isinstance(text, str):
        return _shown(text)
    return f"{_shown(text['head'])} … ({_left_out(text):,} characters left out) … {_shown(text['tail'])}"


def in_line(text: Text) -> str:
    """The same in one line."""
    return " ".join(shown(text).split())


def json_line(value: Any) -> str:
    """JSON values in one line."""
    return _shown(orjson.dumps(value).decode())


def number(value: float | None) -> str:
    """A number in a few digits, `-` where there is none."""
    return "-" if value is None else f"{value + 0.0:.4g}"


def signed(value: float) -> str:
    """A number with its sign; 0 has none."""
    return f"{value:+.4g}" if value else "0"


def numbers(named: Mapping[str, float]) -> str:
    """Names with their numbers."""
    return ", ".join(f"{in_line(name)} {number(value)}" for name, value in named.items())


def _left_out(text: CutText) -> int:
    return text["chars"] - len(text["head"]) - len(text["tail"])


def _shown(text: str) -> str:
    text = text.replace("\r\n", "\n")
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    pieces: list[str] = []
    marks = 0
    for each in text:
        category = unicodedata.category(each)
        marks = marks + 1 if category in _MARKS else 0
        if each == "\n":
            pieces.append(each)
        elif each == "\t":
            pieces.append(_TAB)
        elif category in _UNSEEN or marks > _MOST_MARKS:
            pieces.append(each.encode("unicode_escape").decode())
        else:
            pieces.append(each)
    return "".join(pieces)
