"""Packing of a group's rows into posts of equal size, with padding rows that train nothing.

Padding gets scores that give each post the mean and (population) standard deviation of the whole group, so
that `(s - mean) / std` of every real row is the same as among all its siblings.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from environments.trajectory import IGNORED, NOT_SAMPLED
from environments.wire.training_rows import RowGroup, TrainingRow

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Moments:
    mean: float
    variance: float

    @classmethod
    def of(cls, scores: Sequence[float]) -> Self:
        mean = math.fsum(scores) / len(scores)
        return cls(mean, math.fsum((score - mean) ** 2 for score in scores) / len(scores))

    def spread(self, distance: float, squares: float, taken: int, count: int) -> float | None:
        """Return the padding's sum of squared distances from its own mean, or None if impossible.

        `distance` and `squares` sum the (squared) distances of the real scores from the group's mean.
        """
        tolerance = _ROUNDING * (self.variance + 1e-300) * (taken + count)
        left = (taken + count) * self.variance - squares
        if count == 0:
            return 0.0 if abs(distance) <= math.sqrt(tolerance) and abs(left) <= tolerance else None
        spread = left - distance**2 / count
        return None if spread < -tolerance or (count == 1 and spread > tolerance) else max(spread, 0.0)

    def has_room_for(self, away: float, distance: float, squares: float, taken: int, size: int) -> bool:
        """Whether a post of `size` rows can take another row, whose score is `away` from the mean."""
        if taken == 0 or taken >= size:
            return taken == 0
        return self.spread(distance + away, squares + away**2, taken + 1, size - taken - 1) is not None


def padding_of(row: TrainingRow, scores: Sequence[float]) -> Iterator[TrainingRow]:
    for score in scores:
        yield _padding_row(row, score, ("group_id",))


def is_longer_than(max_tokens: int) -> Callable[[TrainingRow], bool]:
    return lambda row: len(row.tokens) > max_tokens


def remove_rows(group: RowGroup, is_out: Callable[[TrainingRow], bool]) -> tuple[RowGroup | None, int]:
    """Replace rows that must not be trained by padding with their score.

    Returns:
        (rows or None if nothing trainable is left, number of replaced rows).
    """
    out = [is_out(row) for row in group.rows]
    if not any(out):
        return group, 0
    rows = tuple(_pad_in_place(row) if goes else row for row, goes in zip(group.rows, out, strict=True))
    return None if all(map(teaches_nothing, rows)) else replace(group, rows=rows), sum(out)


def pad_untrained(group: RowGroup) -> RowGroup:
    rows = tuple(_pad_in_place(row) if teaches_nothing(row) else row for row in group.rows)
    return replace(group, rows=rows)


def teaches_nothing(row: TrainingRow) -> bool:
    return all(label == IGNORED for label in row.mask)


def padding_scores(taken: Sequence[float], scores: Sequence[float], count: int) -> list[float] | None:
    """Return `count` scores that complete `taken` to the mean and deviation of `scores`, or None."""
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


def _pad_in_place(row: TrainingRow) -> TrainingRow:
    return _padding_row(row, row.score, ("group_id", "row"))


def _padding_row(like: TrainingRow, score: float, names: Sequence[str]) -> TrainingRow:
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


Packing = list[list[int]]


def fill_posts(
    group: RowGroup, owners: Sequence[int], scores: Sequence[float], size: int
) -> Iterator[RowGroup]:
    """Yield the rows in posts of exactly `size` rows.

    A group that already fits is sent whole. Otherwise untrainable rows are dropped, unless scores are credit.
    `owners` are indices in `scores`, one per row; `size` is at least the number of trajectories.
    """
    if list(owners) == list(range(size)):
        yield group
        return
    sent = [index for index, row in enumerate(group.rows) if group.plain or not teaches_nothing(row)]
    for post in pack_rows([owners[index] for index in sent], scores, size, keep_scores=group.plain):
        rows = [group.rows[sent[index]] for index in post]
        taken, count = [row.score for row in rows], size - len(rows)
        padding = padding_scores(taken, scores, count)
        if padding is None:  # then with the mean alone
            mean = math.fsum(scores) / len(scores)
            padding = [mean - math.fsum(score - mean for score in taken) / count] * count if count else []
        yield replace(group, rows=(*rows, *padding_of(rows[0], padding)))


def pack_rows(owners: Sequence[int], scores: Sequence[float], size: int, *, keep_scores: bool) -> Packing:
    """Return the row indices of each post.

    With `keep_scores` every post gets the mean and deviation of `scores`; otherwise only if that needs no
    further post. Posts are filled greedily with the trajectory that has most rows left: an exact search
    hardly ever finds fewer, see `tests/environments/wire/test_packing.py`.
    """
    left: list[deque[int]] = [deque() for _ in scores]
    for row, owner in enumerate(owners):
        left[owner].append(row)
    moments, kept = Moments.of(scores), Packing()
    away = [score - moments.mean for score in scores]
    while any(left):
        post, distance, squares = list[int](), 0.0, 0.0
        while fitting := [
            owner
            for owner, rows in enumerate(left)
            if rows and moments.has_room_for(away[owner], distance, squares, len(post), size)
        ]:
            owner = max(fitting, key=lambda owner: len(left[owner]))
            post.append(left[owner].popleft())
            distance, squares = distance + away[owner], squares + away[owner] ** 2
        kept.append(sorted(post))
    if keep_scores or len(kept) <= math.ceil(len(owners) / size):
        return kept
    return [list(range(len(owners)))[start : start + size] for start in range(0, len(owners), size)]
