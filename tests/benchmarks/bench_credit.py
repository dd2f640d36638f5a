"""How fast credit is: every estimator on 1,000 groups, and the import.

    python -m tests.benchmarks.bench_credit [--groups 1000] [--siblings 16] [--turns 50]

Budgets: `turn_return` under 2 s on one core, importing `environments.credit` under 0.15 s.
"""

import argparse
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from time import process_time

from environments.credit import ESTIMATORS, estimate
from environments.testing import group_of
from environments.trajectory import TrajectoryGroup

IMPORT_TRIES = 7


def a_group(siblings: int, turns: int, seed: int) -> TrajectoryGroup:
    """Full-length trajectories with a reward on every turn, an outcome, and states that repeat."""
    draw = random.Random(seed)
    return group_of(
        [[draw.gauss(0, 1) for _ in range(turns)] for _ in range(siblings)],
        outcomes=[draw.gauss(0, 1) for _ in range(siblings)],
        anchors=[[str(draw.randrange(turns)) for _ in range(turns)] for _ in range(siblings)],
    )


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
    options = parser.parse_args(arguments)
    # Distinct numbers, few enough groups to stay in memory: each is estimated several times.
    groups = [a_group(options.siblings, options.turns, seed) for seed in range(min(options.groups, 50))]
    write = sys.stdout.write
    write(f"import environments.credit: {import_s('environments.credit'):.2f} s (budget 0.15)\n")
    size = f"{options.groups} groups x {options.siblings} trajectories x {options.turns} turns"
    write(f"{size}, CPU time of one core\n")
    for name in sorted(ESTIMATORS, key=lambda each: (each != "turn_return", each)):
        start = process_time()
        for number in range(options.groups):
            estimate(name, groups[number % len(groups)])
        budget = " (budget 2)" if name == "turn_return" else ""
        write(f"  {name:20} {process_time() - start:6.2f} s{budget}\n")


if __name__ == "__main__":
    main()
