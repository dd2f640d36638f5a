"""Which state `prepare` is annotated to give, and whether the tools of its environment take that one."""

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints

from tools.errors import ConfigError
from tools.injection import is_state, state_class, why_unreadable
from tools.registry import Toolset
from tools.state_tools import refuse_state

_YIELDING = (Iterator, Iterable, Generator, AsyncIterator, AsyncIterable, AsyncGenerator)


def refuse_other_states(toolset: Toolset, prepare: Callable[..., Any], env: str) -> None:
    """Raise ConfigError where a tool takes a state that `prepare` is not annotated to give."""
    wanted = next(((tool.name, state) for tool in toolset.tools for state in tool.states), None)
    if wanted is None:
        return
    given = _given(prepare, env)
    if not is_state(given):
        name, state = wanted[0], wanted[1].__name__
        raise ConfigError(
            f"environment {env!r}: tool {name!r} takes {state}, and prepare is annotated to give "
            + _named(given)
            + f"; write `def prepare(self, item, sandbox) -> {state}`, or `-> Iterator[{state}]` with a yield"
        )
    refuse_state(toolset, given, f"environment {env!r}: prepare is annotated to give")


def _given(prepare: Callable[..., Any], env: str) -> Any:
    """What stands after `->`, by itself or yielded; `None` for nothing."""
    function: Any = inspect.unwrap(prepare)
    # The other annotations may name what is imported for type checkers alone.
    only_return = SimpleNamespace(__annotations__={"return": inspect.get_annotations(function).get("return")})
    try:
        hint = get_type_hints(only_return, getattr(function, "__globals__", {}))["return"]
    except Exception as error:  # noqa: BLE001  # an annotation is any expression
        raise ConfigError(
            f"environment {env!r}: what prepare is annotated to give cannot be read: {why_unreadable(error)}"
        ) from None
    given = next(iter(get_args(hint)), None) if get_origin(hint) in _YIELDING else hint
    return state_class(given) or given


def _named(annotation: Any) -> str:
    if annotation in (None, type(None)):
        return "nothing"
    return annotation.__name__ if inspect.isclass(annotation) else str(annotation)
