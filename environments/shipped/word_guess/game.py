"""The game: its words, the marks of a guess, and the state of one game."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from environments.rewards.text_format import tagged
from tools.calls import State

WORDS = tuple(Path(__file__).with_name("words.txt").read_text().split())
"""In random order, so that the first ones are a fair sample."""

LETTERS = 5
RIGHT = "g" * LETTERS
_SHOWN = re.compile(r"((?:[a-z] ){4}[a-z])\n((?:[gy-] ){4}[gy-])\n")


def marks_of(guess: str, answer: str) -> str:
    """Mark each letter of a guess: `g` in place, `y` elsewhere in the answer, `-` not in it.

    A letter gets as many marks as the answer has of it: first those in place, then from left to right.
    """
    pairs = list(zip(guess, answer, strict=True))
    left = [right for letter, right in pairs if letter != right]
    marks = ""
    for letter, right in pairs:
        if letter == right:
            marks += "g"
        elif letter in left:
            left.remove(letter)
            marks += "y"
        else:
            marks += "-"
    return marks


def filter_words(words: Iterable[str], guess: str, marks: str) -> tuple[str, ...]:
    return tuple(word for word in words if marks_of(guess, word) == marks)


def parse_guess(text: str) -> str | None:
    """Return the guess in the last `<guess>…</guess>` of a message, or in all of it.

    White space, case and a full stop are ignored; five letters from a to z must remain.
    """
    marked = tagged(text, "guess")
    word = (text if marked is None else marked).strip().removesuffix(".")
    return word.lower() if len(word) == LETTERS and word.isascii() and word.isalpha() else None


def format_marks(guess: str, marks: str) -> str:
    """Return a guess and its marks with spaces, so that a tokenizer sees each letter."""
    return f"{' '.join(guess)}\n{' '.join(marks)}\n"


def parse_marks(text: str) -> tuple[str, str] | None:
    found = _SHOWN.match(text)
    return None if found is None else (found[1].replace(" ", ""), found[2].replace(" ", ""))


@dataclass(slots=True, kw_only=True)
class Game(State):
    answer: str
    candidates: tuple[str, ...]
    """Words that fit all marks so far."""
    all_candidates: int
    turns: int = 0
    facts: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    @classmethod
    def begin(cls, answer: str) -> "Game":
        words = WORDS if answer in WORDS else (*WORDS, answer)
        return cls(answer=answer, candidates=words, all_candidates=len(words))

    def guess(self, word: str) -> str:
        marks = marks_of(word, self.answer)
        self.candidates = filter_words(self.candidates, word, marks)
        self.facts.add((word, marks))
        return marks

    @property
    def information(self) -> float:
        """Share of the initial uncertainty that is gone."""
        return 1.0 - math.log(len(self.candidates)) / math.log(self.all_candidates)

    @property
    def is_solved(self) -> bool:
        return (self.answer, RIGHT) in self.facts
