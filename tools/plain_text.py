"""Text as a terminal and as a file can hold it, and errors as they can be counted."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

PLACE_OF_ITEM = r"(?:environment '[^']*'(?:, item .*?)?: |item '.*?': )?(?:turn \d+: )?"
"""How our errors begin that are of one rollout."""
_CLAUSE = re.compile(
    rf"{PLACE_OF_ITEM}((?:https?://\S+ (?:answered \d+: )?)?(?:\w+(?:, component '[^']*')?: )?.*?)"
    r"(?:;|\((?!\))|[.,:]\s|$)",
    re.DOTALL,
)
"""A point in a number, or a colon in an address or after it, or after the name of a hook, ends no clause; nor
does a function's ()."""
_LONG_URL = re.compile(r"(https?://\S{60})\S+?(?=:?(?:\s|$))")
_VALUE = re.compile(r"""\b\d[\d.]*|'[^']*'|"[^"]*\"""")


def printable(text: str, unknown: str = " ") -> str:
    """The text with `unknown` for each character that would steer a terminal."""
    return "".join(each if each.isprintable() else unknown for each in text)


def shorten(text: str, max_chars: int) -> str:
    """Return a text of at most `max_chars`, with an ellipsis for an end that was cut off."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def counted(number: int, noun: str) -> str:
    """Return `1 group`, `2 groups`, `1,000 groups`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The part of a message about an unknown name that has the nearest known one; empty if none is near."""
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """The end of a message about an unknown name: the nearest known one, or all of them."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {prefix}{close[0]}?" if close else f"; choose one of {', '.join(names)}"


def is_utf8(text: str) -> bool:
    """Whether UTF-8 has the text; it has no half of a surrogate pair, as in an undecodable file name."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def utf8_path(path: str) -> str:
    """Return a path as JSON can hold it, with undecodable bytes escaped."""
    return path.encode("utf-8", "backslashreplace").decode()


def first_clause(error: str, *, values: bool = True) -> str:
    """What an error says before it goes into detail: equal for all rollouts that meet one cause.

    Without `values` it has no numbers and quotes either, of which a bug meets others in each item.
    """
    found = _CLAUSE.match(_LONG_URL.sub(r"\1…", " ".join(error.split())))
    clause = found[1].strip() if found else ""
    return clause if values else _VALUE.sub("…", clause)
