"""What turns saw, as a line has it: what was put in stands once, and later turns refer to it."""

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from environments.trajectory import Kept, Message

Context = tuple[Kept | Message, ...]

MAX_PARTS = 100_000
"""Of one context: references could make a short line long without bounds."""

_MESSAGE = TypeAdapter(Message)
_INTEGERS = TypeAdapter(tuple[int, int, int])
_PART = TypeAdapter[Kept | Message](Kept | Message)


def written_contexts(contexts: Sequence[Context | None]) -> list[list[dict[str, Any]] | None]:
    """The contexts of a trajectory's turns, as JSON values.

    A part is a stretch of the conversation (`start`, `end`), a message, or a stretch of the parts of an
    earlier turn's context (`turn`, `start`, `end`).
    """
    stands: dict[Message, tuple[int, int]] = {}
    """Turn and part where each message stood last."""
    written: list[list[dict[str, Any]] | None] = []
    for turn, context in enumerate(contexts):
        written.append(None if context is None else _written(context, contexts, stands))
        for number, part in enumerate(context or ()):
            if isinstance(part, Message):
                stands[part] = turn, number
    return written


def read_contexts(written: Sequence[Sequence[dict[str, Any]] | None]) -> list[Context | None]:
    """What `written_contexts` wrote.

    Raises:
        ValueError, LookupError, TypeError: a part is none of these, or there are too many.
    """
    contexts: list[Context | None] = []
    for parts in written:
        contexts.append(None if parts is None else _read(parts, contexts))
    return contexts


def _written(
    context: Context, contexts: Sequence[Context | None], stands: dict[Message, tuple[int, int]]
) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    number = 0
    while number < len(context):
        part = context[number]
        if isinstance(part, Kept):
            parts.append({"start": part.start, "end": part.end})
            number += 1
        elif part not in stands:
            parts.append(_MESSAGE.dump_python(part, mode="json", warnings=False))
            number += 1
        else:
            turn, start = stands[part]
            earlier = contexts[turn] or ()
            same = _same(context[number:], earlier[start:])
            parts.append({"turn": turn, "start": start, "end": start + same})
            number += same
    return parts


def _same(one: Context, other: Context) -> int:
    """How many parts two contexts begin with alike."""
    alike = 0
    for part, its in zip(one, other, strict=False):
        if part != its:
            break
        alike += 1
    return alike


def _read(parts: Sequence[dict[str, Any]], earlier: Sequence[Context | None]) -> Context:
    context: list[Kept | Message] = []
    for part in parts:
        if "turn" in part:
            turn, start, end = _INTEGERS.validate_python((part["turn"], part["start"], part["end"]))
            of_turn = earlier[turn] if turn >= 0 else None
            if of_turn is None or not 0 <= start < end <= len(of_turn):
                raise ValueError(f"context: no parts {start} to {end} of turn {turn}'s")
            context += of_turn[start:end]
        else:
            context.append(_PART.validate_python(part))
        if len(context) > MAX_PARTS:
            raise ValueError(f"context: more than {MAX_PARTS} parts")
    return tuple(context)
