"""The format of a text, and what stands in its marked places."""

from hypothesis import given
from hypothesis import strategies as st

from tests.tables import cases
from turnwise import boxed, code_block, has_tags, has_text, tagged

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
    ids=["letter", "empty", "none", "space", "invisible", "point"],
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
    ids=[
        "right",
        "space",
        "order",
        "missing",
        "between",
        "after",
        "nested",
        "mixed",
        "twice",
        "open",
        "none",
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
    ids=["one", "last", "unclosed", "reopened", "reversed", "bare", "none"],
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
    ids=["one", "last", "unclosed", "longer", "tildes", "crlf", "inline", "empty", "bare", "none"],
)
def test_a_code_block_is_the_last_that_is_closed(text, expected):
    assert code_block(text) == expected


def test_a_code_block_of_a_language_is_the_last_that_names_it():
    assert code_block("```Python title=a\n1\n```\n```text\n2\n```", "python") == "1"
