"""Which state `prepare` is annotated to give, and whether the tools of its environment take that one."""

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints

from tools.context import State
from tools.errors import ConfigError
from tools.injection import is_state
from tools.registry import Toolset
from tools.state_tools import refuse_state

_YIELDING = (Iterator, Generator, AsyncIterator, AsyncGenerator)


def refuse_other_states(toolset: Toolset, prepare: Callable[..., Any], env: str) -> None:
    """Raise ConfigError where a tool takes a state that `prepare` is not annotated to give."""
    wanted = next(((tool, state) for tool in toolset.tools for state in tool.states), None)
    if wanted is None:
        return
    tool, state = wanted
    given = _annotated_state(prepare, env)
    if given is None:
        raise ConfigError(
            f"environment {env!r}: tool {tool.name!r} takes {state.__name__}, and prepare is not annotated "
            f"to give it; write `def prepare(self, item, sandbox) -> {state.__name__}`, or "
            f"`-> Iterator[{state.__name__}]` with a yield"
        )
    refuse_state(toolset, given, f"environment {env!r}: prepare is annotated to give")


def _annotated_state(prepare: Callable[..., Any], env: str) -> type[State] | None:
    """The class of states after `->`, by itself or yielded; `None` for anything else."""
    function: Any = inspect.unwrap(prepare)
    text = getattr(function, "__annotations__", {}).get("return")
    # The other annotations may name what is imported for type checkers alone.
    only_return = SimpleNamespace(__annotations__={"return": text})
    try:
        hint = get_type_hints(only_return, getattr(function, "__globals__", {}))["return"]
    except Exception as error:  # noqa: BLE001  # an annotation is any expression
        raise ConfigError(
            f"environment {env!r}: what prepare is annotated to give cannot be read: {error}"
        ) from None
    if get_origin(hint) in _YIELDING:
        hint = get_args(hint)[0]
    return hint if is_state(hint) else None
