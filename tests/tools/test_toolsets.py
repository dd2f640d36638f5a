import itertools
from typing import Any

import pytest

from tests.tables import cases
from tools.calls import State
from tools.errors import ConfigError
from tools.files import file
from tools.registry import Toolset, tool
from tools.sandbox.base import Sandbox
from tools.terminal import terminal
from tools.toolsets import select_tools, select_toolsets


@tool
async def count(sandbox: Sandbox) -> str:
    """Count."""
    return "1"


class Counter(State):
    @tool
    def up(self) -> int:
        """Count up."""
        return 1


OWN = Toolset("own", (count,))
LISTED = (OWN, Counter)


def names(toolset: Toolset) -> list[str]:
    return [spec.name for spec in toolset.specs]


SELECTED = {
    "a bare tool": ([count, terminal], ["count"], ["count"]),
    "a shipped one": ([OWN], ["file", "own"], [*names(file), "count"]),
    "an own one of a shipped name": ([Toolset("terminal", (count,))], ["terminal"], ["count"]),
    "a state": ([Counter, OWN], None, ["up", "count"]),
    "no state": ([Counter, OWN], ["own"], ["count"]),
}


@cases("listed, enabled, left", SELECTED.values(), ids=SELECTED)
def test_an_environment_gets_what_it_lists_and_its_settings_enable(listed, enabled, left):
    assert names(select_toolsets(listed, enabled=enabled)) == left


@cases(
    "listed, enabled, problem",
    [
        ([OWN], ["web"], r"no toolset 'web'; choose from \['file', 'own', 'python', 'terminal'\]"),
        ([OWN, Toolset("own")], None, "two toolsets called 'own'"),
        ([Counter, type("Counter", (Counter,), {})], None, "two toolsets called 'counter'"),
    ],
    ids=["unknown", "twice", "two states"],
)
def test_what_cannot_be_selected_says_why(listed, enabled, problem):
    with pytest.raises(ConfigError, match=problem):
        select_toolsets(listed, enabled=enabled)


@pytest.mark.parametrize("wrong", [terminal, [terminal, "file"], None], ids=["bare", "name", "none"])
def test_tools_that_are_no_tuple_of_toolsets_are_refused(wrong: Any):
    with pytest.raises(
        ConfigError,
        match=r"a tuple of toolsets, `\(terminal,\)`, of functions with @tool, or of State classes, got ",
    ):
        select_toolsets(wrong)


@cases(
    ("given", "left"),
    [
        (None, ["count", "up"]),
        (["up"], ["up"]),
        (("up", "count", "up"), ["count", "up"]),
        ({"count"}, ["count"]),
        ([], []),
    ],
    ids=["none", "one", "twice", "set", "nothing"],
)
def test_a_rollout_gets_the_tools_that_are_named_in_their_own_order(given: Any, left: list[str]):
    assert names(select_tools(select_toolsets(LISTED), given, LISTED, "tools_for")) == left


def test_a_tool_that_the_settings_took_away_stays_away():
    selected = select_toolsets(LISTED, enabled=["counter"])
    assert names(select_tools(selected, ["count", "up"], LISTED, "tools_for")) == ["up"]


@cases(
    ("given", "message"),
    [
        (["up", "down"], "tools_for gave 'down', which is none of the tools: count, up"),
        ([count], "which is none of the tools: count, up"),
        (["own"], "tools_for gave 'own', which is none of the tools"),
        ("up", "tools_for gave 'up'; give a list of names of tools, or None for all of them"),
        (3, "tools_for gave 3; give a list of names"),
        (itertools.repeat("up"), r"tools_for gave repeat\('up'\); give a list of names"),
    ],
    ids=["unknown", "tool itself", "toolset", "text", "number", "without an end"],
)
def test_names_of_no_tool_are_refused_with_those_there_are(given: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        select_tools(select_toolsets(LISTED), given, LISTED, "tools_for")
