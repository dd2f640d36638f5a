"""Training rows, the check before they leave the process, and Atropos' columns."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from environments.trajectory import IGNORED, LARGEST_FLOAT32
from tools.errors import WireError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    tokens: Sequence[int]
    mask: Sequence[int]
    """The token id where the token is trained, `IGNORED` elsewhere."""
    score: float
    advantages: Sequence[float] | None
    """One per token, 0 outside of turns; None: only the score counts."""
    logprobs: Sequence[float] | None
    """One per token, `NOT_SAMPLED` outside of turns; None: unknown."""
    messages: Sequence[Mapping[str, Any]] | None
    override: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    rows: tuple[TrainingRow, ...]
    plain: bool = False
    """Whether this is scalar GRPO data as in Atropos, of any size."""
    binary_masks: bool = False
    """Whether masks leave as 0 and 1; in memory they are labels."""
    generation_params: Mapping[str, float] | None = None


def check_rows(group: RowGroup) -> None:
    """Refuse rows that a trainer would misread or that would break a batch.

    Raises:
        WireError: if a row is malformed.
    """
    for index, row in enumerate(group.rows):
        problem = _problem(row)
        if problem is not None:
            raise WireError(f"row {index} of {len(group.rows)}: {problem}")


def _problem(row: TrainingRow) -> str | None:
    tokens, mask = row.tokens, row.mask
    if not tokens or set(map(type, tokens)) != {int} or min(tokens) < 0:
        return "tokens must be one or more plain, non-negative integers"
    if set(map(type, mask)) != {int} or len(mask) != len(tokens):
        return f"the mask must be {len(tokens)} plain integers, got {len(mask)}"
    if any(label not in (token, IGNORED) for token, label in zip(tokens, mask, strict=True)):
        return f"a mask is the token's id or {IGNORED}"
    problem = _numbers_problem(row)
    if problem is not None:
        return problem
    if any(not {"role", "content"} <= message.keys() for message in row.messages or ()):
        return "a message needs role and content"
    spans = (row.override or {}).get("turn_spans")
    if spans is None:
        return None
    covered = list(chain.from_iterable(range(start, end) for start, end in spans))
    if covered != [index for index, label in enumerate(mask) if label != IGNORED]:
        return f"the spans {spans} must cover every trainable token exactly once"
    return None


def _numbers_problem(row: TrainingRow) -> str | None:
    if type(row.score) is not float or not math.isfinite(row.score):
        return f"the score must be a plain, finite float, got {row.score!r}"
    if abs(row.score) > LARGEST_FLOAT32:
        return f"the score {row.score:g} is too large for the float32 of a trainer"
    for name, values in (("advantages", row.advantages), ("inference_logprobs", row.logprobs)):
        if values is None:
            continue
        if len(values) != len(row.tokens) or set(map(type, values)) != {float}:
            return f"{name} must be {len(row.tokens)} plain floats"
        if not all(map(math.isfinite, values)):
            return f"{name} must be finite"
        if max(max(values), -min(values)) > LARGEST_FLOAT32:
            return f"{name} are too large for the float32 of a trainer"
    return None


Value = TypeVar("Value")

Columns = dict[str, Any]
"""A `ScoredDataGroup`."""

PER_ROW = ("tokens", "masks", "scores", "advantages", "messages", "inference_logprobs", "overrides")
"""Columns with one entry per row; only the first three are always present."""

BINARY = "binary"
"""Value of `group_overrides["masks"]` for masks of 0 and 1; without it, masks are labels."""

MADE_UP = "rollouts have rows made from text: nobody knows the tokens that were sampled"


def columns_of(group: RowGroup) -> Columns:
    """Return rows as columns.

    A column with a missing entry is left out, since some readers take None for a list; overrides are given
    for all rows or none.
    """
    rows = group.rows
    overrides = [dict(row.override or {}) for row in rows]
    bare = group.plain and not any(overrides)
    masks = [row.mask for row in rows]
    if group.binary_masks:
        masks = [[int(label != IGNORED) for label in mask] for mask in masks]
    group_overrides = {} if group.plain else {"group_size": len(rows)}
    columns: Columns = {
        "tokens": [row.tokens for row in rows],
        "masks": masks,
        "scores": [row.score for row in rows],
        "advantages": _complete(row.advantages for row in rows),
        "messages": _complete(row.messages for row in rows),
        "generation_params": None if group.generation_params is None else dict(group.generation_params),
        "inference_logprobs": _complete(row.logprobs for row in rows),
        "group_overrides": group_overrides | ({"masks": BINARY} if group.binary_masks else {}),
        "overrides": None if bare else overrides,
    }
    return {name: column for name, column in columns.items() if column is not None}


def rows_of(columns: Mapping[str, Any]) -> RowGroup:
    table = {name: columns.get(name) or [None] * len(columns["tokens"]) for name in PER_ROW}
    group_overrides: Mapping[str, Any] = columns["group_overrides"] or {}
    binary_masks = group_overrides.get("masks") == BINARY
    if binary_masks:
        table["masks"] = [
            [token if is_trained else IGNORED for token, is_trained in zip(*row, strict=True)]
            for row in zip(columns["tokens"], columns["masks"], strict=True)
        ]
    fields = ("tokens", "mask", "score", "advantages", "messages", "logprobs", "override")  # as in PER_ROW
    rows = [dict(zip(fields, row, strict=True)) for row in zip(*table.values(), strict=True)]
    return RowGroup(
        rows=tuple(TrainingRow(**row) for row in rows),
        plain=not group_overrides,
        binary_masks=binary_masks,
        generation_params=columns.get("generation_params"),
    )


def _complete(values: Iterable[Value | None]) -> list[Value] | None:
    entries = list(values)
    column = [value for value in entries if value is not None]
    return column if len(column) == len(entries) else None
