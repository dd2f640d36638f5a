"""Selection of a rollout's tools from own, shipped and MCP toolsets."""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from tools.calls import State
from tools.errors import ConfigError
from tools.files import file
from tools.mcp.mcp_toolset import MCPToolset
from tools.python import python
from tools.registry import Tool, Toolset
from tools.signature import SELF, is_state, state_class
from tools.terminal import terminal

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@lru_cache(maxsize=1024)
def toolset_of(state: type[State]) -> Toolset:
    """Return a State's tool methods, inherited ones first; `ShopState` becomes toolset `shop_state`.

    Raises:
        ConfigError: if it has none, or one cannot be called in a rollout.
    """
    tools = {
        name: getattr(state, name)
        for owner in reversed(state.__mro__)
        for name, value in vars(owner).items()
        if _is_tool(owner, name, value)
    }
    for name, tool in tools.items():
        if not isinstance(tool, Tool):
            raise ConfigError(f"{state.__name__}.{name} takes the place of a tool; mark it with @tool, too")
    if not tools:
        raise ConfigError(f"class {state.__name__} in tools has no method that is marked with @tool")
    return Toolset(_WORD.sub("_", state.__name__).lower(), tuple(tools.values()))


def refuse_state(toolset: Toolset, state: type[Any], giver: str) -> None:
    for tool in toolset.tools:
        if wrong := next((kind for kind in tool.states if not issubclass(state, kind)), None):
            raise ConfigError(f"tool {tool.name!r} takes {wrong.__name__}, and {giver} {state.__name__}")
        if SELF in tool.signature.injected and tool.function not in [
            own.function for own in toolset_of(state).tools
        ]:
            raise ConfigError(
                f"{giver} {state.__name__}, which overrides {tool.name!r}; list {state.__name__} in tools"
            )


def _is_tool(owner: type, name: str, value: object) -> bool:
    if any(isinstance(getattr(value, inner, None), Tool) for inner in ("__func__", "__wrapped__", "fget")):
        raise ConfigError(
            f"{owner.__name__}.{name} has another decorator above @tool; write @tool first, on a method "
            f"with `self`"
        )
    return isinstance(value, Tool)


_SHOWN = 200

SHIPPED: Mapping[str, Toolset] = {toolset.name: toolset for toolset in (terminal, file, python)}
"""Toolsets that any environment can enable by name."""
ToolSource = Toolset | Tool | type[State] | MCPToolset
"""An entry of an environment's `tools`."""


def select_toolsets(
    own: Sequence[ToolSource],
    enabled: Sequence[str] | None = None,
    listed: Mapping[str, Toolset] | None = None,
) -> Toolset:
    """Merge the enabled toolsets (None: all own ones); own ones precede shipped ones of the same name.

    `listed` has the tools of MCP servers by toolset; servers that are missing have no tools yet.

    Raises:
        ConfigError: if a name is unknown, or two tools or toolsets share one.
    """
    named = _by_name(own)
    known = {**SHIPPED, **named, **(listed or {})}
    wanted = list(named) if enabled is None else list(dict.fromkeys(enabled))
    if unknown := sorted(set(wanted) - set(known)):
        raise ConfigError(f"no toolset {', '.join(map(repr, unknown))}; choose from {sorted(known)}")
    return Toolset.merged([known[name] for name in wanted])


def select_tools(toolset: Toolset, names: Any, own: Sequence[ToolSource], where: str) -> Toolset:
    """Return the tools of a toolset with these names, or all for None.

    `names` come from `tools_for` and cannot restore tools that the settings removed; `where` names their
    source.

    Raises:
        ConfigError: if `names` is not a list of tool names, or one is unknown.
    """
    if names is None:
        return toolset
    if not isinstance(names, list | tuple | set | frozenset):
        raise ConfigError(
            f"{where} gave {names!r:.200}; give a list of names of tools, or None for all of them"
        )
    wanted = list(cast("Collection[object]", names))
    known = {tool.name: None for each in (toolset, *_by_name(own).values()) for tool in each.tools}
    if unknown := [name for name in wanted if not isinstance(name, str) or name not in known]:
        raise ConfigError(
            f"{where} gave {', '.join(map(repr, unknown))[:_SHOWN]}, which is none of the tools: "
            f"{', '.join(known) or 'there are none'}"
        )
    return Toolset(toolset.name, tuple(tool for tool in toolset.tools if tool.name in wanted))


def _by_name(own: Sequence[ToolSource]) -> dict[str, Toolset]:
    if not isinstance(own, Sequence) or not all(  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
        isinstance(entry, Toolset | Tool | MCPToolset) or is_state(entry) for entry in own
    ):
        raise ConfigError(
            f"an environment's tools are a tuple of toolsets, `(terminal,)`, of functions with @tool, or of "
            f"State classes, got {own!r:.200}"
        )
    named: dict[str, Toolset] = {}
    for entry in own:
        if isinstance(entry, Tool):
            toolset = Toolset(entry.name, (entry,))
        elif isinstance(entry, MCPToolset):
            toolset = Toolset(entry.name)
        else:
            toolset = entry if isinstance(entry, Toolset) else toolset_of(state_class(entry) or entry)
        if toolset.name in named:
            raise ConfigError(f"the environment lists two toolsets called {toolset.name!r}")
        named[toolset.name] = toolset
    return named
