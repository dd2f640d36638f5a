"""Messages as chat templates take them, as JSON: arguments of calls are objects where that loses nothing.

Templates render `arguments | tojson`, and some refuse text. `datasets` reads such objects with a parser that
keeps ten decimals, 64 bits and a last digit that may be wrong: what it would change stays text.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson

from environments.trajectory import Trajectory, Turn
from environments.wire.row_messages import RowMessages, Shown

KEPT_AS_TEXT = "tool calls keep their arguments as text"

_DECIMALS = 10
_DEEPEST = 100
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


class TemplateMessages:
    """The messages of a trajectory, each made JSON once."""

    def __init__(self, trajectory: Trajectory, notes: Counter[str]) -> None:
        """Read the conversation; what is to be said of it is counted in `notes`."""
        self._rows = RowMessages(trajectory)
        self._notes = notes
        self._made: dict[int, bytes] = {}
        self._lasting = frozenset(map(id, self._rows.all))

    def until(self, turn: Turn) -> list[bytes]:
        """What the model saw before a turn, and the turn's message."""
        return [self._json(message) for message in self.shown_until(turn)]

    def shown_until(self, turn: Turn) -> list[Shown]:
        """The same as OpenAI has it, arguments verbatim."""
        return self._rows.until(turn, ())

    def _json(self, message: Shown) -> bytes:
        made = self._made.get(id(message))
        if made is None:
            made = orjson.dumps(self._for_templates(message))
            if id(message) in self._lasting:
                self._made[id(message)] = made
        return made

    def _for_templates(self, message: Shown) -> Shown:
        if "tool_calls" not in message:
            return message
        calls: list[Shown] = []
        for call in message["tool_calls"]:
            arguments = read_arguments(call["function"]["arguments"])
            self._notes[KEPT_AS_TEXT] += isinstance(arguments, str)
            calls.append({**call, "function": {**call["function"], "arguments": arguments}})
        return {**message, "tool_calls": calls}


def read_arguments(text: str) -> Mapping[str, Any] | str:
    """The arguments of a call as an object, or the text itself where `datasets` would change what it says."""
    try:
        value: Any = json.loads(text, object_pairs_hook=_without_twins, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    kept = isinstance(value, dict) and _survives(cast("object", value), _DEEPEST)
    return cast("Mapping[str, Any]", value) if kept else text


def _survives(value: object, depth: int) -> bool:
    """Whether the parser of `datasets` reads a JSON value as it was written."""
    if isinstance(value, bool | str | None):
        return True
    if isinstance(value, int):
        return _SMALLEST <= value <= _LARGEST
    if isinstance(value, float):
        return _keeps(value)
    inner = cast(
        "Sequence[object]", value if isinstance(value, list) else [*cast("dict[str, object]", value).values()]
    )
    return depth > 0 and all(_survives(each, depth - 1) for each in inner)


def _keeps(value: float) -> bool:
    """It adds the decimals, times a power of ten, to the whole part, and writes ten of them."""
    whole, point, decimals = repr(abs(value)).partition(".")
    if not point or "e" in decimals or len(decimals) > _DECIMALS:
        return False
    return int(whole) + int(decimals) * float(f"1e-{len(decimals)}") == abs(value)


def _without_twins(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _refuse(constant: str) -> object:
    raise ValueError(constant)
