"""Helpers for text in messages: printable, shortened, without credentials, grouped."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from urllib.parse import SplitResult, urlsplit

PLACE_OF_ITEM = r"(?:environment '[^']*'(?:, item .*?)?: |item '.*?': )?(?:turn \d+: )?"
_CLAUSE = re.compile(
    rf"{PLACE_OF_ITEM}((?:https?://\S+ (?:answered \d+: )?)?(?:\w+(?:, component '[^']*')?: )?"
    r"(?>\{[^{}]*\}|\[[^\[\]]*\]|.)*?)"
    r"(?:;|\((?!\))|[.,:]\s|$)",
    re.DOTALL,
)
"""Ends at a delimiter, but not at one in a number, an address, a hook's name, a dict, a list or `()`."""
_LONG_URL = re.compile(r"(https?://\S{60})\S+?(?=:?(?:\s|$))")
_NAME = re.compile(r"'[A-Za-z_.]+'")
_VALUE = re.compile(r"""\b\d[\d.]*|'[^']*'|"[^"]*\"""")


_USER_IN_TEXT = re.compile(
    r"(?:(?<=:/)(/?)[^\s'\"<>?#]{1,300}|(?<![\w.+-])[\w.+-]{1,64}:[^\s'\"<>?#/]{1,300})@(?!sha\d+:)"
)
"""Bounded, since a server may send a text full of partial matches. One slash for a path of a URL, none
without a scheme; an image tag may be followed by its digest.
"""
_QUERY_IN_TEXT = re.compile(r"(?<=[?&])([\w.~%-]{1,64})=[^\s&#'\"<>),;]+")
_LINE_CHARS = 300
REDACTED = "[secret]"


def printable(text: str, unknown: str = " ") -> str:
    """Replace characters that could control a terminal by `unknown`."""
    return "".join(each if each.isprintable() else unknown for each in text)


def hide(text: str, secrets: Iterable[str]) -> str:
    for secret in sorted(filter(None, secrets), key=len, reverse=True):  # one may contain another
        text = text.replace(secret, REDACTED)
    return text


def shorten(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def count_noun(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def decimals(number: float | None, spec: str = "") -> str:
    """Format with three decimals; with three digits where decimals would be zeros, or the number is huge."""
    if number is None:
        return "-"
    is_plain = abs(number) < 1e-9 or 1e-3 <= abs(number) < 1e7
    return f"{number:{spec}.3f}" if is_plain else f"{number:.3g}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
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


def utf8_text(text: str) -> str:
    """Return a text, such as a path, as JSON can hold it, with lone surrogates escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def first_clause(error: str, *, values: bool = True, names: bool = True) -> str:
    """Return an error's first clause, equal for all rollouts with one cause.

    Without `values`, numbers and quotes, which differ per item, become `…`; `names` keeps quoted names.
    """
    found = _CLAUSE.match(_LONG_URL.sub(r"\1…", " ".join(error.split())))
    clause = found[1].strip() if found else ""
    if values:
        return clause
    return _VALUE.sub(lambda found: found[0] if names and _NAME.fullmatch(found[0]) else "…", clause)


def one_line(text: str) -> str:
    line = " ".join(text[: 100 * _LINE_CHARS].split())
    line = line if len(line) <= _LINE_CHARS else f"{line[:_LINE_CHARS]}…"
    return printable(line, "\N{REPLACEMENT CHARACTER}")


def without_credentials(text: str) -> str:
    """Replace user info and query values by `***` in each URL that a text quotes."""
    return _QUERY_IN_TEXT.sub(r"\1=***", _USER_IN_TEXT.sub(r"\1***@", text))


def public_url(url: str) -> str:
    """Return a URL, even a malformed one, without user, password and query."""
    parts = split_url(url)
    if parts is not None:
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    start = re.split(r"[?#]", url, maxsplit=1)[0]
    return "(hidden)" if "@" in url and "@" not in start else start.rpartition("@")[2]


def split_url(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url.strip())
        # `port` raises ValueError if it is malformed, as with a slash in the password.
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if known and not re.search(r"\s", url.strip()) else None
