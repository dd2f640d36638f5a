"""Run what README.md plans: every run is a line of a CSV, runs that it has are skipped, processes share it.

PYTHONPATH=.. python learn.py runs.csv
"""

import argparse
import asyncio
import csv
import fcntl
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import torch
from train_smol import GROUP_SIZE, NAME, TOP, Batches, InProcessPolicy, load, train

from environments.record.recorder import Recorder
from environments.run.discovery import find_environment
from environments.run.experiment import origin_of

ARMS = {
    "gamma-1": {"estimator": "turn_return"},
    "gamma-0.5": {"estimator": "turn_return", "estimator_params": {"gamma": 0.5}},
    "gamma-0": {"estimator": "turn_return", "estimator_params": {"gamma": 0.0}},
    "rloo": {"estimator": "rloo"},
    "grpo": {"estimator": "grpo"},
}
NOISY, PLAIN = ("quiz", "none", 1.0), ("quiz", "none", 0.0)
WHOLE, SEARCH = ("quiz", "whole", 1.0), ("higher_lower", "whole", 0.0)
RATES, TUNING_SEEDS, SEEDS, FEW_SEEDS, STEPS, LAST = (1e-4, 2e-4, 4e-4), (10, 11), range(5), range(3), 40, 10
ARRIVED, WINDOW = {"quiz": 0.7, "higher_lower": 0.5}, 5
FIELDS = "game arm rollouts memory noise rate seed role cpu_s arrived success".split()


def plan(rows):
    """Yield runs in their order, fresh ones as soon as the tuning runs of their arm are in `rows`."""
    yield from _tuned(rows, NOISY)
    for arm in ("gamma-1", "gamma-0", "rloo"):
        yield from _fresh(rows, NOISY, arm, 64, FEW_SEEDS)
    yield from _tuned(rows, PLAIN)
    for arm in ("gamma-0.5", "gamma-1", "rloo"):
        yield from _fresh(rows, WHOLE, arm, 16, FEW_SEEDS)
    yield from _tuned(rows, SEARCH)


def _tuned(rows, task):
    for seed in TUNING_SEEDS:
        for arm in ARMS:
            for rate in RATES:
                yield _run(task, arm, 16, rate, seed, "tuning")
    for arm in ARMS:
        yield from _fresh(rows, task, arm, 16, SEEDS)


def _fresh(rows, task, arm, rollouts, seeds):
    if rate := chosen_rate(rows, NOISY if task == WHOLE else task, arm):
        for seed in seeds:
            yield _run(task, arm, rollouts, rate, seed, "fresh")


def _run(task, arm, rollouts, rate, seed, role):
    game, memory, noise = task
    values = (game, arm, rollouts, memory, noise, rate, seed, role)
    return dict(zip(FIELDS, map(str, values), strict=False))


def chosen_rate(rows, task, arm):
    """The rate with the highest success of the last steps over the tuning seeds; the smaller of equals."""
    game, memory, noise = task
    found = {}
    for row in rows:
        if (row["game"], row["memory"], float(row["noise"]), row["arm"]) == (game, memory, noise, arm):
            if row["role"] == "tuning":
                found.setdefault(float(row["rate"]), []).append(last_success(row))
    if sum(map(len, found.values())) < len(RATES) * len(TUNING_SEEDS):
        return None
    return max(sorted(found), key=lambda rate: fmean(found[rate]))


def last_success(row):
    return fmean([float(each) for each in row["success"].split()][-LAST:])


def key(run):
    return tuple(run[name] for name in FIELDS[:8])


def read_rows(path):
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@contextmanager
def locked(path):
    """Yield whether this process has the run; a process that ends gives its runs back."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


async def learn(sampler, run):
    settings = {"seed": int(run["seed"]), **ARMS[run["arm"]]}
    if run["game"] == "quiz":
        settings |= {"noise": float(run["noise"]), "memory": run["memory"]}
    groups = int(run["rollouts"]) // GROUP_SIZE
    schedule = {"rate": float(run["rate"]), "steps": STEPS, "groups": groups}
    env_class = find_environment(run["game"])
    return [each async for each in train(sampler, env_class, settings, **schedule)]


def arrived(game, success):
    means = (fmean(success[end - WINDOW : end]) for end in range(WINDOW, len(success) + 1))
    return next((str(end) for end, mean in enumerate(means, WINDOW) if mean >= ARRIVED[game]), "")


def run_all(sampler, path):
    weights = [*sampler.model.model.layers[-TOP:].parameters()]
    initial = [each.detach().clone() for each in weights]
    while run := _next_run(path):
        with locked(path.with_suffix(".locks") / "-".join(key(run))) as mine:
            if not mine or key(run) in map(key, read_rows(path)):
                continue
            with torch.no_grad():
                for weight, before in zip(weights, initial, strict=True):
                    weight.copy_(before)
            cpu = time.process_time()
            success = asyncio.run(learn(sampler, run))
            line = run | {
                "cpu_s": f"{time.process_time() - cpu:.1f}",
                "arrived": arrived(run["game"], success),
                "success": " ".join(f"{each:.4f}" for each in success),
            }
            _append(path, line)
            print(*key(run), line["cpu_s"], f"{last_success(line):.3f}", flush=True)


def _next_run(path):
    rows = read_rows(path)
    done = set(map(key, rows))
    for run in plan(rows):
        if key(run) not in done:
            with locked(path.with_suffix(".locks") / "-".join(key(run))) as mine:
                if mine:
                    return run
    return None


def _append(path, line):
    with path.open("a", newline="") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        writer = csv.DictWriter(file, FIELDS)
        if not file.tell():
            writer.writeheader()
        writer.writerow(line)


async def record(sampler, game, groups, folder, **settings):
    """Record the untrained model, for `turnwise credit`."""
    env_class = find_environment(game)
    config = env_class.env_config_cls(
        seed=500, group_size=GROUP_SIZE, max_tokens_per_turn=1, on_cut="respond", failed_score=-9.0,
        max_items=groups, estimator="turn_return", **settings,
    )  # fmt: skip
    policy = InProcessPolicy(sampler.renderer, name=NAME)
    policy.use(Batches(sampler, gather_s=0.03), weight_version="step-0")
    async with env_class(config, policy=policy) as env:
        recorder = Recorder(folder, fresh=True)
        recorder.begin(origin_of(env))
        for task in env.tasks():
            recorder.append(await env.run_group(task))
        recorder.close()


def main():
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("csv", type=Path, help="runs.csv; or a folder, with --record")
    parser.add_argument("--record", action="store_true", help="record the untrained model instead")
    given = parser.parse_args()
    sampler = load()
    if given.record:
        asyncio.run(record(sampler, "quiz", 120, given.csv / "quiz.jsonl", noise=1.0, memory="none"))
        asyncio.run(record(sampler, "higher_lower", 24, given.csv / "higher_lower.jsonl"))
    else:
        run_all(sampler, given.csv)


if __name__ == "__main__":
    main()
