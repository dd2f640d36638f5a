"""How fast credit is: every estimator on 1,000 groups, plain arrays beside a numpy loop, and the import.

    python -m tests.benchmarks.bench_credit [--groups 1000] [--siblings 16] [--turns 50] [--tokens 8192]

Budgets: `turn_return` under 2 s on one core, importing `environments.credit` under 0.15 s; `token_advantages`
at most 4 times the loop, and twice the memory of what it is given, with few turns a row or many.
"""

import argparse
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any

import numpy as np

from environments.credit import ESTIMATORS, describe, estimate
from environments.credit.array_credit import token_advantages
from environments.testing import group_of
from environments.trajectory import TrajectoryGroup

IMPORT_TRIES = 7
ARRAY_TRIES = 5


def a_group(siblings: int, turns: int, seed: int) -> TrajectoryGroup:
    """Full-length trajectories with a reward on every turn, an outcome, and states that repeat."""
    draw = random.Random(seed)
    return group_of(
        [[draw.gauss(0, 1) for _ in range(turns)] for _ in range(siblings)],
        outcomes=[draw.gauss(0, 1) for _ in range(siblings)],
        anchors=[[str(draw.randrange(turns)) for _ in range(turns)] for _ in range(siblings)],
    )


def a_batch(rows: int, tokens: int, turns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards, mask and ids of groups of 8: up to so many turns in a row, each with a reward at its end."""
    draw = np.random.default_rng(0)
    rewards, mask = np.zeros((rows, tokens), np.float32), np.zeros((rows, tokens), bool)
    for row in range(rows):
        bounds = np.sort(draw.choice(tokens - 1, 2 * draw.integers(1, turns + 1), replace=False))
        for start, end in bounds.reshape(-1, 2):
            mask[row, start:end], rewards[row, end - 1] = True, draw.normal()
    return rewards, mask, np.arange(rows) // 8


def by_hand(rewards: np.ndarray, mask: np.ndarray, group_ids: np.ndarray) -> np.ndarray:
    """What `turn_return` gives for it, as a trainer would write it."""
    advantages, returns, spans = np.zeros_like(rewards), [], []
    for row, is_sampled in zip(rewards, mask, strict=True):
        bounds = np.flatnonzero(np.diff(is_sampled, prepend=False, append=False))
        sums = np.add.reduceat(row.astype(np.float64), bounds[::2])
        returns.append(sums[::-1].cumsum()[::-1])
        spans.append(bounds.reshape(-1, 2))
    for group in np.unique(group_ids):
        members = np.flatnonzero(group_ids == group)
        longest = max(len(returns[row]) for row in members)
        values = np.full((len(members), longest), np.nan)
        for place, row in enumerate(members):
            values[place, : len(returns[row])] = returns[row]
        counts = np.isfinite(values).sum(axis=0)
        totals = np.nansum(values, axis=0)
        for place, row in enumerate(members):
            for turn, (start, end) in enumerate(spans[row]):
                own, others = values[place, turn], counts[turn] - 1
                advantages[row, start:end] = own - (totals[turn] - own) / others if others else own
    return advantages


def cost_of(credit: Callable[..., Any], batch: tuple[np.ndarray, ...]) -> tuple[float, float]:
    """The least CPU time of several runs, and the peak of memory over the size of the batch."""
    times: list[float] = []
    for _ in range(ARRAY_TRIES):
        start = process_time()
        credit(*batch)
        times.append(process_time() - start)
    tracemalloc.start()
    credit(*batch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return min(times), peak / sum(each.nbytes for each in batch)


def import_s(module: str) -> float:
    """CPU time of a fresh interpreter that imports the module, less that of one that imports nothing."""

    def least(code: str) -> float:
        times: list[float] = []
        for _ in range(IMPORT_TRIES):
            before = os.times()
            subprocess.run([sys.executable, "-c", code], check=True)
            after = os.times()
            times.append(
                after.children_user + after.children_system - before.children_user - before.children_system
            )
        return min(times)

    return least(f"import {module}") - least("pass")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--siblings", type=int, default=16)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=8192)
    options = parser.parse_args(arguments)
    # Distinct numbers, few enough groups to stay in memory: each is estimated several times.
    groups = [a_group(options.siblings, options.turns, seed) for seed in range(min(options.groups, 50))]
    write = sys.stdout.write
    write(f"import environments.credit: {import_s('environments.credit'):.2f} s (budget 0.15)\n")
    size = f"{options.groups} groups x {options.siblings} trajectories x {options.turns} turns"
    write(f"{size}, CPU time of one core\n")
    alone = [name for name in ESTIMATORS if describe(name).over_step is None]
    for name in sorted(alone, key=lambda each: (each != "turn_return", each)):
        start = process_time()
        for number in range(options.groups):
            estimate(name, groups[number % len(groups)])
        budget = " (budget 2)" if name == "turn_return" else ""
        write(f"  {name:20} {process_time() - start:6.2f} s{budget}\n")
    write(f"512 rows x {options.tokens} tokens in groups of 8, float32 and a mask of bools\n")
    for turns in (4, 16, 64):
        batch = a_batch(512, options.tokens, turns)
        np.testing.assert_allclose(token_advantages(*batch), by_hand(*batch), rtol=1e-4, atol=1e-5)
        (loop_s, loop_size), (own_s, own_size) = (
            cost_of(each, batch) for each in (by_hand, token_advantages)
        )
        write(
            f"  up to {turns:2} turns: {own_s:.3f} s, {own_s / loop_s:.1f} x the loop's {loop_s:.3f} s "
            f"(budget 4); memory {own_size:.1f} x the input (budget 2), the loop {loop_size:.1f} x\n"
        )


if __name__ == "__main__":
    main()
