from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from tests.tables import cases
from tools.errors import ConfigError
from tools.sandbox.base import Sandbox
from tools.signature import ArgumentsRefused, Signature


class Point(BaseModel):
    x: int
    title: str = "origin"


async def everything(
    sandbox: Sandbox,
    text: Annotated[str, Field(description="Said by Field.", examples=["a"])],
    count: int,
    ratio: float = 0.5,
    strict: bool = False,
    mode: Literal["fast", "slow"] = "fast",
    names: list[str] = [],  # noqa: B006  # pydantic copies it
    limit: int | None = None,
    copy: int | str = 0,
) -> str:
    """Do it all.

    More for the model.

    Args:
        text: Said by Args.
        count: How many.

    Returns:
        Nothing for the model.
    """
    return text


SIGNATURE = Signature.of(everything)


def refusal(text: str, signature: Signature = SIGNATURE) -> ArgumentsRefused:
    with pytest.raises(ArgumentsRefused) as caught:
        signature.parse(text)
    return caught.value


def test_the_description_ends_before_the_first_section():
    assert SIGNATURE.description == "Do it all.\n\nMore for the model."


def test_the_schema_is_what_the_model_may_write():
    properties = SIGNATURE.schema["properties"]
    assert "sandbox" not in properties
    assert SIGNATURE.schema["additionalProperties"] is False
    assert SIGNATURE.schema["required"] == ["text", "count"]
    of_the_field = {"description": "Said by Field.", "examples": ["a"], "type": "string"}
    assert properties["text"] == of_the_field
    assert properties["count"] == {"description": "How many.", "type": "integer"}
    assert properties["limit"] == {"type": "integer"}


def test_no_title_that_pydantic_made_up_is_left():
    async def draw(sandbox: Sandbox, title: str, at: Point) -> str:
        """Draw."""
        return title

    schema = Signature.of(draw).schema
    assert set(schema) == {"$defs", "additionalProperties", "properties", "required", "type"}
    assert schema["properties"]["title"] == {"type": "string"}
    assert schema["$defs"]["Point"]["properties"]["x"] == {"type": "integer"}
    assert "title" in schema["$defs"]["Point"]["properties"]


def test_defaults_are_filled_in():
    assert SIGNATURE.parse('{"text": "t", "count": 1}') == {
        "text": "t",
        "count": 1,
        "ratio": 0.5,
        "strict": False,
        "mode": "fast",
        "names": [],
        "limit": None,
        "copy": 0,
    }


@cases(
    ("slip", "name", "meant"),
    [
        ('"count": 3.0', "count", 3),
        ('"count": "3"', "count", 3),
        ('"count": 1, "ratio": "0.25"', "ratio", 0.25),
        ('"count": 1, "ratio": 2', "ratio", 2.0),
        ('"count": 1, "strict": "true"', "strict", True),
        ('"count": 1, "strict": null', "strict", False),
        ('"count": 1, "limit": null', "limit", None),
        ('"count": 1, "limit": "7"', "limit", 7),
        ('"count": 1, "copy": "7"', "copy", "7"),
    ],
)
def test_a_slip_whose_meaning_is_plain_is_mended(slip: str, name: str, meant: object):
    value = SIGNATURE.parse(f'{{"text": "t", {slip}}}')[name]
    assert (value, type(value)) == (meant, type(meant))


@cases(
    "wrong",
    [
        '"count": true',
        '"count": 2.5',
        '"count": "three"',
        '"count": null',
        '"count": "true"',
        '"count": 1, "text": 5',
        '"count": 1, "strict": 1',
        '"count": 1, "strict": "yes"',
        '"count": 1, "names": "a"',
        '"count": 1, "names": [1]',
        '"count": 1, "mode": "Fast"',
        '"count": 1, "ratio": "NaN"',
        '"count": 1, "extra": 1',
    ],
)
def test_a_value_of_another_type_is_refused(wrong: str):
    text = wrong if '"text"' in wrong else f'"text": "t", {wrong}'
    assert refusal(f"{{{text}}}").kind == "invalid_arguments"


@cases(
    "text",
    [
        "{",
        "[]",
        '"{}"',
        "null",
        "NaN",
        '{"text": "t", "count": 1} extra',
        '{"text": "t", "count": 1, "count": 2}',
        '{"text": "t", "count": 1, "ratio": NaN}',
        '{"text": "t", "count": 1, "ratio": -Infinity}',
        '{"text": "t", "count": 1, "ratio": 1e999}',
        '{"text": "\\ud800", "count": 1}',
        '{"text": "t", "count": 1' + "0" * 5000 + "}",
        "[" * 5_000,
    ],
)
def test_text_that_is_not_one_json_object_is_refused(text: str):
    assert refusal(text).kind == "invalid_json"


def test_a_refusal_names_every_problem_and_what_exists():
    message = str(refusal('{"text": 1, "nr": 2}'))
    assert message.startswith(
        "`text`: input should be a valid string, got 1; `count` is missing; `nr` is not a parameter. "
        "Parameters: text: string (required), count: integer (required), ratio: number (optional), "
    )
    assert 'mode: one of "fast", "slow" (optional), names: array of string (optional)' in message


def test_a_refusal_quotes_only_the_start_of_a_long_value():
    assert len(str(refusal(f'{{"text": "t", "count": "{"x" * 9000}"}}'))) < 600


def test_no_arguments_may_be_written_as_nothing():
    async def now(sandbox: Sandbox) -> str:
        """Tell the time."""
        return ""

    assert Signature.of(now).parse("") == {}


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(repr))
def test_any_text_is_parsed_or_refused(text: str):
    try:
        values = SIGNATURE.parse(text)
    except ArgumentsRefused as refused:
        values = refused.kind
    assert values in ("invalid_json", "invalid_arguments") or isinstance(values, dict)


def definition_error(function: object) -> str:
    with pytest.raises(ConfigError) as caught:
        Signature.of(function)  # pyright: ignore[reportArgumentType]  # wrong on purpose
    return str(caught.value)


async def yields(sandbox: Sandbox) -> str:
    """Say."""
    yield ""


async def untyped(sandbox: Sandbox, a, b: int):  # pyright: ignore
    """Say."""


async def silent(sandbox: Sandbox) -> str:
    return ""


async def many(sandbox: Sandbox, *paths: str) -> str:
    """Say."""


async def renamed(sandbox: Sandbox, path: str) -> str:
    """Say.

    Args:
        file: The old name.
    """


@cases(
    "function, problem",
    [
        (yields, "tool 'yields': a tool returns its result, and has no `yield`"),
        (untyped, "['a', 'return']"),
        (silent, "no docstring"),
        (many, "`*paths: str` cannot be in a schema"),
        (renamed, "['file']"),
    ],
    ids=["yields", "untyped", "silent", "many", "renamed"],
)
def test_a_function_that_is_no_tool_says_why(function, problem):
    assert problem in definition_error(function)


@pytest.mark.parametrize("kind", [type("Opaque", (), {}), complex.__mul__.__class__])
def test_a_type_without_json_schema_is_refused(kind: type):
    async def odd(sandbox: Sandbox, value: int) -> str:
        """Say."""
        return ""

    odd.__annotations__["value"] = kind
    assert "JSON schema" in definition_error(odd)
