"""What trainers give back after a step: checkpoints, state dicts, optimizers' states; here without torch."""

import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.tables import cases
from tools.errors import ConfigError
from turnwise.lab.probe.canary_model import HEAD
from turnwise.lab.probe.step_reading import read_head, read_step

EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def gradient(tokens):
    return tokens.gradient(tokens.advantages)


@pytest.fixture(scope="module")
def before(probe):
    return probe.before


def stepped(before, gradient, lr=0.5):
    return {name: np.float32(each) for name, each in before.weights.items()} | {
        HEAD: np.float32(before.head + lr * gradient)
    }


def adam(before, gradient, *, decay=0.0, steps=1.0, keys=(0, 1), beta1=0.95):
    """The state dict of an Adam whose loss has the gradient; its embedding is as large as the head."""
    moved = np.zeros_like(before.embedding)
    moved[5:9] = 1.0  # of ids that canaries have
    gradients = (moved + decay * before.embedding, decay * before.head - gradient)
    moments = [{"step": steps, "exp_avg": (1 - beta1) * each, "exp_avg_sq": each**2} for each in gradients]
    groups = [{"params": list(keys), "betas": (beta1, 0.999), "lr": 1e-3}]
    return {"state": dict(zip(keys, moments, strict=True)), "param_groups": groups}


class Optimizer:
    def __init__(self, state):
        self._state = state

    def state_dict(self):
        return self._state


@cases(
    ("keys", "decay"),
    [((0, 1), 0.0), ((0, 1), 0.1), ((EMBEDDING, f"_orig_mod.{HEAD}"), 0.1)],
)
def test_the_first_moment_of_adam_is_the_gradient_that_it_was_given(before, gradient, keys, decay):
    step = read_step(
        Optimizer(adam(before, gradient, keys=keys, decay=decay)), before, 1.0, is_gradient=False
    )
    assert step.source == "Adam's first moment"
    np.testing.assert_allclose(step.head, gradient - decay * before.head, atol=1e-12)


def test_a_model_that_is_saved_over_the_one_it_was_loaded_from_is_compared_with_what_it_was(probe, tokens):
    saved = (probe.model / "model.safetensors").read_bytes()
    try:
        save_file(
            stepped(probe.before, tokens.gradient(tokens.advantages)), probe.model / "model.safetensors"
        )
        verdict = probe.verdict(probe.model)
    finally:
        (probe.model / "model.safetensors").write_bytes(saved)
    assert verdict.exact


WRONG = {
    "two steps": (lambda before, up: Optimizer(adam(before, up, steps=2.0)), "the optimizer took 2 steps"),
    "no moment": (
        lambda *_: Optimizer({"state": {0: {"momentum_buffer": np.zeros(3)}}, "param_groups": []}),
        "has no first moment (exp_avg) of lm_head.weight",
    ),
    "frozen head": (
        lambda before, up: Optimizer(adam(before, 0 * up)),
        "has no first moment (exp_avg) of lm_head.weight",
    ),
    "signs": (
        lambda before, up: {HEAD: before.head + np.sign(up)},
        "a step of Adam or its like, which leaves the signs alone",
    ),
    "two models": (
        lambda before, _: {f"policy.{HEAD}": before.head, f"reference.{HEAD}": before.head},
        "has lm_head.weight twice, of two models",
    ),
    "transposed": (lambda before, _: {HEAD: before.head.T}, "lm_head.weight has the shape (64, 2048)"),
    "tied": (
        lambda before, _: {EMBEDDING: before.embedding},
        "what the step gave has no tensor lm_head.weight",
    ),
    "16 bits": (
        lambda before, _: {HEAD: np.float16(before.head)},
        "holds float16, which rounds one step away",
    ),
}


@cases(("given", "message"), WRONG.values(), ids=WRONG)
def test_what_holds_no_step_is_one_line(before, gradient, given, message):
    with pytest.raises(ConfigError) as refused:
        read_step(given(before, gradient), before, 1.0, is_gradient=False)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


# Checkpoints as trainers save them.

TENSOR = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_tensor_is_found_in_the_shards_of_a_folder_also_in_a_model_that_wraps_it(tmp_path, dtype):
    save_file({"other": TENSOR}, tmp_path / "model-1.safetensors")
    save_file({"module.lm_head.weight": TENSOR.astype(dtype)}, tmp_path / "model-2.safetensors")
    assert read_head(tmp_path).tolist() == TENSOR.tolist()


def test_16_bits_are_refused_since_they_round_the_step_away(tmp_path):
    save_file({"lm_head.weight": TENSOR.astype(np.float16)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"holds F16.*float32"):
        read_head(tmp_path)


def test_what_is_no_checkpoint_of_the_model_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"has no .*safetensors and no"):
        read_head(tmp_path)
    file = tmp_path / "model.safetensors"
    for content in (
        struct.pack("<Q", 2) + b"[]",
        b"",
        struct.pack("<Q", 2**60),
        struct.pack("<Q", 7) + b'{"a": 1',
    ):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="cannot read the weights") as refused:
            read_head(tmp_path)
        assert "\n" not in str(refused.value)
    save_file({"other": TENSOR}, file)
    with pytest.raises(ConfigError, match=r"has no tensor lm_head.weight; save the whole model"):
        read_head(tmp_path)
