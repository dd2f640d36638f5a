"""Whether an answer is the expected one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import cases
from tools.errors import RewardError
from turnwise.rewards import exact_match, numeric_match

NEARLY_NUMBERS = st.text(alphabet="0123456789+-.,eE% \N{MINUS SIGN}\ud800") | st.text()


@given(NEARLY_NUMBERS)
def test_no_answer_raises(text):
    exact_match(text, "Paris"), numeric_match(text, 1)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_number_matches_its_own_text(number):
    assert numeric_match(repr(number), number, rel_tol=0)


@cases(
    ("answer", "expected"),
    [("  the\n Seine", True), ("The Seine.", False), ("Seine", False), ("", False), (None, False)],
    ids=["space_and_capitals", "full_stop", "other", "empty", "none"],
)
def test_texts_match_but_for_capitals_and_space(answer, expected):
    assert exact_match(answer, "The  Seine") is expected


@cases(
    ("answer", "expected"),
    [
        ("1234567", True),
        (" 1,234,567 ", True),
        ("+1234567.0", True),
        ("1.234567e6", True),
        ("123456700%", True),
        ("1,234567", False),
        ("12,34,567", False),
        ("1234567 km", False),
        ("$1234567", False),
        ("x = 1234567", False),
        ("1_234_567", False),
        ("١٢٣٤٥٦٧", False),
        ("nan", False),
        ("inf", False),
        ("1e999", False),
        ("1e9999999999", False),
        ("", False),
        (None, False),
    ],
)
def test_a_number_is_all_of_the_answer(answer, expected):
    assert numeric_match(answer, 1234567) is expected


@cases(
    ("answer", "expected", "tolerances", "right"),
    [
        ("101", 100, {"rel_tol": 0.01}, True),
        ("101.1", 100, {"rel_tol": 0.01}, False),
        ("-0.5", 0, {"abs_tol": 0.5}, True),
        ("0.1", 0, {}, False),
        ("0.333", 1 / 3, {"abs_tol": 1e-3}, True),
        ("9007199254740993", 9007199254740992, {"rel_tol": 0}, False),
        ("\N{MINUS SIGN}3", -3, {}, True),
        ("0.5", "50%", {}, True),
    ],
    ids=["relative", "beyond", "absolute", "zero", "third", "large_integer", "minus_sign", "percent"],
)
def test_a_number_is_as_near_as_it_must_be(answer, expected, tolerances, right):
    assert numeric_match(answer, expected, **tolerances) is right


@pytest.mark.parametrize("expected", ["many", math.nan, math.inf, True], ids=str)
def test_an_expected_number_that_is_none_is_the_authors_error(expected):
    with pytest.raises(RewardError, match=f"expected number is {expected!r}"):
        numeric_match("1", expected)


@pytest.mark.parametrize("tolerance", [-1.0, math.nan, math.inf], ids=str)
def test_a_tolerance_is_finite_and_not_negative(tolerance):
    with pytest.raises(RewardError, match="tolerance"):
        numeric_match("1", 1, rel_tol=tolerance)
