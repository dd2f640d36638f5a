"""Whether an answer is the expected one: any text can be an answer, and `None` is a wrong one."""

import math
import re
from decimal import Context, Decimal

from tools.errors import RewardError

_NUMBER = re.compile(
    r"""([+\-\N{MINUS SIGN}]?)
        ((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)
        (e[+-]?\d{1,3})?
        (%?)""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
_MAX_CHARS = 1000
_EXACT = Context(prec=3 * _MAX_CHARS)
"""Enough for any two numbers of so many characters and such exponents."""


def exact_match(answer: str | None, expected: str) -> bool:
    """Whether two texts are equal but for capitals and white space.

    Both are casefolded, each run of white space is one space, and none is at the ends. Nothing else is
    forgiven: no full stop, article or accent.
    """
    return answer is not None and _normalised(answer) == _normalised(expected)


def numeric_match(
    answer: str | None, expected: str | float, *, rel_tol: float = 1e-9, abs_tol: float = 0.0
) -> bool:
    """Whether an answer is a number, and as near to the expected one as it must be.

    A number is all that the text holds but white space: a sign, digits, a decimal point, an exponent
    (`1.5e-3`), thousands separated by commas (`1,234,567`; `12,34` is none), and a percent sign, which
    divides by 100. Nothing else is read: no unit or currency, no fraction, no LaTeX (see `MathChecker`).

    Args:
        answer: The agent's.
        expected: The right number, as a number or as text of the same form.
        rel_tol: Allowed difference as a share of the expected number.
        abs_tol: Allowed difference; the larger of both counts.

    Raises:
        RewardError: `expected` is no such number, or a tolerance is negative or not finite.
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


def _normalised(text: str) -> str:
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
