"""Which rows of a group share a post: as few posts as the trainer's use of their scores allows.

The API holds back a group of another size than registered and never batches what does not add up (see
`tests/environments/serve/test_atropos_facts.py`), so every post has exactly the registered rows, and what is
left of it is padding. A trainer that reads plain scores normalises those of a post, `(s - mean) / std`: each
of its posts must have the mean and the deviation of the whole group. A trainer that reads `advantages` has
the credit of each row in the row: its posts need only be full.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from environments.wire.padding import Moments, nearest_scores, padding_of, padding_scores, teaches_nothing
from environments.wire.training_rows import RowGroup

Packing = list[list[int]]
"""The indices of the rows of each post."""


def posts(group: RowGroup, owners: Sequence[int], scores: Sequence[float], size: int) -> Iterator[RowGroup]:
    """The rows of a group in posts of exactly `size` rows.

    Of a group that is not sent as it is, rows that teach nothing are left out where scores are no credit.

    Args:
        group: the rows; each has the score of its trajectory.
        owners: the trajectory of each row, as an index of `scores`.
        scores: one per trajectory of the group.
        size: rows of a post; no less than there are trajectories.
    """
    if list(owners) == list(range(size)):
        yield group
        return
    sent = [index for index, row in enumerate(group.rows) if group.plain or not teaches_nothing(row)]
    for post in packing([owners[index] for index in sent], scores, size, keep_scores=group.plain):
        rows = [group.rows[sent[index]] for index in post]
        taken, count = [row.score for row in rows], size - len(rows)
        padding = padding_scores(taken, scores, count)
        if padding is None:
            padding = nearest_scores(taken, scores, count)
        yield replace(group, rows=(*rows, *padding_of(rows[0], padding)))


def packing(owners: Sequence[int], scores: Sequence[float], size: int, *, keep_scores: bool) -> Packing:
    """The rows of each post, in order.

    Args:
        owners: the trajectory of each row, as an index of `scores`.
        scores: one per trajectory of the group.
        size: rows of a post.
        keep_scores: whether every post must have the mean and deviation of `scores`. Otherwise it has them
            where that costs no post.
    """
    kept = _keeping_scores(owners, scores, size)
    if keep_scores or len(kept) <= math.ceil(len(owners) / size):
        return kept
    return [list(range(len(owners)))[start : start + size] for start in range(0, len(owners), size)]


def _keeping_scores(owners: Sequence[int], scores: Sequence[float], size: int) -> Packing:
    """Fill one post after the other, each time with a row of the trajectory that has most rows left.

    An exact search hardly ever finds fewer posts, see `tests/benchmarks/bench_packing.py`.
    """
    left: list[deque[int]] = [deque() for _ in scores]
    for row, owner in enumerate(owners):
        left[owner].append(row)
    moments, packed = Moments.of(scores), Packing()
    while any(left):
        post = _OpenPost(moments, size)
        while (owner := _with_most_rows(left, scores, post)) is not None:
            post.take(left[owner].popleft(), scores[owner])
        packed.append(sorted(post.rows))
    return packed


def _with_most_rows(left: Sequence[deque[int]], scores: Sequence[float], post: "_OpenPost") -> int | None:
    """Of the trajectories whose next row fits into a post, the one that has most rows left."""
    by_rows = sorted(range(len(left)), key=lambda owner: len(left[owner]), reverse=True)
    return next((owner for owner in by_rows if left[owner] and post.has_room_for(scores[owner])), None)


class _OpenPost:
    """A post that can be filled up with padding at any time."""

    def __init__(self, moments: Moments, size: int) -> None:
        self.rows: list[int] = []
        self._moments, self._size = moments, size
        self._distance = self._squares = 0.0

    def has_room_for(self, score: float) -> bool:
        taken, away = len(self.rows) + 1, score - self._moments.mean
        if taken == 1:
            return True  # no score is further away than padding can make up for: only rounding can say so
        distance, squares = self._distance + away, self._squares + away**2
        return (
            taken <= self._size
            and self._moments.spread(distance, squares, taken, self._size - taken) is not None
        )

    def take(self, row: int, score: float) -> None:
        away = score - self._moments.mean
        self.rows.append(row)
        self._distance += away
        self._squares += away**2
