"""Amounts of money: whole cents, their text, and whether a message states one."""

import re
from decimal import Decimal

_NUMBER = re.compile(r"(?<![\w.,])\d+(?:[.,]\d+)*")
_AMOUNT = re.compile(r"\d{1,9}(\.\d{1,4})?")
_MOST_NUMBERS = 20
"""A message with more of them answers nothing: it only tries them out."""


def cents(amount: str) -> int:
    """`"12.50"` as 1250."""
    return int(Decimal(amount) * 100)


def money(amount: int) -> str:
    """1250 as `"12.50"`."""
    return f"{Decimal(amount) / 100:.2f}"


def states(message: str, amount: str) -> bool:
    """Whether a message has this number, `12`, `12.0` and `12.00` alike, and not too many others."""
    numbers = {number.replace(",", "") for number in _NUMBER.findall(message)}
    plain = [number for number in numbers if _AMOUNT.fullmatch(number)]
    return len(numbers) <= _MOST_NUMBERS and Decimal(amount) in map(Decimal, plain)
