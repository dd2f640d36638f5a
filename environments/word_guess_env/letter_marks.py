"""What a guess is told: a mark for each letter, as the game shows it and as a player reads it back."""

import re
from collections.abc import Iterable

from environments.rewards.text_format import tagged

LETTERS = 5
RIGHT = "g" * LETTERS
_SHOWN = re.compile(r"((?:[a-z] ){4}[a-z])\n((?:[gy-] ){4}[gy-])\n")


def marks_of(guess: str, answer: str) -> str:
    """`g` where the letter is in place, `y` where it is elsewhere, `-` where the answer has no more of it.

    A letter is marked as often as the answer has it: those in place first, then from left to right.
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


def agreeing(words: Iterable[str], guess: str, marks: str) -> tuple[str, ...]:
    """The words that would have given these marks."""
    return tuple(word for word in words if marks_of(guess, word) == marks)


def guess_in(text: str) -> str | None:
    """The guess that a message makes: what its last `<guess>…</guess>` holds, or else all of it.

    White space, case and a full stop do not matter; what is then not five letters from a to z is no guess.
    """
    marked = tagged(text, "guess")
    word = (text if marked is None else marked).strip().removesuffix(".")
    return word.lower() if len(word) == LETTERS and word.isascii() and word.isalpha() else None


def shown(guess: str, marks: str) -> str:
    """A guess and its marks, a letter apart, so that a tokenizer sees each one."""
    return f"{' '.join(guess)}\n{' '.join(marks)}\n"


def marks_shown(text: str) -> tuple[str, str] | None:
    """The guess and the marks that a reply of the game shows; `None` when it shows none."""
    found = _SHOWN.match(text)
    return None if found is None else (found[1].replace(" ", ""), found[2].replace(" ", ""))
