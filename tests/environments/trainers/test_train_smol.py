"""The laptop trainer of docs/examples samples and trains as one plain pass per row would; needs torch."""

import asyncio
import importlib.util
import os
import random
from pathlib import Path

import pytest

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.shipped.quiz.env import QuizEnv
from environments.trainers.completion_columns import CompletionColumns
from environments.trainers.in_process_policy import Wanted

if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
    pytest.importorskip("trl", reason="needs torch and TRL, to run the examples")
torch = pytest.importorskip("torch", reason="needs torch and TRL, to run the examples")
transformers = pytest.importorskip("transformers")
SCRIPT = Path(__file__).resolve().parents[3] / "docs" / "examples" / "train_smol.py"
ROWS = [(5, 6, 7), (5, 6, 8, 9), (5, 6, 7)]


@pytest.fixture
def train_smol():
    spec = importlib.util.spec_from_file_location("train_smol", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 5, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=2048, num_key_value_heads=1, initializer_range=0.2, **sizes)
    return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture
def sampler(train_smol, model):
    return train_smol.Sampler(model, ChatMLRenderer.embedded())


def log_prob(model, prompt, token):
    return torch.log_softmax(model(input_ids=torch.tensor([prompt])).logits[0, -1].float(), -1)[token]


def test_each_sampled_token_has_the_log_probability_of_one_plain_pass(model, sampler):
    batch = [Wanted(prompt_ids=row, max_tokens=3, draws=random.Random(n)) for n, row in enumerate(ROWS)]
    for row, sampled in zip(ROWS, sampler(batch), strict=True):
        ids = [*row, *sampled.token_ids]
        plain = [float(log_prob(model, ids[:end], ids[end])) for end in range(len(row), len(ids))]
        assert sampled.logprobs == pytest.approx(plain, abs=1e-5)


def test_the_loss_has_the_gradient_of_plain_passes(train_smol, model, sampler):
    trained = [*model.model.layers[-train_smol.TOP :].requires_grad_(True).parameters()]
    columns = CompletionColumns(
        prompt_ids=[[5, 6, 7], [5, 6, 8]],
        completion_ids=[[9, 4, 11], [9]],
        logprobs=[[0.0] * 3, [0.0]],
        tool_mask=[[1, 0, 1], [1]],
        advantages=[[0.5, 0.0, -1.0], [2.0]],
    )
    loss = sampler.loss(columns, 2)
    terms = [((5, 6, 7), 9, 0.5), ((5, 6, 7, 9, 4), 11, -1.0), ((5, 6, 8), 9, 2.0)]
    plain = -sum(advantage * log_prob(model, prompt, token) for prompt, token, advantage in terms) / 2
    for got, wanted in zip(
        torch.autograd.grad(loss, trained), torch.autograd.grad(plain, trained), strict=True
    ):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)


def test_steps_of_the_quiz_change_the_top_layers_alone(train_smol, model, sampler):
    before = [layer.mlp.up_proj.weight.clone() for layer in model.model.layers]

    async def run():
        steps = train_smol.train(
            sampler, QuizEnv, {"seed": 0, "memory": "none", "noise": 1.0}, rate=1e-3, steps=2, groups=1
        )
        return [success async for success in steps]

    assert len(asyncio.run(run())) == 2
    changed = [
        not torch.equal(old, layer.mlp.up_proj.weight)
        for old, layer in zip(before, model.model.layers, strict=True)
    ]
    assert changed == [False] + [True] * train_smol.TOP
