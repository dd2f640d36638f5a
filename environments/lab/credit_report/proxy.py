"""The proxy of a gradient: that of a softmax table fitted on the record's other groups, in numpy alone."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from environments.lab.credit_report.arms import Ids, Numbers, ReportData, ReportGroup
from environments.lab.credit_report.statistics import Gradients

SKETCH = 4096
"""Buckets of a CountSketch, which keeps inner products to 1/√4096 of the lengths (Charikar et al. 2002)."""
SEED = 20260930
_NO_TOKEN = -1


def proxy_gradients(data: ReportData) -> Gradients:
    """Each arm's gradient in each group, [group][arm][bucket].

    A turn has Σ onehot(token) - p̂ over its tokens; p̂ is a table over (turn index, the two tokens before in
    the turn) of the tokens that the record has there, with the counts of the other groups plus ½.
    """
    tables = _Tables(data.groups)
    gradients = np.zeros((len(data.groups), len(data.arms), SKETCH), dtype=np.float32)
    for index, group in enumerate(data.groups):
        gradients[index] = tables.gradient(index, group.advantages)
    return gradients


class _Tables:
    """The positions of all groups as numbers of contexts and of (context, token) pairs."""

    def __init__(self, groups: Sequence[ReportGroup]) -> None:
        positions = [np.array([*_positions(each)], dtype=np.int64).reshape(-1, 5) for each in groups]
        every = np.concatenate(positions)
        _, contexts = np.unique(every[:, 1:4], axis=0, return_inverse=True)
        keys = np.stack([contexts.reshape(-1), every[:, 4]], axis=1)
        pairs, of_position = np.unique(keys, axis=0, return_inverse=True)
        of_position = of_position.reshape(-1)
        self.context: Ids = pairs[:, 0]
        """Of each pair; pairs of a context stand together."""
        contexts_count = int(self.context.max()) + 1
        self.first = np.searchsorted(self.context, np.arange(contexts_count + 1))
        self.counts = np.bincount(of_position, minlength=len(pairs))
        ends = np.cumsum([len(each) for each in positions])[:-1]
        self.pairs = np.split(of_position, ends)
        self.turns = [each[:, 0] for each in positions]
        draw = np.random.default_rng(SEED)
        self.bucket = draw.integers(0, SKETCH, len(pairs))
        self.sign = draw.choice([-1.0, 1.0], len(pairs))

    def gradient(self, index: int, advantages: Numbers) -> NDArray[np.float32]:
        """Of one group, [arm][bucket]."""
        pairs, turns = self.pairs[index], self.turns[index]
        if not len(pairs):
            return np.zeros((len(advantages), SKETCH), dtype=np.float32)
        # Sampled tokens: the advantages of their turns, added up for each pair.
        order = np.argsort(pairs, kind="stable")
        own, starts, counts = np.unique(pairs[order], return_index=True, return_counts=True)
        weights = np.add.reduceat(advantages[:, turns[order]], starts, axis=1)
        contexts, begins = np.unique(self.context[own], return_index=True)
        of_context = np.add.reduceat(weights, begins, axis=1)
        # Every pair of these contexts: what the other groups sampled there.
        sizes = self.first[contexts + 1] - self.first[contexts]
        local = np.repeat(np.arange(len(contexts)), sizes)
        offset = np.arange(len(local)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        all_pairs = self.first[contexts][local] + offset
        at_own = np.searchsorted(all_pairs, own)
        others = self.counts[all_pairs] + 0.5
        others[at_own] -= counts
        chances = others / np.bincount(local, weights=others)[local]
        score = -of_context[:, local] * chances
        score[:, at_own] += weights
        score *= self.sign[all_pairs]
        buckets = self.bucket[all_pairs]
        return np.stack([np.bincount(buckets, weights=row, minlength=SKETCH) for row in score]).astype(
            np.float32
        )


def _positions(group: ReportGroup) -> Iterator[tuple[int, int, int, int, int]]:
    """Turn of the group, turn index, the two tokens before, and the token."""
    for index, turn in enumerate(group.turns):
        second, last = _NO_TOKEN, _NO_TOKEN
        for token in turn.tokens:
            yield index, turn.turn, second, last, token
            second, last = last, token
