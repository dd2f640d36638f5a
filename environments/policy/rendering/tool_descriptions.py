"""Tools as the `renderers` library takes them, made once for equal tools: each turn of a rollout asks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tools.calls import ToolSpec

_KEPT = 64
"""Lists of tools; environments that narrow theirs per item have several."""


class ToolDescriptions:
    """Descriptions whose texts are marked as text, so that no control token is made of them."""

    def __init__(self, as_text: Callable[[str], str]) -> None:
        self._as_text = as_text
        self._known: dict[tuple[str, ...], list[dict[str, Any]]] = {}

    def of(self, tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
        """Those of `tools`, for reading alone; `None` where there are none."""
        key = tuple(tool.signature() for tool in tools)
        if (known := self._known.get(key)) is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            known = self._known[key] = [_mapped(tool.to_openai(), self._as_text) for tool in tools]
        return known or None


def _mapped(value: Any, as_text: Callable[[str], str]) -> Any:
    """The value with every text in it marked."""
    if isinstance(value, str):
        return as_text(value)
    if isinstance(value, Mapping):
        held = cast("Mapping[Any, Any]", value)
        return {_mapped(key, as_text): _mapped(held[key], as_text) for key in held}
    if isinstance(value, list | tuple):
        return [_mapped(each, as_text) for each in cast("Sequence[Any]", value)]
    return value
