"""Padding: rows that teach nothing, with scores that shift nothing where a trainer normalises them.

Padding is scored such that a post has the mean and the (population) standard deviation of the whole group:
every real row is then normalised, `(s - mean) / std`, as it would be among all its siblings.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from environments.trajectory import IGNORED, NOT_SAMPLED
from environments.wire.training_rows import RowGroup, TrainingRow

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and variance of a group's scores, which a post has to have where its scores are normalised."""

    mean: float
    variance: float

    @classmethod
    def of(cls, scores: Sequence[float]) -> Self:
        """Those of the scores of a group."""
        mean = math.fsum(scores) / len(scores)
        return cls(mean, math.fsum((score - mean) ** 2 for score in scores) / len(scores))

    def spread(self, distance: float, squares: float, taken: int, count: int) -> float | None:
        """What is left for padding: the sum of its squared distances from its own mean.

        Args:
            distance: sum of the distances of the scores that are taken from the mean.
            squares: sum of the squares of these distances.
            taken: how many they are.
            count: rows of padding.

        Returns:
            `None` where no scores make up for what is taken.
        """
        tolerance = _ROUNDING * (self.variance + 1e-300) * (taken + count)
        left = (taken + count) * self.variance - squares
        if count == 0:
            return 0.0 if abs(distance) <= math.sqrt(tolerance) and abs(left) <= tolerance else None
        spread = left - distance**2 / count
        return None if spread < -tolerance or (count == 1 and spread > tolerance) else max(spread, 0.0)


def padding_of(row: TrainingRow, scores: Sequence[float]) -> Iterator[TrainingRow]:
    """Padding for the post that begins with `row`, a row for each score."""
    for score in scores:
        yield _padding_row(row, score, ("group_id",))


def shorten(group: RowGroup, max_tokens: int) -> tuple[RowGroup | None, int]:
    """Take out what a trainer's limit forbids: a longer row becomes padding that keeps its score.

    Returns:
        The rows, `None` when none is left that teaches anything; and the number of rows taken out.
    """
    too_long = sum(len(row.tokens) > max_tokens for row in group.rows)
    if not too_long:
        return group, 0
    rows = tuple(row if len(row.tokens) <= max_tokens else _inert(row) for row in group.rows)
    if all(map(teaches_nothing, rows)):
        return None, too_long
    return replace(group, rows=rows), too_long


def untrained_as_padding(group: RowGroup) -> RowGroup:
    """The group, where a row of turns that are all left out of training says that it teaches nothing."""
    rows = tuple(_inert(row) if teaches_nothing(row) else row for row in group.rows)
    return replace(group, rows=rows)


def teaches_nothing(row: TrainingRow) -> bool:
    """Whether no token of a row is trained."""
    return all(label == IGNORED for label in row.mask)


def padding_scores(taken: Sequence[float], scores: Sequence[float], count: int) -> list[float] | None:
    """Scores that give `taken` and the padding together the mean and standard deviation of `scores`.

    Args:
        taken: scores of the real rows of a post.
        scores: scores of the group.
        count: rows of padding.

    Returns:
        `count` scores, or `None` where no such scores exist.
    """
    moments = Moments.of(scores)
    distances = [score - moments.mean for score in taken]
    distance, squares = math.fsum(distances), math.fsum(each**2 for each in distances)
    spread = moments.spread(distance, squares, len(taken), count)
    if spread is None or count == 0:
        return None if spread is None else []
    centre = moments.mean - distance / count
    pairs = count // 2
    step = math.sqrt(spread / (2 * pairs)) if pairs else 0.0
    return [centre + step, centre - step] * pairs + [centre] * (count % 2)


def nearest_scores(taken: Sequence[float], scores: Sequence[float], count: int) -> list[float]:
    """Scores that give `taken` and the padding the mean of `scores`, but not their deviation."""
    mean = math.fsum(scores) / len(scores)
    return [mean - math.fsum(score - mean for score in taken) / count] * count if count else []


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
