"""Posts of exactly the registered size: real rows, and padding that teaches nothing and shifts nothing.

The API holds back a group of another size than registered and never batches what does not add up (see
`tests/environments/serve/test_atropos_facts.py`), so a group that lost a sibling is padded, and one whose
trajectories have several rows goes on into another post. Many trainers normalise the scores of a post,
`(s - mean) / std`. The padding is scored such that a post has the mean and the (population) standard
deviation of the whole group: every real row is then normalised as it would be among all its siblings.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from environments.trajectory import IGNORED, NOT_SAMPLED
from environments.wire.views import Columns

PER_ROW = ("tokens", "masks", "scores", "advantages", "messages", "inference_logprobs", "overrides")
"""Columns with one entry per row; all but the first three may be `None` as a whole."""

_ROUNDING = 1e-9


def posts(columns: Columns, scores: Sequence[float], size: int) -> Iterator[Columns]:
    """The rows of a group in posts of exactly `size` rows, in order.

    Args:
        columns: the rows; each has the score of its trajectory.
        scores: one per trajectory of the group.
        size: rows of a post; no less than there are trajectories.
    """
    rows = len(columns["tokens"])
    if rows == len(scores) == size:
        yield columns
        return
    start = 0
    while start < rows:
        taken, padding = _fitting(columns["scores"][start : start + size], scores, size)
        yield _completed(_some(columns, start, start + taken), padding)
        start += taken


def shorten(columns: Columns, max_tokens: int) -> tuple[Columns | None, int]:
    """Take out what a trainer's limit forbids: a longer row becomes padding that keeps its score.

    Returns:
        The columns, `None` when no row is left that teaches anything; and the number of rows taken out.
    """
    long = [row for row, tokens in enumerate(columns["tokens"]) if len(tokens) > max_tokens]
    if not long:
        return columns, 0
    left = any(
        any(label != IGNORED for label in mask)
        for row, mask in enumerate(columns["masks"])
        if row not in long
    )
    if not left:
        return None, len(long)
    changed = columns | _marked(columns)
    for row in long:
        inert = _padding_row(columns["tokens"][row], columns["scores"][row], _named(columns, row))
        changed = changed | {
            name: [*changed[name][:row], inert[name], *changed[name][row + 1 :]]
            for name in PER_ROW
            if changed[name] is not None
        }
    return changed, len(long)


def padding_scores(taken: Sequence[float], scores: Sequence[float], count: int) -> list[float] | None:
    """Scores that give `taken` and the padding together the mean and standard deviation of `scores`.

    Args:
        taken: scores of the real rows of a post.
        scores: scores of the group.
        count: rows of padding.

    Returns:
        `count` scores, or `None` where no such scores exist.
    """
    mean = math.fsum(scores) / len(scores)
    variance = math.fsum((score - mean) ** 2 for score in scores) / len(scores)
    # What is left for the padding: the sum of its distances from the mean, and of their squares.
    distance = -math.fsum(score - mean for score in taken)
    squares = (len(taken) + count) * variance - math.fsum((score - mean) ** 2 for score in taken)
    tolerance = _ROUNDING * (variance + 1e-300) * (len(taken) + count)
    if count == 0:
        return [] if abs(distance) <= math.sqrt(tolerance) and abs(squares) <= tolerance else None
    spread = squares - distance**2 / count
    if spread < -tolerance or (count == 1 and spread > tolerance):
        return None
    centre = mean + distance / count
    pairs = count // 2
    step = math.sqrt(max(spread, 0.0) / (2 * pairs)) if pairs else 0.0
    return [centre + step, centre - step] * pairs + [centre] * (count % 2)


def _fitting(candidates: Sequence[float], scores: Sequence[float], size: int) -> tuple[int, list[float]]:
    """How many of the next rows a post can take, and the scores of its padding."""
    for taken in range(len(candidates), 0, -1):
        padding = padding_scores(candidates[:taken], scores, size - taken)
        if padding is not None:
            return taken, padding
    # One row alone always fits, as no score is further from the mean than sqrt(n - 1) deviations: only
    # rounding got in the way.
    mean = math.fsum(scores) / len(scores)
    return 1, [mean + (mean - candidates[0]) / (size - 1)] * (size - 1)


def _some(columns: Columns, start: int, end: int) -> Columns:
    return columns | {name: None if columns[name] is None else columns[name][start:end] for name in PER_ROW}


def _completed(columns: Columns, padding: Sequence[float]) -> Columns:
    size = len(columns["tokens"]) + len(padding)
    named = {"group_overrides": {"group_size": size}} if columns["group_overrides"] else {}
    group = {name: value for name, value in _named(columns, 0).items() if name == "group_id"}
    rows = [_padding_row(columns["tokens"][0], score, group) for score in padding]
    columns = columns | _marked(columns) if rows else columns
    return columns | {
        name: None if columns[name] is None else columns[name] + [row[name] for row in rows]
        for name in PER_ROW
    } | named  # fmt: skip


def _marked(columns: Columns) -> Columns:
    """Room for marking padding: scalar data has no overrides of its own, its rows get empty ones."""
    return {"overrides": columns["overrides"] or [{} for _ in columns["tokens"]]}


def _named(columns: Columns, row: int) -> dict[str, Any]:
    """What names a row to a consumer that drops repeats."""
    override: dict[str, Any] = columns["overrides"][row] if columns["overrides"] else {}
    return {name: override[name] for name in ("group_id", "row") if name in override}


def _padding_row(tokens: Sequence[int], score: float, names: Mapping[str, Any]) -> dict[str, Any]:
    """A short row without a trainable token."""
    tokens = list(tokens[:2])
    return {
        "tokens": tokens,
        "masks": [IGNORED] * len(tokens),
        "scores": score,
        "advantages": [0.0] * len(tokens),
        "messages": [{"role": "user", "content": ""}],
        "inference_logprobs": [NOT_SAMPLED] * len(tokens),
        "overrides": {**names, "set_advantage_to_zero": True, "padding": True},
    }
