"""Posts of exactly the registered size: real rows, and padding that teaches nothing and shifts nothing.

The API holds back a group of another size than registered and never batches what does not add up (see
`tests/environments/serve/test_atropos_facts.py`), so a group that lost a sibling is padded, and one whose
trajectories have several rows goes on into another post. Many trainers normalise the scores of a post,
`(s - mean) / std`. The padding is scored such that a post has the mean and the (population) standard
deviation of the whole group: every real row is then normalised as it would be among all its siblings.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from environments.trajectory import IGNORED, NOT_SAMPLED
from environments.wire.training_rows import RowGroup, TrainingRow

_ROUNDING = 1e-9


def posts(group: RowGroup, scores: Sequence[float], size: int) -> Iterator[RowGroup]:
    """The rows of a group in posts of exactly `size` rows, in order.

    Args:
        group: the rows; each has the score of its trajectory.
        scores: one per trajectory of the group.
        size: rows of a post; no less than there are trajectories.
    """
    rows = group.rows
    if len(rows) == len(scores) == size:
        yield group
        return
    while rows:
        taken, padding = _fitting([row.score for row in rows[:size]], scores, size)
        yield replace(group, rows=(*rows[:taken], *_padding_of(rows[0], padding)))
        rows = rows[taken:]


def shorten(group: RowGroup, max_tokens: int) -> tuple[RowGroup | None, int]:
    """Take out what a trainer's limit forbids: a longer row becomes padding that keeps its score.

    Returns:
        The rows, `None` when none is left that teaches anything; and the number of rows taken out.
    """
    too_long = sum(len(row.tokens) > max_tokens for row in group.rows)
    if not too_long:
        return group, 0
    rows = tuple(row if len(row.tokens) <= max_tokens else _inert(row) for row in group.rows)
    if all(map(_teaches_nothing, rows)):
        return None, too_long
    return replace(group, rows=rows), too_long


def untrained_as_padding(group: RowGroup) -> RowGroup:
    """The group, where a row of turns that are all left out of training says that it teaches nothing."""
    rows = tuple(_inert(row) if _teaches_nothing(row) else row for row in group.rows)
    return replace(group, rows=rows)


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


def _teaches_nothing(row: TrainingRow) -> bool:
    return all(label == IGNORED for label in row.mask)


def _padding_of(row: TrainingRow, scores: Sequence[float]) -> Iterator[TrainingRow]:
    """Padding for the post that begins with `row`, a row for each score."""
    for score in scores:
        yield _padding_row(row, score, ("group_id",))


def _inert(row: TrainingRow) -> TrainingRow:
    """Padding in the place of a row: with its score, and its names, for a consumer that drops repeats."""
    return _padding_row(row, row.score, ("group_id", "row"))


def _padding_row(like: TrainingRow, score: float, names: Sequence[str]) -> TrainingRow:
    """A short row without a trainable token; it has what `like` has, and those of its names."""
    tokens = like.tokens[:2]
    override = like.override or {}
    return TrainingRow(
        tokens=tokens,
        mask=[IGNORED] * len(tokens),
        score=score,
        advantages=None if like.advantages is None else [0.0] * len(tokens),
        logprobs=None if like.logprobs is None else [NOT_SAMPLED] * len(tokens),
        messages=None if like.messages is None else [{"role": "user", "content": ""}],
        override={
            **{name: override[name] for name in names if name in override},
            "set_advantage_to_zero": True,
            "padding": True,
        },
    )
