"""The credit report's statements against the truth of eight games, which other code computes.

    python -m tests.benchmarks.credit_report_truth [--records 50]

The truth of a game is that of 20,000 groups: the exact gradient of each under a softmax table, with returns
and baselines written here anew. Each record is measured as the report does and compared with the truth; a
statement is false if its sign is wrong or its interval excludes the truth. n80, the number of groups with
which 80 % of the records state the groups needed, is compared with what records of half to all of it name.
"""

import argparse
import math
from dataclasses import dataclass

import numpy as np

from tests.turnwise.lab.credit_report.token_games import KEYS, SIBLINGS, SIGNS, Game, play
from turnwise.lab.credit_report.arms import DEFAULT_ARMS
from turnwise.lab.credit_report.signal_noise import Comparison, measure

GAMES = {
    "independent, noise 1": Game(noise=1.0),
    "independent, noise 0": Game(noise=0.0),
    "stop": Game(kind="stop", noise=0.0, right=0.6),
    "chain": Game(kind="chain", noise=0.0, right=0.6),
    "delayed": Game(kind="delayed", noise=0.5),
    "paid a turn later": Game(kind="shifted", noise=0.5),
    "trap": Game(kind="trap", noise=0.5),
    "nothing to learn": Game(kind="nothing", noise=1.0),
}
GAMMAS = (1.0, 0.7, 0.5, 0.0)
NAMES = [str(arm) for arm in DEFAULT_ARMS]
SIZES = (10, 20, 40, 80, 160)
SHOWN = (20, 80)


@dataclass(frozen=True, kw_only=True)
class Truth:
    """By arm, beside γ = 1."""

    noise: np.ndarray
    direction: np.ndarray
    """0 within four standard errors of none."""
    groups: np.ndarray
    snr: float
    """Of γ = 1, per group."""


def gradients_of(game, given):
    """[group][arm][parameter of the table]"""
    groups, turns = given.signs.shape
    wrong = (1 - game.right) / (KEYS - 1)
    chances = np.where(np.arange(KEYS) == (np.arange(SIGNS) % KEYS)[:, None], game.right, wrong)
    scores = (np.eye(KEYS)[given.keys] - chances[given.signs][:, None]) * given.played[..., None]
    total = given.rewards.sum(axis=2, keepdims=True)
    others = (total.sum(axis=1, keepdims=True) - total) / (SIBLINGS - 1)
    advantages = [np.broadcast_to(total - others, given.rewards.shape)]
    for gamma in reversed(GAMMAS):
        returns = given.rewards.copy()
        for turn in range(turns - 2, -1, -1):
            returns[..., turn] += gamma * returns[..., turn + 1]
        returns *= given.played
        peers = given.played.sum(axis=1, keepdims=True) - 1
        baseline = (returns.sum(axis=1, keepdims=True) - returns) / np.maximum(peers, 1)
        advantages.insert(0, returns - np.where(peers > 0, baseline, 0.0))
    found = np.zeros((groups, len(advantages), turns, SIGNS, KEYS), dtype=np.float32)
    for arm, values in enumerate(advantages):
        of_turns = np.einsum("gst,gstk->gtk", values, scores) / SIBLINGS
        found[np.arange(groups)[:, None], arm, np.arange(turns), given.signs] = of_turns
    return found.reshape(groups, len(advantages), -1)


