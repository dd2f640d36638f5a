"""None"""

from hypothesis import given
from hypothesis import strategies as st

from environments.shipped.word_guess.game import (
    WORDS,
    format_marks,
    marks_of,
    parse_guess,
    parse_marks,
)
from tests.tables import cases

WORD = st.text(alphabet="abcde", min_size=5, max_size=5)


@cases(
    ("guess", "answer", "marks"),
    [
        ("crane", "crane", "ggggg"),
        ("crane", "moist", "-----"),
        ("abcde", "eabcd", "yyyyy"),
        ("speed", "abide", "--y-y"),  # one e: the first one has it
        ("speed", "erase", "y-yy-"),  # two e, and the s
        ("speed", "steal", "g-g--"),  # the e in place leaves none for the other
        ("allow", "llama", "ygy--"),
        ("geese", "eagle", "yy--g"),
        ("eerie", "where", "y-y-g"),
        ("mamma", "maxim", "ggy--"),
        ("aabbb", "bbaac", "yyyy-"),
    ],
)
def test_marks_are_those_of_the_game(guess: str, answer: str, marks: str):
    assert marks_of(guess, answer) == marks


@given(WORD, WORD)
def test_a_letter_is_marked_as_often_as_both_words_have_it(guess: str, answer: str):
    marks = marks_of(guess, answer)
    for letter in set(guess):
        marked = sum(mark != "-" for own, mark in zip(guess, marks, strict=True) if own == letter)
        assert marked == min(guess.count(letter), answer.count(letter))


@given(st.sampled_from(WORDS), st.sampled_from(WORDS))
def test_marks_are_read_back_as_they_are_shown(guess: str, answer: str):
    marks = marks_of(guess, answer)
    assert parse_marks(f"{format_marks(guess, marks)}Guesses left: 3.") == (guess, marks)


@cases(
    ("text", "guess"),
    [
        ("crane", "crane"),
        ("  Crane.\n", "crane"),
        ("I think.\n<guess>CRANE</guess>", "crane"),
        ("<guess>crane</guess> or <guess> slate </guess>, the latter", "slate"),
        ("crane</guess>", None),
        ("<guess>crane", None),
        ("crane slate", None),
        ("cranes", None),
        ("cr4ne", None),
        ("\u212aayak", None),  # the Kelvin sign, which is a k in lower case
        ("cr\ud800ne", None),
        ("", None),
    ],
    ids=ascii,
)
def test_a_guess_is_what_the_last_tags_hold_or_all_of_a_message(text: str, guess: str | None):
    assert parse_guess(text) == guess


def test_the_embedded_words_are_five_letters_and_each_is_there_once():
    assert [word for word in WORDS if parse_guess(word) != word] == []
    assert len(set(WORDS)) == len(WORDS) >= 300
