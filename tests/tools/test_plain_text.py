"""Text as a terminal and as a file can hold it."""

import pytest

from tools.plain_text import is_utf8, printable


def test_what_would_steer_a_terminal_is_replaced_and_other_letters_stay():
    assert printable("é\x1b[31m\n😀") == "é [31m 😀"
    assert printable("a\x00b", "?") == "a?b"


@pytest.mark.parametrize(("text", "has_it"), [("é😀\0", True), ("half \ud800", False)])
def test_half_of_a_surrogate_pair_is_no_utf_8(text, has_it):
    assert is_utf8(text) is has_it
