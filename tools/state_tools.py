"""Tools that are methods of a rollout's state, and whether a rollout has the state that its tools take."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tools.errors import ConfigError
from tools.injection import SELF
from tools.registry import Tool, Toolset
from tools.tool_context import State

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@lru_cache(maxsize=1024)
def toolset_of(state: type[State]) -> Toolset:
    """The methods of a state that are tools, inherited ones first; `ShopState` is the toolset `shop_state`.

    Raises:
        ConfigError: it has none, or one of them cannot be called for a rollout.
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
    """Raise ConfigError where a tool takes another state than `giver` gives."""
    for tool in toolset.tools:
        if wrong := next((kind for kind in tool.states if not issubclass(state, kind)), None):
            raise ConfigError(f"tool {tool.name!r} takes {wrong.__name__}, and {giver} {state.__name__}")
        if SELF in tool.signature.injected and tool.function not in _functions(state):
            raise ConfigError(
                f"{giver} {state.__name__}, which overrides {tool.name!r}; list {state.__name__} in tools"
            )


def _functions(state: type[State]) -> list[Callable[..., Any]]:
    return [tool.function for tool in toolset_of(state).tools]


def _is_tool(owner: type, name: str, value: object) -> bool:
    if any(isinstance(getattr(value, inner, None), Tool) for inner in ("__func__", "__wrapped__", "fget")):
        raise ConfigError(
            f"{owner.__name__}.{name} has another decorator above @tool; write @tool first, on a method "
            f"with `self`"
        )
    return isinstance(value, Tool)
