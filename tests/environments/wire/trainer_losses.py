"""What trainers make of posts, as numbers: the weight of each token's log-probability in the loss.

Losses are linear in the log-probabilities of one on-policy step, so these weights are all of the gradient.
Aggregations have verl's names.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.trajectory import IGNORED

CONSTANT = 64
"""What `seq_mean_token_sum_norm` divides by, in place of a row's tokens."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a batch, each with the advantage that the trainer gives each of its trained tokens."""

    rows: Sequence[Mapping[int, float]]
    """Token id to advantage; a row of padding is empty."""

    @property
    def tokens(self) -> int:
        """How many are trained."""
        return sum(map(len, self.rows))


def reading_advantages(posts: Sequence[Mapping[str, Any]]) -> Batch:
    """A trainer that takes `advantages` as they are."""
    return Batch(
        [
            {label: value for label, value in zip(mask, values, strict=True) if label != IGNORED}
            for post in posts
            for mask, values in zip(post["masks"], post["advantages"], strict=True)
        ]
    )


def reading_binary_masks(posts: Sequence[Mapping[str, Any]]) -> Batch:
    """A trainer that takes `advantages` as they are, and masks for factors."""
    return Batch(
        [
            {token: value * factor for token, factor, value in zip(*row, strict=True) if factor}
            for post in posts
            for row in zip(post["tokens"], post["masks"], post["advantages"], strict=True)
        ]
    )


def reading_scores(posts: Sequence[Mapping[str, Any]]) -> Batch:
    """A trainer that normalises the scores of a post, and keeps that of a row alone (Atropos' example)."""
    rows: list[Mapping[int, float]] = []
    for post in posts:
        scores = post["scores"]
        if len(scores) > 1:
            mean = math.fsum(scores) / len(scores)
            deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
            scores = [(score - mean) / max(deviation, 1e-8) for score in scores]
        for mask, score in zip(post["masks"], scores, strict=True):
            rows.append({label: score for label in mask if label != IGNORED})
    return Batch(rows)


Aggregation = Callable[[Batch], dict[int, float]]


def _aggregated(batch: Batch, divisor: Callable[[Mapping[int, float]], float]) -> dict[int, float]:
    weights: defaultdict[int, float] = defaultdict(float)
    for row in batch.rows:
        for token, advantage in row.items():
            weights[token] += advantage / divisor(row)
    return dict(weights)


def token_mean(batch: Batch) -> dict[int, float]:
    """A mean over all trained tokens of the batch."""
    return _aggregated(batch, lambda _: batch.tokens)


def seq_mean_token_mean(batch: Batch) -> dict[int, float]:
    """Each row a mean over its tokens, then a mean over rows."""
    return _aggregated(batch, lambda row: len(row) * len(batch.rows))


def seq_mean_token_sum(batch: Batch) -> dict[int, float]:
    """Each row a sum over its tokens, then a mean over rows."""
    return _aggregated(batch, lambda _: len(batch.rows))


def seq_mean_token_sum_norm(batch: Batch) -> dict[int, float]:
    """All tokens summed, over a constant: Dr. GRPO."""
    return _aggregated(batch, lambda _: CONSTANT)


def scale_to(weights: Mapping[int, float], advantages: Mapping[int, float]) -> float | None:
    """The one number by which every token's weight is its advantage; `None` where there is none."""
    assert weights.keys() == advantages.keys()
    ratios = [weights[token] / advantages[token] for token in weights if abs(advantages[token]) > 1e-9]
    rest = [weights[token] for token in weights if abs(advantages[token]) <= 1e-9]
    alike = max(ratios) - min(ratios) <= 1e-9 * max(map(abs, ratios)) and all(
        abs(each) < 1e-9 for each in rest
    )
    return math.fsum(ratios) / len(ratios) if alike else None
