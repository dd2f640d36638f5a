"""The table of learning: steps that small transformers need, by game and credit. Needs torch.

    .venv/bin/python -m tests.benchmarks.learning_table [GAME …]          # with the stored rates
    .venv/bin/python -m tests.benchmarks.learning_table --tune [GAME …]   # finds the rates again

Both write `learning_table.json` beside this file, which docs/credit.md shows. The games and the arms were
listed before any was run, and all are in the table. Rates are tuned for each game and arm with other seeds:
of `GRID`, that with the lowest mean of steps, where a run that does not arrive counts as `CAP` steps.
"""

import argparse
import sys
import time
from statistics import fmean

import torch

from tests.benchmarks.learning_docs import CAP, CURVE, TARGET, store, stored
from tests.benchmarks.noisy_turns import ARMS, EVERY, Game, Run, learn

GAMES = {
    **{
        f"{turns} turns, noise {noise:g}": Game(turns=turns, noise=noise)
        for turns in (16, 8)
        for noise in (1.0, 0.5, 0.0)
    },
    "stop": Game(turns=8, kind="stop", skill=0.5),
    "chain": Game(turns=8, kind="chain", skill=0.5),
    "delayed": Game(turns=8, kind="delayed"),
}
SEEDS, TUNING_SEEDS = tuple(range(10)), tuple(range(100, 106))
GRID = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
CONTROLLED = "gamma=1"
"""The arm whose rate the control has."""


def tuned(game):
    """The rate of each arm."""
    arms = [arm for arm in ARMS if arm != "control"]
    runs = [Run(arm=arm, rate=rate, seed=seed) for arm in arms for rate in GRID for seed in TUNING_SEEDS]

    def mean_steps(curves, arm, rate, otherwise):
        """Of all tuning seeds, where those that have not arrived count `otherwise`; that is at most `CAP`."""
        of_seeds = (curves[Run(arm=arm, rate=rate, seed=seed)] for seed in TUNING_SEEDS)
        return fmean(otherwise if (steps := steps_to(curve)) is None else steps for curve in of_seeds)

    def is_beaten(run, curves):
        now = EVERY * (len(curves[run]) - 1)
        at_least = mean_steps(curves, run.arm, run.rate, now)
        return any(at_least > mean_steps(curves, run.arm, rate, CAP) for rate in GRID)

    curves = learn(game, runs, target=TARGET, cap=CAP, is_over=is_beaten)
    rates = {}
    for arm in arms:
        means = {rate: mean_steps(curves, arm, rate, CAP) for rate in GRID}
        rates[arm] = min(means, key=means.__getitem__)
        print(
            f"  {arm:9} {rates[arm]:<6g} of",
            *(f"{rate:g}: {mean:.0f} " for rate, mean in means.items()),
            flush=True,
        )
    return rates | {"control": rates[CONTROLLED]}


def learned(game, rates):
    """Each arm's curves, by seed."""
    runs = [Run(arm=arm, rate=rates[arm], seed=seed) for arm in ARMS for seed in SEEDS]
    curves = learn(game, runs, target=TARGET, cap=CAP)
    return {arm: [curves[run] for run in runs if run.arm == arm] for arm in ARMS}


def steps_to(curve, target=TARGET):
    """Until P(right key) is `target`; `None`: it was not, within the steps."""
    return next((EVERY * index for index, chance in enumerate(curve) if chance >= target), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("games", nargs="*", metavar="GAME", help=", ".join(GAMES))
    parser.add_argument("--tune", action="store_true", help="find the learning rates")
    given = parser.parse_args()
    if unknown := set(given.games).difference(GAMES):
        sys.exit(f"no game {unknown.pop()!r}; choose of: {', '.join(GAMES)}")
    torch.set_num_threads(1)
    for name in given.games or GAMES:
        print(name, flush=True)
        start = time.process_time()
        if given.tune:
            store("rates", name, tuned(GAMES[name]))
        else:
            curves = learned(GAMES[name], stored()["rates"][name])
            steps = {arm: [steps_to(each) for each in seeds] for arm, seeds in curves.items()}
            store("steps", name, steps)
            for arm, each in steps.items():
                print(f"  {arm:9} {' '.join('-' if n is None else str(n) for n in each)}", flush=True)
            if name == CURVE:
                rounded = {
                    arm: [[round(p, 3) for p in each] for each in seeds] for arm, seeds in curves.items()
                }
                store("curves", name, rounded)
        spent = time.process_time() - start
        store("tuning_cpu_s" if given.tune else "cpu_s", name, round(spent))
        print(f"  {spent:.0f} s of CPU time", flush=True)


if __name__ == "__main__":
    main()
