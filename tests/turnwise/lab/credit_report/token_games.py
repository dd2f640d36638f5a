"""Records of games whose best γ is known, with tokens: a sign is read, a key is pressed."""

from dataclasses import replace

import numpy as np

from environments.credit import credited
from environments.testing import group_of
from environments.trajectory import Span, TokenRow

SIGNS, KEYS = 8, 4


def with_tokens(group, tokens):
    """The group with these tokens, [trajectory][turn] of (read, sampled)."""
    siblings = []
    for trajectory, turns in zip(group.trajectories, tokens, strict=True):
        ids, spanned = [], []
        for turn, (read, sampled) in zip(trajectory.turns, turns, strict=True):
            start = len(ids) + len(read)
            ids += [*read, *sampled]
            spanned.append(replace(turn, span=Span(row=0, start=start, end=len(ids))))
        row = TokenRow(token_ids=ids, logprobs=None)
        siblings.append(replace(trajectory, rows=(row,), turns=tuple(spanned)))
    return replace(group, trajectories=tuple(siblings))


def game(kind="independent", *, groups=60, turns=8, noise=1.0, right=0.3, seed=0):
    """Credited groups of 8; `shifted` pays a key one turn later, `nothing` pays noise alone."""
    draw = np.random.default_rng(seed)
    for number in range(groups):
        signs = draw.integers(0, SIGNS, turns)
        hits = draw.random((8, turns)) < right
        keys = np.where(hits, signs % KEYS, (signs + draw.integers(1, KEYS, hits.shape)) % KEYS)
        paid = {"chain": np.cumprod(hits, axis=1), "nothing": 0 * hits, "shifted": np.roll(hits, 1, axis=1)}
        rewards = (paid.get(kind, hits) + noise * draw.normal(size=hits.shape)) / turns
        if kind == "delayed":
            rewards[:, -1], rewards[:, :-1] = rewards.sum(1), 0.0
        ends = [turns] * 8 if kind != "stop" else [min(turns, 1 + int(row.cumprod().sum())) for row in hits]
        scored = group_of([row[:end].tolist() for row, end in zip(rewards, ends, strict=True)])
        tokens = [
            [((100 + int(s),), (200 + int(k),)) for s, k in zip(signs[:end], row[:end], strict=True)]
            for row, end in zip(keys, ends, strict=True)
        ]
        named = replace(with_tokens(scored, tokens), item_id=f"item {number}", group_id=f"{number}/0")
        yield credited(named, "turn_return", policy="keys")
