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
from dataclasses import replace
from statistics import fmean

import torch

from tests.benchmarks.learning_docs import (
    CAP,
    CURVE,
    LARGE_STEP_TASKS,
    SHORT,
    TARGET,
    large_step,
    store,
    stored,
)
from tests.benchmarks.noisy_turns import ARMS, EVERY, SIBLINGS, Game, Run, learn

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
LARGE_STEPS = {
    large_step(name, rollouts): replace(GAMES[name], groups=rollouts // SIBLINGS)
    for name in LARGE_STEP_TASKS
    for rollouts in (64, 512)
}
"""Games at larger steps: with fewer seeds and rates, since one run costs as much as 64 of the others."""
SEEDS, TUNING_SEEDS = tuple(range(10)), tuple(range(100, 106))
GRID = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
FEW_SEEDS, FEW_TUNING_SEEDS, SHORT_GRID = SEEDS[:5], TUNING_SEEDS[:3], (0.004, 0.008, 0.016, 0.032)
CONTROLLED = "gamma=1"
"""The arm whose rate the control has."""


def tuned(game, arms=tuple(arm for arm in ARMS if arm != "control"), rates=GRID, seeds=TUNING_SEEDS):
    """Return the rate of each arm."""
    runs = [Run(arm=arm, rate=rate, seed=seed) for arm in arms for rate in rates for seed in seeds]

    def mean_steps(curves, arm, rate, otherwise):
        """Of all tuning seeds, where those that have not arrived count `otherwise`; that is at most `CAP`."""
        of_seeds = (curves[Run(arm=arm, rate=rate, seed=seed)] for seed in seeds)
        return fmean(otherwise if (steps := steps_to(curve)) is None else steps for curve in of_seeds)

    def is_beaten(run, curves):
        now = EVERY * (len(curves[run]) - 1)
        at_least = mean_steps(curves, run.arm, run.rate, now)
        return any(at_least > mean_steps(curves, run.arm, rate, CAP) for rate in rates)

    curves = learn(game, runs, target=TARGET, cap=CAP, is_over=is_beaten)
    found = {}
    for arm in arms:
        means = {rate: mean_steps(curves, arm, rate, CAP) for rate in rates}
        found[arm] = min(means, key=means.__getitem__)
        print(
            f"  {arm:9} {found[arm]:<6g} of",
            *(f"{rate:g}: {mean:.0f} " for rate, mean in means.items()),
            flush=True,
        )
    return found | {"control": found[CONTROLLED]}


def learned(game, rates, arms=tuple(ARMS), seeds=SEEDS):
    """Return each arm's curves, by seed."""
    runs = [Run(arm=arm, rate=rates[arm], seed=seed) for arm in arms for seed in seeds]
    curves = learn(game, runs, target=TARGET, cap=CAP)
    return {arm: [curves[run] for run in runs if run.arm == arm] for arm in arms}


def steps_to(curve, target=TARGET):
    """Until P(right key) is `target`; `None`: it was not, within the steps."""
    return next((EVERY * index for index, chance in enumerate(curve) if chance >= target), None)


def measure(name, *, tune):
    if name in LARGE_STEPS:
        game, few = LARGE_STEPS[name], {"arms": SHORT}
        if tune:
            store("rates", name, tuned(game, rates=SHORT_GRID, seeds=FEW_TUNING_SEEDS, **few))
            return
        curves = learned(game, stored()["rates"][name], seeds=FEW_SEEDS, **few)
    else:
        game = GAMES[name]
        if tune:
            store("rates", name, tuned(game))
            return
        rates = stored()["rates"][name]
        curves = learned(game, rates)
        equal = learned(game, {CONTROLLED: rates["scalar"]}, arms=(CONTROLLED,))
        store("steps at the scalar's rate", name, [steps_to(each) for each in equal[CONTROLLED]])
    steps = {arm: [steps_to(each) for each in seeds] for arm, seeds in curves.items()}
    store("steps", name, steps)
    for arm, each in steps.items():
        print(f"  {arm:9} {' '.join('-' if n is None else str(n) for n in each)}", flush=True)
    if name == CURVE:
        rounded = {arm: [[round(p, 3) for p in each] for each in seeds] for arm, seeds in curves.items()}
        store("curves", name, rounded)


def main():
    known = (*GAMES, *LARGE_STEPS)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("games", nargs="*", metavar="GAME", help=" · ".join(known))
    parser.add_argument("--tune", action="store_true", help="find the learning rates")
    given = parser.parse_args()
    if unknown := set(given.games).difference(known):
        sys.exit(f"no game {unknown.pop()!r}; choose of: {' · '.join(known)}")
    torch.set_num_threads(1)
    for name in given.games or known:
        print(name, flush=True)
        start = time.process_time()
        measure(name, tune=given.tune)
        spent = time.process_time() - start
        store("tuning_cpu_s" if given.tune else "cpu_s", name, round(spent))
        print(f"  {spent:.0f} s of CPU time", flush=True)


if __name__ == "__main__":
    main()
