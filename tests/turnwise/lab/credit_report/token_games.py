"""Games whose best γ is known, and their records with tokens: a sign is read, a key is pressed."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from environments.credit import credited
from environments.testing import group_of
from environments.trajectory import Span, TokenRow

SIGNS, KEYS, SIBLINGS = 8, 4, 8


@dataclass(frozen=True, kw_only=True)
class Game:
    """`shifted` pays a key one turn later, `trap` takes twice of it back then, `nothing` pays noise alone."""

    kind: str = "independent"
    turns: int = 8
    noise: float = 1.0
    right: float = 0.3
    """Probability of the right key; the others share the rest."""


@dataclass(frozen=True, kw_only=True)
class Play:
    signs: NDArray[np.int64]
    """[group][turn]"""
    keys: NDArray[np.int64]
    """[group][sibling][turn], as the following."""
    played: NDArray[np.bool_]
    rewards: NDArray[np.float64]


def play(game, groups, draw):
    signs = draw.integers(0, SIGNS, (groups, game.turns))
    right = draw.random((groups, SIBLINGS, game.turns)) < game.right
    others = (signs[:, None] + draw.integers(1, KEYS, right.shape)) % KEYS
    keys = np.where(right, (signs % KEYS)[:, None], others)
    before = np.concatenate([np.zeros_like(right[..., :1]), right[..., :-1]], axis=2).astype(float)
    paid = {
        "chain": np.cumprod(right, axis=2),
        "nothing": 0.0 * right,
        "shifted": before,
        "trap": right - 2 * before,
    }
    played = np.ones(right.shape, dtype=bool)
    if game.kind == "stop":
        played[..., 1:] = np.cumprod(right, axis=2)[..., :-1] > 0
    rewards = (paid.get(game.kind, 1.0 * right) + game.noise * draw.normal(size=right.shape)) / game.turns
    if game.kind == "delayed":
        rewards[..., -1], rewards[..., :-1] = rewards.sum(axis=2), 0.0
    return Play(signs=signs, keys=keys, played=played, rewards=rewards * played)


def credited_groups(given):
    """Yield the groups of a play, with tokens."""
    for number, (signs, keys, played, rewards) in enumerate(
        zip(given.signs, given.keys, given.played, given.rewards, strict=True)
    ):
        ends = played.sum(axis=1).tolist()
        scored = group_of([row[:end].tolist() for row, end in zip(rewards, ends, strict=True)])
        tokens = [
            [((100 + int(s),), (200 + int(k),)) for s, k in zip(signs[:end], row[:end], strict=True)]
            for row, end in zip(keys, ends, strict=True)
        ]
        named = replace(with_tokens(scored, tokens), item_id=f"item {number}", group_id=f"{number}/0")
        yield credited(named, "turn_return", policy="keys")


def game(kind="independent", *, groups=60, seed=0, **options):
    return credited_groups(play(Game(kind=kind, **options), groups, np.random.default_rng(seed)))


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
