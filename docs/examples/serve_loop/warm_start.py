"""A tiny Llama that has seen the scripted agent play badly: it knows how an answer looks, and not which one is right.

python warm_start.py FOLDER
"""

import asyncio
import sys
from pathlib import Path

import torch
from signs import Signs
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR
from environments.trainers.completion_columns import completion_columns
from turnwise import AgentEnvConfig

SKILL = 0.3
GROUPS, STEPS, LEARNING_RATE = 150, 150, 3e-3


async def rows():
    """Token ids, and which of them the agent said."""
    config = AgentEnvConfig(scripted_skill=SKILL, group_size=4, failed_score=-2.0)
    async with Signs(config) as env:
        tasks = [task for task, _ in zip(env.tasks(), range(GROUPS))]
        groups = await asyncio.gather(*(env.run_group(task) for task in tasks))
    for group in groups:
        columns = completion_columns(group)
        for prompt, completion, mask in zip(columns.prompt_ids, columns.completion_ids, columns.tool_mask):
            yield prompt + completion, [0] * len(prompt) + mask


def batch(examples):
    """Padded ids, and labels: -100 where the agent said nothing."""
    longest = max(len(ids) for ids, _ in examples)
    ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in examples])
    mask = torch.tensor([mask + [0] * (longest - len(mask)) for _, mask in examples])
    return ids, torch.where(mask.bool(), ids, -100)


def main(folder):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=2048, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=False, initializer_range=0.05,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    examples = asyncio.run(collected())
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for step in range(STEPS):
        chosen = torch.randint(len(examples), (32,)).tolist()
        ids, labels = batch([examples[index] for index in chosen])
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"warm start: {len(examples)} rows of the scripted agent, loss {loss.item():.2f}", flush=True)
    model.to(torch.bfloat16).save_pretrained(folder)  # the example trainer's type
    PreTrainedTokenizerFast.from_pretrained(EMBEDDED_TOKENIZER_DIR).save_pretrained(folder)


async def collected():
    return [row async for row in rows()]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
