"""Checks of an agent's text: its format, the content of tags, boxes and fences, and right answers."""

import math
import re
import unicodedata
from decimal import Context, Decimal

from tools.errors import RewardError

_BOX_OR_BRACE = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)")


def has_text(text: str | None) -> bool:
    """Whether a text has a visible character, which is not a space, control or format character."""
    return any(unicodedata.category(character)[0] not in "ZC" for character in text or "")


def has_tags(text: str | None, *tags: str) -> bool:
    """Whether the text is `<tag>…</tag>` once for each tag in this order, with only white space around.

    `has_tags(text, "think", "answer")` holds for `<think>…</think> <answer>…</answer>`. Reasoning that a
    server moved to `Message.reasoning` is not part of the text.
    """
    rest = text or ""
    markers = [f"<{mark}{tag}>" for tag in tags for mark in ("", "/")]
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        before, opened, rest = rest.partition(opening)
        content, closed, rest = rest.partition(closing)
        if not (opened and closed) or before.strip() or any(other in content for other in markers):
            return False
    return not rest.strip()


def tagged(text: str | None, tag: str) -> str | None:
    """Return the content of the last closed `<tag>…</tag>`, stripped, or None."""
    before, closed, _ = (text or "").rpartition(f"</{tag}>")
    _, opened, content = before.rpartition(f"<{tag}>")
    return content.strip() if opened and closed else None


def boxed(text: str | None) -> str | None:
    r"""Return the content of the last closed `\boxed{…}`, stripped, or None.

    It may contain braces; of nested boxes the outermost counts. `\{` and `\}` are not braces.
    """
    found: str | None = None
    open_braces: list[int | None] = []  # where a box begins, None for any other brace
    for match in _BOX_OR_BRACE.finditer(text or ""):
        mark = match[0]
        if mark == "{" or (mark[0] == "\\" and len(mark) > 2):
            open_braces.append(None if mark == "{" else match.end())
        elif mark == "}" and open_braces and (start := open_braces.pop()) is not None:
            found = match.string[start : match.start()].strip()
    return found


def code_block(text: str | None, language: str | None = None) -> str | None:
    """Return the code in the last closed Markdown fence, or None.

    Args:
        text: The text to search.
        language: The language that the fence must name, in any case; by default any fence counts.
    """
    found: str | None = None
    fence: str | None = None
    wanted, lines = False, list[str]()
    for line in (text or "").split("\n"):
        match = _FENCE.match(line)
        if fence is None:
            if match is not None and (match[1][0] == "~" or "`" not in line[match.end(1) :]):
                fence, lines = match[1], []
                wanted = language is None or match[2].casefold() == language.casefold()
        elif match is not None and match[1].startswith(fence) and not line[match.end(1) :].strip():
            found = "\n".join(lines) if wanted else found
            fence = None
        else:
            lines.append(line.removesuffix("\r"))
    return found


_NUMBER = re.compile(
    r"""([+\-\N{MINUS SIGN}]?)
        ((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)
        (e[+-]?\d{1,3})?
        (%?)""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
_MAX_CHARS = 1000
_EXACT = Context(prec=3 * _MAX_CHARS)
"""Exact for any two numbers of `_MAX_CHARS` and three digits of exponent."""


def exact_match(answer: str | None, expected: str) -> bool:
    """Whether two texts are equal but for case and white space.

    Both are casefolded and stripped, and each run of white space counts as one space. Full stops, articles
    and accents have to match.
    """
    return answer is not None and _normalise(answer) == _normalise(expected)


def numeric_match(
    answer: str | None, expected: str | float, *, rel_tol: float = 1e-9, abs_tol: float = 0.0
) -> bool:
    """Whether an answer is a number near enough to the expected one.

    The whole text but white space must be a number: a sign, digits, a decimal point, an exponent (`1.5e-3`),
    commas between thousands (`1,234,567`, but not `12,34`), and a percent sign, which divides by 100. Units,
    currencies, fractions and LaTeX are not read (see `MathChecker`).

    Args:
        answer: The agent's answer.
        expected: The right number, as a number or as text of the same form.
        rel_tol: Allowed difference as a share of the expected number.
        abs_tol: Allowed difference; the larger of the two counts.

    Raises:
        RewardError: if `expected` is not such a number, or a tolerance is negative or not finite.
    """
    right = _number(str(expected))
    if right is None or not (0 <= rel_tol < math.inf and 0 <= abs_tol < math.inf):
        raise RewardError(
            f"numeric_match: the expected number is {expected!r:.100}, the tolerances are {rel_tol!r} and "
            f"{abs_tol!r}; give finite numbers, no tolerance below 0"
        )
    given = None if answer is None else _number(answer)
    if given is None:
        return False
    allowed = max(_EXACT.multiply(Decimal(rel_tol), abs(right)), Decimal(abs_tol))
    return abs(_EXACT.subtract(given, right)) <= allowed


def _normalise(text: str) -> str:
    return " ".join(text.casefold().split())


def _number(text: str) -> Decimal | None:
    text = text.strip()
    match = _NUMBER.fullmatch(text) if len(text) <= _MAX_CHARS else None
    if match is None:
        return None
    sign, digits, exponent, percent = match.groups()
    minus = "" if sign in ("", "+") else "-"
    number = Decimal(f"{minus}{digits.replace(',', '')}{exponent or ''}")
    return _EXACT.divide(number, Decimal(100)) if percent else number
