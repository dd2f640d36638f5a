"""Text as a terminal and as a file can hold it."""

import pytest

from tools.plain_text import REDACTED, decimals, hide, is_utf8, printable


def test_what_would_steer_a_terminal_is_replaced_and_other_letters_stay():
    assert printable("é\x1b[31m\n😀") == "é [31m 😀"
    assert printable("a\x00b", "?") == "a?b"


@pytest.mark.parametrize(("text", "has_it"), [("é😀\0", True), ("half \ud800", False)])
def test_half_of_a_surrogate_pair_is_no_utf_8(text, has_it):
    assert is_utf8(text) is has_it


def test_a_secret_within_another_leaves_nothing_of_the_longer_one():
    assert hide("key: ab-cd", ["ab", "ab-cd"]) == f"key: {REDACTED}"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "-"),
        (0.5, "0.500"),
        (1e-17, "0.000"),
        (2e-5, "2e-05"),
        (-2.5e99, "-2.5e+99"),
        (1234.5, "1234.500"),
    ],
)
def test_a_mean_that_decimals_cannot_show_has_digits(number, text):
    assert decimals(number) == text
