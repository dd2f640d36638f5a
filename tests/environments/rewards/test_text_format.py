"""The format of a text, and what stands in its marked places."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import cases
from tools.errors import RewardError
from turnwise.rewards import boxed, code_block, exact_match, has_tags, has_text, numeric_match, tagged

MARKUP = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "<answer>",
            "</answer>",
            "\\boxed{",
            "{",
            "}",
            "\\{",
            "\\",
            "```",
            "~~~",
            "\n",
            " ",
        ]
    )
    | st.text(max_size=3)
    | st.just("\ud800")
).map("".join)


@given(MARKUP)
def test_no_text_raises(text):
    has_text(text), has_tags(text, "think", "answer"), tagged(text, "answer"), boxed(text), code_block(text)


@cases(
    ("text", "expected"),
    [("a", True), ("", False), (None, False), (" \n\t", False), ("\u200b\ufeff", False), (" . ", True)],
)
def test_a_text_is_there_when_something_can_be_seen(text, expected):
    assert has_text(text) is expected


@cases(
    ("text", "expected"),
    [
        ("<think>a</think><answer>b</answer>", True),
        (" <think>a\n</think>\n\n<answer></answer>\n", True),
        ("<answer>b</answer><think>a</think>", False),
        ("<think>a</think>", False),
        ("<think>a</think> so <answer>b</answer>", False),
        ("<think>a</think><answer>b</answer>!", False),
        ("<think>a<think>b</think></think><answer>c</answer>", False),
        ("<think>a<answer>b</think><answer>c</answer>", False),
        ("<think>a</think><answer>b</answer><answer>c</answer>", False),
        ("<think>a</think><answer>b", False),
        (None, False),
    ],
)
def test_tags_are_kept_when_each_stands_once_and_in_order(text, expected):
    assert has_tags(text, "think", "answer") is expected


@cases(
    ("text", "expected"),
    [
        ("<answer> 4 </answer>", "4"),
        ("<answer>3</answer><answer>4</answer>", "4"),
        ("<answer>3</answer><answer>4", "3"),
        ("<answer>a<answer>4</answer>", "4"),
        ("</answer>4<answer>", None),
        ("4", None),
        (None, None),
    ],
)
def test_tagged_is_the_last_that_is_closed(text, expected):
    assert tagged(text, "answer") == expected


@cases(
    ("text", "expected"),
    [
        (r"\boxed{5}", "5"),
        (r"so $\boxed{ \frac{1}{2} }$.", r"\frac{1}{2}"),
        (r"\boxed{3}, no: \boxed{4}", "4"),
        (r"\boxed{3}, no: \boxed{4", "3"),
        (r"{ \boxed{5} }}}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a \boxed{b}}", r"a \boxed{b}"),
        (r"\boxed {5}", "5"),
        (r"\\\boxed{5}", "5"),
        (r"\boxed{}", ""),
        ("boxed{5}", None),
        (r"\boxed{5", None),
        (None, None),
    ],
    ids=[
        "plain", "nested", "last", "unclosed_last", "stray", "escaped", "boxes", "space", "newline", "empty",
        "no_command", "unclosed", "none",
    ],
)  # fmt: skip
def test_boxed_is_the_last_that_is_closed(text, expected):
    assert boxed(text) == expected


@cases(
    ("text", "expected"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("a\n```\n1\n```\nb\n```\n2\n```\n", "2"),
        ("```\n1\n```\n```\n2", "1"),
        ("````\n```\n1\n```\n````", "```\n1\n```"),
        ("~~~\n```\n~~~", "```"),
        ("```py\r\nx\r\n```\r\n", "x"),
        ("```x```\n1\n```\n2\n```", "2"),
        ("```\n```", ""),
        ("x = 1", None),
        (None, None),
    ],
)
def test_a_code_block_is_the_last_that_is_closed(text, expected):
    assert code_block(text) == expected


def test_a_code_block_of_a_language_is_the_last_that_names_it():
    assert code_block("```Python title=a\n1\n```\n```text\n2\n```", "python") == "1"


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
)
def test_a_number_is_as_near_as_it_must_be(answer, expected, tolerances, right):
    assert numeric_match(answer, expected, **tolerances) is right


@cases("expected", ["many", math.nan, math.inf, True], ids=str)
def test_an_expected_number_that_is_none_is_the_authors_error(expected):
    with pytest.raises(RewardError, match=f"expected number is {expected!r}"):
        numeric_match("1", expected)


@cases("tolerance", [-1.0, math.nan, math.inf], ids=str)
def test_a_tolerance_is_finite_and_not_negative(tolerance):
    with pytest.raises(RewardError, match="tolerance"):
        numeric_match("1", 1, rel_tol=tolerance)
