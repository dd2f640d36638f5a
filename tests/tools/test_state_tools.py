"""Methods of a state as tools."""

from dataclasses import dataclass, field
from functools import wraps
from typing import Any, cast

import pytest

from tests.tables import cases
from tools.calls import State, ToolContext
from tools.errors import ConfigError
from tools.registry import Tool, Toolset, tool
from tools.sandbox.base import Sandbox
from tools.toolsets import refuse_state, toolset_of


@dataclass
class BookShop(State):
    stock: dict[str, int] = field(default_factory=dict[str, int])

    @tool
    def look(self, title: str) -> int:
        """Look a title up.

        Args:
            title: Of a book.
        """
        return self.stock.get(title, 0)

    @tool(name="purchase")
    async def buy(self, title: str, ctx: ToolContext) -> str:
        """Buy a book."""
        return title

    def restock(self, title: str) -> None:
        self.stock[title] = 10


@dataclass
class LargeShop(BookShop):
    @tool
    def order(self, title: str) -> str:
        """Order a book."""
        return title


class OtherShop(BookShop):
    @tool
    async def look(self, title: str, shelf: int) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Look on a shelf."""
        return f"{self.stock} {shelf}"


def names(toolset: Toolset) -> list[str]:
    return [spec.name for spec in toolset.specs]


def test_the_methods_that_are_marked_are_a_toolset_of_the_classes_name():
    toolset = toolset_of(BookShop)
    assert (toolset.name, names(toolset)) == ("book_shop", ["look", "purchase"])


def test_the_state_itself_is_not_in_the_schema():
    assert [list(spec.parameters["properties"]) for spec in toolset_of(BookShop).specs] == [["title"]] * 2


def test_a_subclass_inherits_tools_that_take_it():
    toolset = toolset_of(LargeShop)
    assert names(toolset) == ["look", "purchase", "order"]
    assert {tool.states for tool in toolset.tools} == {(LargeShop,)}


def test_a_subclass_overrides_a_tool_in_its_place():
    toolset = toolset_of(OtherShop)
    assert names(toolset) == ["look", "purchase"]
    assert list(toolset.specs[0].parameters["properties"]) == ["title", "shelf"]


def test_a_method_that_is_a_tool_is_still_a_method():
    shop = BookShop()
    shop.restock("Emma")
    assert shop.look("Emma") == shop.look(title="Emma") == 10


def test_a_dataclass_with_slots_keeps_its_tools():
    @dataclass(slots=True)
    class Slotted(State):
        count: int = 0

        @tool
        def add(self, n: int) -> int:
            """Add."""
            self.count += n
            return self.count

    assert (names(toolset_of(Slotted)), Slotted().add(2)) == (["add"], 2)


def class_with(name: str, value: Any, base: type = BookShop) -> type[State]:
    return type("Made", (base,), {name: value})


def unmarked(self: Any, title: str) -> str:
    """Look."""
    return title


@tool
def plain(n: int) -> int:
    """Double."""
    return 2 * n


def wrapped(function: Any) -> Any:
    return wraps(function)(lambda *args: function(*args))


@cases(
    ("state", "message"),
    [
        (class_with("other", 1, State), "class Made in tools has no method that is marked with @tool"),
        (class_with("look", unmarked), "Made.look takes the place of a tool; mark it with @tool, too"),
        (class_with("twice", staticmethod(plain)), "Made.twice has another decorator above @tool"),
        (class_with("twice", classmethod(plain)), "Made.twice has another decorator above @tool"),
        (class_with("twice", property(cast("Any", plain))), "Made.twice has another decorator above @tool"),
        (class_with("twice", wrapped(plain)), "Made.twice has another decorator above @tool"),
        (class_with("purchase", BookShop.look), "more than one tool called look"),
    ],
    ids=["no tools", "unmarked", "static", "of class", "property", "wrapped", "one name twice"],
)
def test_a_class_that_cannot_be_listed_says_why(state: type[State], message: str):
    with pytest.raises(ConfigError, match=message):
        toolset_of(state)


def test_a_method_of_no_state_is_refused():
    class Plain:
        @tool
        def look(self, title: str) -> str:
            """Look."""
            return title

    with pytest.raises(ConfigError, match="look takes `self`, and is not a method of a State"):
        Toolset("plain", (Plain.look,))


@tool
def order(shop: LargeShop, sandbox: Sandbox) -> str:
    """Order."""
    return ""


@pytest.mark.parametrize(
    ("tools", "state", "message"),
    [
        (toolset_of(BookShop).tools, int, "tool 'look' takes BookShop, and prepare gave int"),
        ((order,), BookShop, "tool 'order' takes LargeShop, and prepare gave BookShop"),
        (toolset_of(BookShop).tools, OtherShop, "OtherShop, which overrides 'look'; list OtherShop in tools"),
    ],
    ids=["no state", "too general", "overriding"],
)
def test_another_state_than_the_tools_take_is_refused(tools: tuple[Tool, ...], state: type, message: str):
    with pytest.raises(ConfigError, match=message):
        refuse_state(Toolset("t", tools), state, "prepare gave")


@pytest.mark.parametrize("state", [BookShop, LargeShop])
def test_a_subclass_that_only_adds_is_a_state_of_the_tools(state: type):
    refuse_state(toolset_of(BookShop), state, "prepare gave")
