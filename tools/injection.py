"""Parameters that a rollout injects into tools: sandbox, state and context."""

import inspect
from collections.abc import Callable
from itertools import chain
from typing import Any, get_args, get_origin, get_type_hints

from tools.errors import ConfigError
from tools.sandbox.base import Sandbox
from tools.tool_context import State, ToolContext

SELF = "self"


class Unbound:
    """Type of a method's `self` until the method is looked up on a State class."""


def parameters_of(function: Callable[..., Any], where: str) -> tuple[dict[str, type], dict[str, Any]]:
    """Return (injected parameters with their types, annotations of all others and `return`).

    Raises:
        ConfigError: if an annotation is missing, unreadable, or mixes injected and other types.
    """
    parameters = list(inspect.signature(function).parameters)
    hints = _hints(function, where)
    injected: dict[str, type] = {}
    if parameters[:1] == [SELF]:
        injected[SELF] = Unbound
        hints.pop(SELF, None)
    missing = [name for name in [*parameters, "return"] if name not in hints and name not in injected]
    if missing:
        raise ConfigError(f"{where}: no type annotation for {missing}; the signature is the schema")
    for name in parameters:
        if name not in injected and is_injected(hints[name]):
            kind = hints.pop(name)
            injected[name] = state_class(kind) or kind
        elif name not in injected and (inner := _injected_within(hints[name])):
            raise ConfigError(
                f"{where}: `{name}` takes {inner.__name__} inside of another type; it is always given, "
                f"write `{name}: {inner.__name__}`"
            )
    return injected, hints


def is_injected(annotation: Any) -> bool:
    return annotation is Sandbox or annotation is ToolContext or is_state(annotation)


def is_state(annotation: Any) -> bool:
    return state_class(annotation) is not None


def state_class(annotation: Any) -> type[State] | None:
    """Return the State class of an annotation (`Shop` of `Shop[int]`), or None."""
    kind = get_origin(annotation) or annotation
    return kind if inspect.isclass(kind) and issubclass(kind, State) else None


def why_unreadable(error: Exception) -> str:
    if not isinstance(error, NameError):
        return str(error)
    return (
        f"{error} where it is read; import or define it at the top of the module, not for type checkers alone"
    )


def _hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except Exception as error:  # noqa: BLE001  # an annotation is any expression
        raise ConfigError(f"{where}: an annotation cannot be read: {why_unreadable(error)}") from None


def _injected_within(annotation: Any) -> type | None:
    parts = get_args(annotation)
    direct = (part for part in parts if is_injected(part))
    return next(chain(direct, filter(None, map(_injected_within, parts))), None)