def truth_of(game, *, groups=20_000, seed=99, chunks=20):
    draw = np.random.default_rng(seed)
    means, squares, own = [], 0.0, 0.0
    for _ in range(chunks):
        each = gradients_of(game, play(game, groups // chunks, draw)).astype(float)
        means.append(each.mean(axis=0))
        squares = squares + np.einsum("gad,gad->a", each, each)
        own = own + np.einsum("gad,gd->a", each, each[:, 0])
    means = np.array(means)  # [chunk][arm][parameter]
    mean = means.mean(axis=0)
    variance = (squares / groups - np.einsum("ad,ad->a", mean, mean)) * groups / (groups - 1)
    along = (mean @ mean[0] * groups - own / groups) / (groups - 1)
    left_out = (means.sum(axis=0) - means) / (chunks - 1)
    jackknife = np.einsum("cad,cd->ca", left_out, left_out[:, 0]).std(axis=0) * math.sqrt(chunks - 1)
    known = np.abs(along) > 4 * jackknife
    snr = along / np.sqrt(variance * max(along[0], 1e-300))
    ratio = np.divide(snr, snr[0], out=np.zeros_like(snr), where=known[0])
    return Truth(
        noise=variance[0] / variance,
        direction=np.sign(along) * known,
        groups=np.sign(ratio) * ratio**2,
        snr=float(snr[0]) if known[0] else 0.0,
    )


def false_statements(comparison, arm, truth):
    def misses(interval, value):
        high = math.inf if interval is None or interval.high is None else interval.high
        return interval is not None and not interval.low <= value <= high

    wrong = {
        "noise": misses(comparison.noise, truth.noise[arm]),
        "direction": comparison.direction not in (0, truth.direction[arm]),
        "groups": misses(comparison.groups, max(0.0, truth.groups[arm])),
    }
    return [what for what, is_wrong in wrong.items() if is_wrong]


def measure_records(game, groups, records, draw):
    """Return for each record its comparisons by arm, arms that equal γ = 1 left out."""
    found = []
    for _ in range(records):
        gradients = gradients_of(game, play(game, groups, draw))
        by_arm = measure(gradients, range(groups), [True] * len(NAMES))
        found.append({arm: each for arm, each in by_arm.items() if isinstance(each, Comparison)})
    return found


def find_n80(by_size, arm):
    """Return n80 and the least and largest n80 that records of half to all of it name; None: beyond SIZES."""
    sizes = [*by_size]
    shares = [np.mean([each[arm].groups is not None for each in found]) for found in by_size.values()]
    named = [np.median([each[arm].groups_until.value for each in found]) for found in by_size.values()]
    if max(shares) < 0.8:
        return None
    n80 = float(np.exp(np.interp(0.8, np.maximum.accumulate(shares), np.log(sizes))))
    near = [value for size, value in zip(sizes, named, strict=True) if n80 / 2 <= size <= n80 * 1.5]
    return n80, min(near), max(near)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=50)
    parser.add_argument("--games", nargs="+", default=list(GAMES))
    given = parser.parse_args()
    titles = ["game", "noise", "groups needed"]
    for groups in SHOWN:
        titles += [f"snr·√{groups}", "noise", "direction", "groups", "false"]
    print("|", " | ".join([*titles, "n80", "named"]), "|")
    print("|---" * (len(titles) + 2) + "|")
    zero = NAMES.index("γ = 0")
    for name in given.games:
        truth, draw = truth_of(GAMES[name]), np.random.default_rng(7)
        by_size = {size: measure_records(GAMES[name], size, given.records, draw) for size in SIZES}
        direction = {1: "", 0: "no direction", -1: "against"}[int(truth.direction[zero])]
        cells = [name, f"{truth.noise[zero]:.1f} ×", direction or f"{truth.groups[zero]:.2f} ×"]
        for groups in SHOWN:
            found = by_size[groups]
            stated = [[each[zero].noise, each[zero].direction, each[zero].groups] for each in found]
            shares = np.mean([[bool(what) for what in each] for each in stated], axis=0)
            false = [any(false_statements(each, arm, truth) for arm, each in one.items()) for one in found]
            cells += [f"{truth.snr * groups**0.5:.2f}", *(f"{x:.0%}" for x in (*shares, np.mean(false)))]
        n80 = find_n80(by_size, zero) if truth.direction[zero] > 0 else None
        cells += ["-", "-"] if n80 is None else [f"{n80[0]:.0f}", f"{n80[1]:.0f} to {n80[2]:.0f}"]
        print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
