"""Helpers for text in messages: printable, shortened, counted, suggested, grouped."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

PLACE_OF_ITEM = r"(?:environment '[^']*'(?:, item .*?)?: |item '.*?': )?(?:turn \d+: )?"
"""Optional beginning of an error that belongs to one rollout."""
_CLAUSE = re.compile(
    rf"{PLACE_OF_ITEM}((?:https?://\S+ (?:answered \d+: )?)?(?:\w+(?:, component '[^']*')?: )?.*?)"
    r"(?:;|\((?!\))|[.,:]\s|$)",
    re.DOTALL,
)
"""Ends at a delimiter, but not at one in a number, an address, a hook's name or `()`."""
_LONG_URL = re.compile(r"(https?://\S{60})\S+?(?=:?(?:\s|$))")
_VALUE = re.compile(r"""\b\d[\d.]*|'[^']*'|"[^"]*\"""")


def printable(text: str, unknown: str = " ") -> str:
    """Replace characters that could control a terminal by `unknown`."""
    return "".join(each if each.isprintable() else unknown for each in text)


def shorten(text: str, max_chars: int) -> str:
    """Cut a text to `max_chars` with an ellipsis."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def counted(number: int, noun: str) -> str:
    """Return `1 group`, `2 groups`, `1,000 groups`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for a near match, else an empty text."""
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a suggestion for an unknown name: the nearest known one, or all."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {prefix}{close[0]}?" if close else f"; choose one of {', '.join(names)}"


def is_utf8(text: str) -> bool:
    """Whether a text has no lone surrogates, which undecodable file names contain."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def first_clause(error: str, *, values: bool = True) -> str:
    """Return an error's first clause, equal for all rollouts with one cause.

    Without `values`, numbers and quotes, which differ per item, become `…`.
    """
    found = _CLAUSE.match(_LONG_URL.sub(r"\1…", " ".join(error.split())))
    clause = found[1].strip() if found else ""
    return clause if values else _VALUE.sub("…", clause)
