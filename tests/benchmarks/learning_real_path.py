"""The noisy game through the whole path: `run_group`, renderer, rows, advantages, loss. Needs torch and TRL.

    .venv/bin/python -m tests.benchmarks.learning_real_path            # with the stored rates
    .venv/bin/python -m tests.benchmarks.learning_real_path --tune     # finds the rates again

The environment and the warm start are those of docs/examples/learn_trl; the model, a Qwen2 of two layers, 64
wide, with a vocabulary of 2048, plays by `InProcessPolicy`, and the loss is Σ A log π over the trained tokens
of the columns that trainers get. Both commands write `learning_table.json`.
"""

import argparse
import asyncio
import copy
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean

import torch

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.trainers.completion_columns import CompletionColumns
from environments.trainers.in_process_policy import Batches, InProcessPolicy
from environments.trainers.trl_sampling import CachedSampler
from tests.benchmarks.learning_docs import REAL_PATH, store, stored

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "learn_trl"
ARMS = {
    "gamma=1": {"estimator": "turn_return"},
    "gamma=0": {"estimator": "turn_return", "estimator_params": {"gamma": 0.0}},
    "scalar": {"estimator": "rloo"},
}
GROUPS, SIBLINGS, STEPS, LAST, WARM_UP, IMITATION = 2, 8, 60, 10, 5, 600
SEEDS, TUNING_SEEDS = tuple(range(6)), (100, 101, 102)
GRID = (0.0003, 0.001, 0.003)


async def learned(start, arm, rate, seed):
    """The share of right letters in each step's rollouts."""
    from game import Signs

    model, renderer = copy.deepcopy(start), ChatMLRenderer.embedded()
    sample = Batches(CachedSampler(model, renderer.stop_ids))
    policy = InProcessPolicy(renderer, name="tiny")
    config = Signs.env_config_cls(
        seed=seed, group_size=SIBLINGS, max_tokens_per_turn=8, failed_score=-2.0, **ARMS[arm]
    )
    adam = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.95))
    shares = []
    async with Signs(config, policy=policy) as env:
        tasks = iter(env.tasks())
        for step in range(STEPS):
            policy.use(sample, weight_version=f"step-{step}")
            groups = await asyncio.gather(*(env.run_group(next(tasks)) for _ in range(GROUPS)))
            columns = CompletionColumns()
            for each in groups:
                columns.add_group(each)
            rolled_out = [each for group in groups for each in group.group.trajectories]
            shares.append(fmean(each.metrics["right"] for each in rolled_out))
            adam.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / WARM_UP)
            adam.zero_grad()
            loss_of(model, columns).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
    return shares


def loss_of(model, columns):
    """- Σ A log π over a step's trained tokens, over its rollouts."""
    rows = [before + after for before, after in zip(columns.prompt_ids, columns.completion_ids, strict=True)]
    advantages = [
        [0.0] * (len(before) - 1) + after
        for before, after in zip(columns.prompt_ids, columns.advantages, strict=True)
    ]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    weights = torch.tensor([row + [0.0] * (width - 1 - len(row)) for row in advantages])
    trained = weights != 0
    hidden = model.model(ids).last_hidden_state[:, :-1][trained]
    log_p = model.lm_head(hidden).log_softmax(-1).gather(1, ids[:, 1:][trained][:, None])[:, 0]
    return -(weights[trained] * log_p).sum() / columns.rows


def warm_start():
    """A model that imitates a scripted agent, made once."""
    from warm_start import new_model, warm_started

    kept = Path(tempfile.gettempdir()) / "turnwise_learning_real_path.pt"
    if not kept.exists():
        torch.save(warm_started(IMITATION).state_dict(), kept)
    model = new_model()
    model.load_state_dict(torch.load(kept))
    return model.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tune", action="store_true", help="find the learning rates")
    given = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(EXAMPLE))
    started, start = time.process_time(), warm_start()
    seeds, made = (TUNING_SEEDS if given.tune else SEEDS), {}
    for arm in ARMS:
        by_rate = {}
        for rate in GRID if given.tune else (stored()["rates"][REAL_PATH][arm],):
            curves = [asyncio.run(learned(start, arm, rate, seed)) for seed in seeds]
            by_rate[rate] = [round(fmean(each[-LAST:]), 3) for each in curves]
            print(f"{arm:9} {rate:<6g} {' '.join(f'{each:.2f}' for each in by_rate[rate])}", flush=True)
        best = max(by_rate, key=lambda rate, of=by_rate: fmean(of[rate]))
        made[arm] = best if given.tune else by_rate[best]
    store("rates" if given.tune else "shares", REAL_PATH, made)
    spent = time.process_time() - started
    store("tuning_cpu_s" if given.tune else "cpu_s", REAL_PATH, round(spent))
    print(f"{spent:.0f} s of CPU time")


if __name__ == "__main__":
    main()
