"""What a rollout fills in, and what is left for the model."""

from typing import Annotated, Any

import pytest

from tests.tables import cases
from tools.calls import State, ToolContext
from tools.errors import ConfigError
from tools.registry import Tool, tool
from tools.sandbox.base import Sandbox


class Shop(State):
    """A state."""


class Market(Shop):
    """A special one."""


class Unrelated:
    """None."""


def schema_names(made: Tool) -> list[str]:
    return list(made.spec.parameters["properties"])


def test_what_is_injected_stands_anywhere_and_is_not_in_the_schema():
    @tool
    async def buy(what: str, shop: Shop, count: int = 1, *, ctx: ToolContext, sandbox: Sandbox) -> str:
        """Buy."""
        return what

    assert schema_names(buy) == ["what", "count"]
    assert buy.signature.injected == {"shop": Shop, "ctx": ToolContext, "sandbox": Sandbox}


def test_annotations_may_be_text():
    @tool
    def buy(shop: "Market", what: "str", ctx: "ToolContext") -> "str":
        """Buy."""
        return what

    assert (schema_names(buy), buy.states) == (["what"], (Market,))


def test_a_name_alone_injects_nothing():
    @tool
    def look(sandbox: str, state: int, context: bool) -> str:
        """Look."""
        return sandbox

    assert (schema_names(look), look.needs_sandbox) == (["sandbox", "state", "context"], False)


def refused(annotation: Any) -> str:
    def wrong(shop, count: int = 0) -> str:  # pyright: ignore
        """Do."""
        return ""

    wrong.__annotations__["shop"] = annotation
    with pytest.raises(ConfigError) as caught:
        tool(wrong)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@cases(
    "annotation",
    [Shop | None, "Shop | None", list[Shop], dict[str, list[Shop]], Annotated[Shop, "a shop"]],
    ids=["or nothing", "or nothing, as text", "list", "deep", "annotated"],
)
def test_a_state_inside_of_another_type_is_refused_with_what_to_write(annotation: Any):
    message = "tool 'wrong': `shop` takes Shop inside of another type; it is always given, write `shop: Shop`"
    assert refused(annotation) == message


def test_a_class_that_is_no_state_is_refused_with_what_is_injected():
    assert refused(Unrelated).endswith(
        "a rollout gives what is annotated Sandbox, ToolContext or with a subclass of State"
    )


@pytest.mark.parametrize("annotation", ["Nowhere", "1 / 0", "Shop["], ids=["unknown", "raises", "syntax"])
def test_an_annotation_that_cannot_be_read_is_told(annotation: str):
    assert "an annotation cannot be read" in refused(annotation)


def test_the_docstring_describes_nothing_that_no_model_sees():
    def buy(shop: Shop, what: str) -> str:
        """Buy.

        Args:
            shop: Where.
            what: A thing.
        """
        return what

    with pytest.raises(ConfigError, match=r"the docstring describes \['shop'\], which no model sees"):
        tool(buy)
