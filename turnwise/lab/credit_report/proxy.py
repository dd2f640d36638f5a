"""The proxy of a gradient: that of a softmax table fitted on the record's other groups, in numpy alone."""

from collections.abc import Iterator, Sequence

import numpy as np

from turnwise.lab.credit_report.arms import Ids, Numbers, ReportData, ReportGroup
from turnwise.lab.credit_report.signal_noise import Gradients

SKETCH = 4096
"""Buckets of a CountSketch, which keeps inner products to 1/√4096 of the lengths (Charikar et al. 2002)."""
SEED = 20260930
_NO_TOKEN = -1


def proxy_gradients(data: ReportData) -> Gradients:
    """Each arm's gradient in each group, [group][arm][bucket].

    A turn has Σ onehot(token) - p̂ over its tokens; p̂ is a table over (turn index, the two tokens before in
    the turn, at its start those that it answers) of the tokens that the record has there, with the counts of
    the other groups plus ½.
    """
    tables = _Tables(data.groups)
    gradients = np.zeros((len(data.groups), len(data.arms), SKETCH), dtype=np.float32)
    for index, group in enumerate(data.groups):
        if not group.turns:
            continue
        gradients[index] = group.advantages @ tables.sketches(index, len(group.turns))
    return gradients


class _Tables:
    """The positions of all groups as numbers of contexts and of (context, token) pairs."""

    def __init__(self, groups: Sequence[ReportGroup]) -> None:
        positions = [np.array([*_positions(each)], dtype=np.int64).reshape(-1, 5) for each in groups]
        every = np.concatenate(positions)
        tokens, named = np.unique(every[:, 2:], return_inverse=True)
        turn, (second, last, token) = every[:, 1], named.reshape(-1, 3).T
        _, ends_of = np.unique(second * len(tokens) + last, return_inverse=True)
        _, contexts = np.unique(turn * (int(ends_of.max()) + 1) + ends_of, return_inverse=True)
        pairs, of_position = np.unique(contexts * len(tokens) + token, return_inverse=True)
        self.context: Ids = pairs // len(tokens)
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

    def sketches(self, index: int, turns: int) -> Numbers:
        """Of the turns of one group, [turn][bucket]."""
        pairs, turn_of = self.pairs[index], self.turns[index]
        # What the other groups sampled in the contexts of this one.
        contexts, of_position = np.unique(self.context[pairs], return_inverse=True)
        pair, local = self._pairs_of(contexts)
        others = self.counts[pair] + 0.5
        own, counts = np.unique(pairs, return_counts=True)
        others[np.searchsorted(pair, own)] -= counts
        chances = others / np.bincount(local, weights=others)[local]
        # Each context of a turn, as often as the turn was there.
        cells, times = np.unique(turn_of * len(contexts) + of_position, return_counts=True)
        turn, context = np.divmod(cells, len(contexts))
        expected, cell = self._pairs_of(contexts[context])
        at = np.searchsorted(pair, expected)
        sketch: Numbers = np.bincount(
            np.concatenate([turn_of, turn[cell]]) * SKETCH + self.bucket[np.concatenate([pairs, expected])],
            weights=np.concatenate([self.sign[pairs], -times[cell] * chances[at] * self.sign[expected]]),
            minlength=turns * SKETCH,
        ).astype(np.float64)
        return sketch.reshape(turns, SKETCH)

    def _pairs_of(self, contexts: Ids) -> tuple[Ids, Ids]:
        """All pairs of these contexts, one after the other, each with the index of its context."""
        sizes = self.first[contexts + 1] - self.first[contexts]
        local = np.repeat(np.arange(len(contexts)), sizes)
        offset = np.arange(len(local)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return self.first[contexts][local] + offset, local


def _positions(group: ReportGroup) -> Iterator[tuple[int, int, int, int, int]]:
    """Turn of the group, turn index, the two tokens before, and the token."""
    for index, turn in enumerate(group.turns):
        second, last = (_NO_TOKEN, _NO_TOKEN, *turn.before)[-2:]
        for token in turn.tokens:
            yield index, turn.turn, second, last, token
            second, last = last, token
