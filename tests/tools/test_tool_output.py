import enum
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.tables import cases
from tools.errors import ConfigError, ToolError
from tools.registry import ToolOutput, limit_length, output_of


@dataclass
class Point:
    x: int
    y: float


class Offer(BaseModel):
    name: str
    price: Decimal


class Colour(enum.Enum):
    RED = "red"


@cases(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (None, "null"),
        (True, "true"),
        (3, "3"),
        (2**70, "1180591620717411303424"),
        (0.5, "0.5"),
        (float("nan"), "NaN"),
        ([1, "é"], '[1, "é"]'),
        ((1, 2), "[1, 2]"),
        ({"a": {1: None}}, '{"a": {"1": null}}'),
        (Point(1, 0.5), '{"x": 1, "y": 0.5}'),
        ([Offer(name="tea", price=Decimal("1.50"))], '[{"name": "tea", "price": "1.50"}]'),
        ({"on": date(2024, 2, 3), "is": Colour.RED}, '{"on": "2024-02-03", "is": "red"}'),
        ("\ud800", "\ud800"),
        ({"agent": "\ud800"}, '{"agent": "\ud800"}'),
    ],
    ids=str,
)
def test_text_is_shown_as_it_is_and_any_other_value_as_json(value: Any, text: str):
    assert output_of(value, "shown").content == text


@cases(
    "value",
    [object(), b"text", {"a": b"text"}, {(1, 2): 3}, int, (n for n in [1]), iter([1])],
    ids=["object", "bytes", "bytes within", "tuple as key", "class", "generator", "iterator"],
)
def test_what_json_cannot_hold_is_a_bug_of_the_tool(value: Any):
    with pytest.raises(
        ConfigError, match=r"^tool 'odd' returned \w+, which is not JSON \(.*\); return str, "
    ):
        output_of(value, "odd")


@pytest.mark.parametrize("value", [10**5000, {"n": [10**5000]}], ids=["alone", "within"])
def test_a_number_that_cannot_be_written_is_told_to_the_model(value: Any):
    with pytest.raises(ToolError, match="too long to be written"):
        output_of(value, "power")


def test_an_output_whose_content_is_no_text_is_a_bug_of_the_tool():
    with pytest.raises(ConfigError, match="tool 'odd': a ToolOutput's content is text, got 3"):
        output_of(ToolOutput(content=3), "odd")  # pyright: ignore[reportArgumentType]


@given(st.text(max_size=2000), st.integers(min_value=0, max_value=300))
def test_bounded_text_is_never_longer_than_asked(text: str, max_chars: int):
    assert len(limit_length(text, max_chars)) <= max_chars


def test_the_note_counts_the_cut_characters():
    kept = limit_length("#" * 5000, 300)
    assert f"[... {5000 - kept.count('#')} of 5000 characters cut ...]" in kept


def test_text_that_is_not_unicode_is_made_writable():
    assert limit_length("a\udcffb", 10).encode() == b"a?b"
