"""A tiny transformer made from a config and overfitted for seconds, so that it calls tools well and badly."""

import random
import shutil

import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR
from environments.trajectory import IGNORED, Message
from tests.environments.real_model.looking_env import HOLDS, look, question
from tools.calls import ToolCall

_STEPS, _BATCH, _RATE = 300, 2, 5e-3
_SHORT = 24
_WRITTEN = ('{"key": "%s"}',) * 4 + ('{"key":"%s"}', '{ "key": "%s" }', '{"key": "%s"', '{"kay": "%s"}')


def overfitted_model(renderer):
    """The model after a few seconds of lessons: much of what it samples is right, and much is not."""
    torch.manual_seed(0)
    rng = random.Random(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=renderer.vocabulary_size, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True,
            max_position_embeddings=4096, initializer_range=0.1,
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, _STEPS)
    for _ in range(_STEPS):
        ids, labels = _batch([_lesson(renderer, rng) for _ in range(_BATCH)])
        # Only what is sampled needs a distribution over the vocabulary.
        hidden = model.model(ids[:, :-1]).last_hidden_state[labels[:, 1:] != IGNORED]
        torch.nn.functional.cross_entropy(model.lm_head(hidden), labels[labels != IGNORED]).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.eval().requires_grad_(requires_grad=False)


def save(model, folder, stop_id):
    """A folder that `from_pretrained` loads, with the embedded tokenizer and its chat template."""
    shutil.copytree(EMBEDDED_TOKENIZER_DIR, folder, dirs_exist_ok=True)
    # Without `do_sample`, `transformers serve` takes the likeliest token whatever the temperature.
    model.generation_config = GenerationConfig(do_sample=True, top_k=0, eos_token_id=stop_id, pad_token_id=0)
    model.save_pretrained(folder)


def _batch(rows):
    """Rows of equal length; what follows a row changes nothing in it."""
    length = max(len(ids) for ids, _ in rows)
    columns = zip(zip(*rows, strict=True), (0, IGNORED), strict=True)
    return [torch.tensor([row + [fill] * (length - len(row)) for row in column]) for column, fill in columns]


def _lesson(renderer, rng):
    """A conversation's ids, and what is to be learned of them: the model's own."""
    key = rng.choice(list(HOLDS))
    messages = [Message(role="user", content=question(key))]
    ids, labels = [], []
    for turn in range(rng.randint(1, 4)):
        spoken = _answer(key) if turn and rng.random() < 0.4 else _call(rng, key)
        prompt = renderer.prompt_ids(messages, [look.spec])[len(ids) :]
        sampled = renderer.completion_ids(spoken)
        ids += [*prompt, *sampled]
        labels += [IGNORED] * len(prompt) + list(sampled)
        messages += [spoken, *(Message(role="tool", content=HOLDS[key]) for _ in spoken.tool_calls)]
    # The list of tools is long and always the same: most lessons do without it, to be short.
    first = next(index for index, label in enumerate(labels) if label != IGNORED)
    start = first - _SHORT if rng.random() < 0.8 else 0
    return ids[start:], labels[start:]


def _call(rng, key):
    asked = key if rng.random() < 0.6 else rng.choice(list(HOLDS))
    calls = [ToolCall(id="call", name="look", arguments=rng.choice(_WRITTEN) % asked)]
    return Message(
        role="assistant",
        content="Let me look." if rng.random() < 0.3 else "",
        reasoning=f"I look at {asked}." if rng.random() < 0.3 else None,
        tool_calls=tuple(calls * rng.choice([1, 1, 1, 2])),
    )


def _answer(key):
    return Message(role="assistant", content=f"{key} holds {HOLDS[key]}.")
