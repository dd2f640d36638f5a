"""Conversion between rows and the columns of Atropos' `ScoredDataGroup`."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from environments.trajectory import IGNORED, CreditedGroup
from environments.wire.training_rows import RowGroup, TrainingRow, check_rows
from environments.wire.views import VIEWS, Divisor, PrefixWeighting, every_row

Value = TypeVar("Value")

Columns = dict[str, Any]
"""A `ScoredDataGroup`."""

PER_ROW = ("tokens", "masks", "scores", "advantages", "messages", "inference_logprobs", "overrides")
"""Columns with one entry per row; only the first three are always present."""

BINARY = "binary"
"""Value of `group_overrides["masks"]` for masks of 0 and 1; without it, masks are labels."""

MADE_UP = "rollouts have rows made from text: nobody knows the tokens that were sampled"

_EVERY_COLUMN = (
    "tokens", "masks", "scores", "advantages", "ref_logprobs", "messages", "generation_params",
    "inference_logprobs", "group_overrides", "overrides", "images",
)  # fmt: skip


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


def columns_in(
    view: str, credited: CreditedGroup, divisor: Divisor, weighting: PrefixWeighting = "once"
) -> list[Columns]:
    """Return a group's view as columns, one dict per group of rows; WireError as in `check_rows`."""
    groups = VIEWS[view](credited, divisor, weighting)
    for group in groups:
        check_rows(group)
    return [columns_of(group) for group in groups]


def rows_of(columns: Mapping[str, Any]) -> RowGroup:
    """Return the rows of columns: the inverse of `columns_of`."""
    table = {name: columns.get(name) or [None] * len(columns["tokens"]) for name in PER_ROW}
    group_overrides: Mapping[str, Any] = columns["group_overrides"] or {}
    binary_masks = group_overrides.get("masks") == BINARY
    if binary_masks:
        table["masks"] = [
            [token if is_trained else IGNORED for token, is_trained in zip(*row, strict=True)]
            for row in zip(columns["tokens"], columns["masks"], strict=True)
        ]
    return RowGroup(
        rows=tuple(
            TrainingRow(
                tokens=tokens,
                mask=mask,
                score=score,
                advantages=advantages,
                messages=messages,
                logprobs=logprobs,
                override=override,
            )
            for tokens, mask, score, advantages, messages, logprobs, override in zip(
                *table.values(), strict=True
            )
        ),
        plain=not group_overrides,
        binary_masks=binary_masks,
        generation_params=columns.get("generation_params"),
    )


def list_scores(credited: CreditedGroup) -> Columns:
    """Return every column for people and offline tools; with turn rewards, `scores` has a list per row."""
    columns: Columns = dict.fromkeys(_EVERY_COLUMN) | columns_of(every_row(credited))
    scores = [
        score if override["turn_rewards"] is None else override["turn_rewards"]
        for score, override in zip(columns["scores"], columns["overrides"] or (), strict=True)
    ]
    return columns | {"scores": scores}


def _complete(values: Iterable[Value | None]) -> list[Value] | None:
    entries = list(values)
    column = [value for value in entries if value is not None]
    return column if len(column) == len(entries) else None
