"""A tiny transformer learns the game in TRL: with the credit of each turn, and with TRL's own scalar GRPO.

All arms take the same kind of rollouts from the same warm start; they differ in the advantages alone.
"""

import argparse
import json
import math
import multiprocessing
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch
import transformers
from curves import drawn
from game import LENGTH, Signs
from trl import GRPOConfig, GRPOTrainer
from warm_start import tokenizer, warm_started

from environments.trainers.trl import Rollouts, TurnwiseGRPOTrainer, rollout_score

STEPS, WARM_UP, IMITATION, GROUPS, GROUP_SIZE = 40, 5, 600, 4, 8
SEEDS, TUNING_SEEDS = (0, 1, 2), (10, 11)
GAMMAS = {"gamma-0": 0.0, "gamma-1": 1.0, "scalar": None}
"""The arms: `turn_return` with this discount a turn; `None`: TRL's own credit, of the whole rollout."""
RATES = {"gamma-0": 3e-3, "gamma-1": 1e-3, "scalar": 1e-3}
"""The best with half of the rollouts a step, on other seeds; `--tune` runs `GRID` with `TUNING_SEEDS`."""
GRID = (1e-3, 3e-3)
REACHED, WINDOW = 0.8, 5
"""Mean share of right letters, over so many steps."""


class Watch(transformers.TrainerCallback):
    """The share of right letters in each step's rollouts, and what must hold at each."""

    def __init__(self, rollouts):
        self.rollouts, self.shares = rollouts, []

    def on_step_end(self, args, state, control, **_):
        rolled_out = [each for group in self.rollouts.groups for each in group.group.trajectories]
        assert {version for each in rolled_out for version in each.weight_versions} == {
            f"step-{state.global_step - 1}"
        }
        assert len(self.rollouts.step.scores) == GROUPS * GROUP_SIZE
        self.shares.append(statistics.mean(each.metrics["right"] for each in rolled_out))

    def on_log(self, args, state, control, logs=None, **_):
        assert math.isfinite(float((logs or {}).get("loss", 0.0)))


def settings(folder, steps, rate, seed):
    """The same for all arms."""
    return GRPOConfig(
        output_dir=folder,
        max_steps=steps,
        num_generations=GROUP_SIZE,
        per_device_train_batch_size=GROUPS * GROUP_SIZE,
        learning_rate=rate,
        # Adam's first steps are as long as any, whatever the gradient: without this they are of noise.
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=WARM_UP,
        loss_type="dr_grpo",
        max_completion_length=2 * LENGTH,
        scale_rewards="none",
        seed=seed,
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )


def learned(start, steps, job):
    """The shares of right letters of an arm, step by step; in a process of its own."""
    arm, rate, seed = job
    torch.set_num_threads(1)
    model = transformers.Qwen2ForCausalLM.from_pretrained(start, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        shares = trained(arm, model, settings(folder, steps, rate, seed))
    print(f"{arm:7} {rate:g} seed {seed}: {' '.join(f'{each:.2f}' for each in shares)}", flush=True)
    return shares


def trained(arm, model, args):
    """The share of right letters in the rollouts that each step learned from."""
    gamma = GAMMAS[arm]
    credit = {} if gamma is None else {"estimator": "turn_return", "estimator_params": {"gamma": gamma}}
    config = Signs.env_config_cls(seed=args.seed, max_tokens_per_turn=8, failed_score=-2.0, **credit)
    with Rollouts(partial(Signs, config)) as rollouts:
        more = {"processing_class": tokenizer(), "callbacks": [watch := Watch(rollouts)]}
        if gamma is not None:
            trainer = TurnwiseGRPOTrainer(model, args, rollouts, **more)
        else:
            trainer = GRPOTrainer(model, rollout_score, args, rollouts.dataset, rollout_func=rollouts, **more)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return watch.shares


def reached(shares):
    """Steps until the mean of a window was high enough; `None`: it never was."""
    ends = range(WINDOW, len(shares) + 1)
    means = (statistics.mean(shares[end - WINDOW : end]) for end in ends)
    return next((end for end, mean in zip(ends, means, strict=True) if mean >= REACHED), None)


def table(curves):
    """A row per arm and learning rate; every seed stands in it."""
    lines = [
        f"| credit | learning rate | steps to {REACHED}, by seed | median | last 10 steps, by seed |",
        "|---|---|---|---|---|",
    ]
    for (arm, rate), seeds in curves.items():
        steps = [reached(shares) for shares in seeds]
        median = statistics.median([math.inf if each is None else each for each in steps])
        last = [f"{statistics.mean(shares[-10:]):.2f}" for shares in seeds]
        shown = " ".join("–" if each is None else str(each) for each in steps)
        lines.append(
            f"| {arm} | {rate:g} | {shown} | {'–' if median == math.inf else f'{median:g}'} | {' '.join(last)} |"
        )
    return "\n".join(lines)


def options():
    """What the command was given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("learn_trl_out"))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument(
        "--tune", action="store_true", help="all learning rates of the grid, with the tuning seeds"
    )
    parser.add_argument("--tenth", action="store_true", help="a tenth of it, to see that it runs")
    given = parser.parse_args()
    if given.tenth:
        given.steps, given.seeds = given.steps // 10, given.seeds[:1]
    return given


def main():
    """All arms with every seed; two runs at a time."""
    given = options()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    start = given.out / "warm_start"
    if not start.exists():
        warm_started(IMITATION // (10 if given.tenth else 1)).save_pretrained(start)
    print(f"warm start: {time.monotonic() - began:.0f} s", flush=True)
    seeds = TUNING_SEEDS if given.tune else given.seeds
    rates = {arm: GRID if given.tune else (rate,) for arm, rate in RATES.items()}
    jobs = [(arm, rate, seed) for seed in seeds for arm in rates for rate in rates[arm]]
    curves = {}
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for (arm, rate, _), shares in zip(
            jobs, pool.map(partial(learned, start, given.steps), jobs), strict=True
        ):
            curves.setdefault((arm, rate), []).append(shares)
    written = [{"arm": arm, "rate": rate, "shares": runs} for (arm, rate), runs in curves.items()]
    (given.out / "curves.json").write_text(json.dumps(written))
    (given.out / "curves.svg").write_text(drawn(curves))
    (given.out / "table.md").write_text(table(curves) + "\n")
    print(f"{table(curves)}\n{time.monotonic() - began:.0f} s; files in {given.out}")


if __name__ == "__main__":
    main()
