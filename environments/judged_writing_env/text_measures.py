"""What can be measured of a short text: words that it must have, its length, how much of it is repeated."""

import re
from collections.abc import Sequence


def words(text: str) -> list[str]:
    """The words in lower case."""
    return re.findall(r"\w+", text.casefold())


def missing_words(text: str, required: Sequence[str]) -> list[str]:
    """The required words that a text does not have."""
    present = set(words(text))
    return [word for word in required if word.casefold() not in present]


def length_fit(text: str, shortest: int, longest: int) -> float:
    """1 within the bounds (in words), falling to 0 at no words, and at twice the longest."""
    count = len(words(text))
    if count < shortest:
        return count / shortest
    return min(1.0, max(0.0, 2 - count / longest))


def variety(text: str) -> float:
    """The share of sentences that were not there before; 0 of an empty text."""
    sentences = [" ".join(words(sentence)) for sentence in re.split(r"[.!?\n]+", text)]
    sentences = [sentence for sentence in sentences if sentence]
    return len(set(sentences)) / len(sentences) if sentences else 0.0
