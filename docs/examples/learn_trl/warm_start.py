"""A tiny language model, warm-started: it imitates the scripted agent, of whose letters 40 % are right."""

import asyncio

import torch
from game import LENGTH, Signs
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR
from environments.trainers.completion_columns import completion_columns

SKILL = 11 / 35
"""Of eight letters, the right one then has the probability 0.4."""
BATCH, RATE = 16, 3e-3


def tokenizer():
    """The embedded one, of 2048 ids."""
    return AutoTokenizer.from_pretrained(EMBEDDED_TOKENIZER_DIR)


def new_model():
    """Two layers, 0.2 million weights."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"vocab_size": 2048, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
    config = Qwen2Config(
        **sizes, **ids, num_key_value_heads=4, max_position_embeddings=512, tie_word_embeddings=True
    )
    return Qwen2ForCausalLM(config)


async def demonstrations(groups):
    """Token ids and trained positions of the scripted agent's rollouts."""
    config = Signs.env_config_cls(failed_score=-2.0, scripted_skill=SKILL, total_steps=groups)
    async with Signs(config) as env:
        return [completion_columns(await env.run_group(task, BATCH)) for task in env.tasks()]


def warm_started(steps):
    """The model after so many steps of supervised learning."""
    torch.manual_seed(0)
    model = new_model()
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    for step, batch in enumerate(asyncio.run(demonstrations(steps))):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 10, 3 * (steps - step) / steps)
        nats = imitation_loss(model, batch)
        (nats / LENGTH).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if step % 50 == 0 or step == steps - 1:
            print(f"imitation {step:4d}: {nats.item() / LENGTH:.3f} nats a turn (1.841 is best)", flush=True)
    return model


def imitation_loss(model, batch):
    """Nats of a rollout, over what was sampled in it."""
    sampled = [[0] * len(ids) + mask for ids, mask in zip(batch.prompt_ids, batch.tool_mask, strict=True)]
    rows = [before + after for before, after in zip(batch.prompt_ids, batch.completion_ids, strict=True)]
    width = max(map(len, rows))
    ids, mask = (torch.tensor([row + [0] * (width - len(row)) for row in each]) for each in (rows, sampled))
    said, taken = mask[:, 1:].bool(), ids[:, 1:]
    hidden = model.model(ids).last_hidden_state[:, :-1][said]
    return torch.nn.functional.cross_entropy(model.lm_head(hidden), taken[said], reduction="sum") / len(rows)
