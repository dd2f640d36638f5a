"""How well the credit report's proxy agrees with the measured figure, on games of a small transformer.

    PYTHONPATH=build/torch python -m tests.benchmarks.credit_report_agreement [--groups 60]

Eight turns, eight signs, four keys; one key is right at a sign. A transformer (2 layers, d = 64, 0.1 M
weights) imitates a demonstrator that is right with p = 0.3 (0.5 for stop and chain) for 200 steps, then plays
groups of 8. Rewards: 1/8 for a right key plus noise of `noise` right keys (independent, delayed: all at the
last turn), the same until the first wrong key (chain), a wrong key ends the rollout (stop), noise alone
(nothing). Prints snr of both tiers, and the sentences.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from environments.credit import credited
from environments.testing import group_of
from environments.trajectory import NOT_SAMPLED, Span, TokenRow
from turnwise.lab.credit_report.report import credit_report

TURNS = SIGNS = 8
KEYS = 4
GROUP = 8
RIGHT = torch.tensor([SIGNS + (sign * 7 + sign // KEYS) % KEYS for sign in range(SIGNS)])
GAMES = {
    "independent, noise 1": ("independent", 1.0, 0.3),
    "independent, noise 0.5": ("independent", 0.5, 0.3),
    "independent, no noise": ("independent", 0.0, 0.3),
    "stop": ("stop", 0.0, 0.5),
    "chain": ("chain", 0.0, 0.5),
    "delayed, noise 1": ("delayed", 1.0, 0.3),
    "nothing to learn": ("nothing", 1.0, 0.3),
}


def warm_model(skill, *, seed=0, steps=200):
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=24, hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=64, initializer_range=0.1, tie_word_embeddings=True
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        signs = torch.randint(SIGNS, (32, TURNS))
        wrong = (RIGHT[signs] - SIGNS + torch.randint(1, KEYS, signs.shape)) % KEYS + SIGNS
        keys = torch.where(torch.rand(signs.shape) < skill, RIGHT[signs], wrong)
        rows = torch.stack([signs, keys], -1).flatten(1)
        logprobs = model(rows).logits[:, 0::2].log_softmax(-1)
        (-logprobs.gather(2, keys[..., None]).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@torch.no_grad()
def played(model, kind, noise, groups, *, seed):
    """Groups with the model's own tokens and log-probabilities."""
    draw = torch.Generator().manual_seed(seed)
    signs = torch.randint(SIGNS, (groups, 1, TURNS), generator=draw).expand(-1, GROUP, -1).reshape(-1, TURNS)
    rows, logprobs = torch.zeros(len(signs), 0, dtype=torch.long), torch.zeros(len(signs), 0)
    for turn in range(TURNS):
        rows = torch.cat([rows, signs[:, turn : turn + 1]], 1)
        last = model(rows).logits[:, -1].log_softmax(-1)
        key = torch.multinomial(last.exp(), 1, generator=draw)
        rows = torch.cat([rows, key], 1)
        logprobs = torch.cat(
            [logprobs, torch.full_like(key, NOT_SAMPLED, dtype=torch.float), last.gather(1, key)], 1
        )
    right = (rows[:, 1::2] == RIGHT[signs]).float()
    paid = {"chain": right.cumprod(1), "nothing": torch.zeros_like(right)}.get(kind, right)
    rewards = (paid + noise * torch.randn(right.shape, generator=draw)) / TURNS
    lengths = [TURNS] * len(right)
    if kind == "stop":
        lengths = [int(min(TURNS, 1 + each.cumprod(0).sum())) for each in right]
    if kind == "delayed":
        rewards = torch.cat([torch.zeros(len(right), TURNS - 1), rewards.sum(1, keepdim=True)], 1)
    for number in range(groups):
        at = range(number * GROUP, (number + 1) * GROUP)
        group = group_of([rewards[i, : lengths[i]].tolist() for i in at])
        siblings = [
            replace(
                sibling,
                rows=(
                    TokenRow(
                        token_ids=rows[i, : 2 * lengths[i]].tolist(),
                        logprobs=logprobs[i, : 2 * lengths[i]].tolist(),
                    ),
                ),
                turns=tuple(
                    replace(turn, span=Span(row=0, start=2 * k + 1, end=2 * k + 2))
                    for k, turn in enumerate(sibling.turns)
                ),
            )
            for i, sibling in zip(at, group.trajectories, strict=True)
        ]
        named = replace(group, trajectories=tuple(siblings), item_id=f"{number}", group_id=f"{number}/0")
        yield credited(named, "turn_return", policy="transformer")


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--groups", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    for game, (kind, noise, skill) in GAMES.items():
        model = warm_model(skill, seed=given.seed)
        record = list(played(model, kind, noise, given.groups, seed=given.seed + 1))
        with TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            reports = {"proxy": credit_report(record), "measured": credit_report(record, Path(folder))}
        values = {}
        for tier, report in reports.items():
            rows = {
                f"{row['estimator']} {'' if row['gamma'] is None else row['gamma']}".strip(): round(
                    row["snr"], 4
                )
                for row in report["rows"]
                if row["estimator"] in ("rloo", "grpo")
                or (row["estimator"], row["baseline"]) == ("turn_return", "loo_index")
            }
            values[tier] = {"snr": rows, "sentences": report["sentences"]}
        logs = [[report["rows"][i]["snr"] for i in range(len(report["rows"]))] for report in reports.values()]
        ranks = [np.argsort(np.argsort(each)) for each in logs]
        values["rank_correlation"] = round(float(np.corrcoef(ranks[0], ranks[1])[0, 1]), 3)
        print(game, json.dumps(values), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
