"""How well the credit report's proxy agrees with the measured figure, on games of a small transformer.

    PYTHONPATH=build/torch python -m tests.benchmarks.credit_report_agreement [--groups 60]

The games are those of `noisy_turns` and one of noise alone; a transformer (2 layers, d = 64, 0.1 M weights)
imitates its demonstrator for 200 steps, then plays groups of 8. Prints the report of both tiers.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from environments.credit import credited
from environments.testing import group_of
from environments.trajectory import NOT_SAMPLED, Span, TokenRow
from tests.benchmarks.noisy_turns import KEYS, RIGHT, SIGNS, Game, rewards_of
from turnwise.lab.credit_report.report import credit_report

TURNS, GROUP = 8, 8
GAMES = {
    "independent, noise 1": Game(turns=TURNS, noise=1.0),
    "independent, noise 0.5": Game(turns=TURNS, noise=0.5),
    "independent, no noise": Game(turns=TURNS),
    "stop": Game(turns=TURNS, kind="stop", skill=0.5),
    "chain": Game(turns=TURNS, kind="chain", skill=0.5),
    "delayed, noise 1": Game(turns=TURNS, kind="delayed", noise=1.0),
    "nothing to learn": Game(turns=TURNS, kind="nothing", noise=1.0),
}


def warm_model(game, *, seed=0):
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=24, hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=64, initializer_range=0.1, tie_word_embeddings=True
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(game.lessons):
        signs = torch.randint(SIGNS, (32, TURNS))
        wrong = (RIGHT[signs] - SIGNS + torch.randint(1, KEYS, signs.shape)) % KEYS + SIGNS
        keys = torch.where(torch.rand(signs.shape) < game.skill, RIGHT[signs], wrong)
        logprobs = model(torch.stack([signs, keys], -1).flatten(1)).logits[:, 0::2].log_softmax(-1)
        (-logprobs.gather(2, keys[..., None]).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@torch.no_grad()
def play_groups(model, game, groups, *, seed):
    """Yield groups with the model's own tokens and log-probabilities."""
    draw = torch.Generator().manual_seed(seed)
    signs = torch.randint(SIGNS, (groups, 1, TURNS), generator=draw).expand(-1, GROUP, -1).reshape(-1, TURNS)
    ids, logprobs = torch.zeros(len(signs), 0, dtype=torch.long), torch.zeros(len(signs), 0)
    for turn in range(TURNS):
        ids = torch.cat([ids, signs[:, turn : turn + 1]], 1)
        last = model(ids).logits[:, -1].log_softmax(-1)
        key = torch.multinomial(last.exp(), 1, generator=draw)
        ids, given = torch.cat([ids, key], 1), torch.full_like(key, NOT_SAMPLED, dtype=torch.float)
        logprobs = torch.cat([logprobs, given, last.gather(1, key)], 1)
    right, played = (ids[:, 1::2] == RIGHT[signs]).float(), torch.ones(signs.shape)
    if game.kind == "stop":
        played[:, 1:] = right.cumprod(1)[:, :-1]
    noise = torch.randn(right.shape, generator=draw)
    rewards = rewards_of(game, right * (game.kind != "nothing"), played, noise)
    lengths = played.sum(1).long().tolist()
    for number in range(groups):
        at = range(number * GROUP, (number + 1) * GROUP)
        group = group_of([rewards[i, : lengths[i]].tolist() for i in at])
        siblings = []
        for i, sibling in zip(at, group.trajectories, strict=True):
            end = 2 * lengths[i]
            row = TokenRow(token_ids=ids[i, :end].tolist(), logprobs=logprobs[i, :end].tolist())
            spans = [Span(row=0, start=start, end=start + 1) for start in range(1, end, 2)]
            turns = tuple(replace(turn, span=span) for turn, span in zip(sibling.turns, spans, strict=True))
            siblings.append(replace(sibling, rows=(row,), turns=turns))
        named = replace(group, trajectories=tuple(siblings), item_id=f"{number}", group_id=f"{number}/0")
        yield credited(named, "turn_return", policy="transformer")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name, game in GAMES.items():
        model = warm_model(game, seed=given.seed)
        record = list(play_groups(model, game, given.groups, seed=given.seed + 1))
        with TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            reports = {"proxy": credit_report(record), "measured": credit_report(record, Path(folder))}
        for tier, report in reports.items():
            print(name, tier, json.dumps(report["table"], ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
