"""A Llama of one layer with random weights: a Hugging Face folder, and its forward pass in numpy.

Only the gradient of its head is compared. Every token's loss passes through the head, whose gradient takes
a forward pass alone: (one-hot - p) times the last hidden state. So no package for gradients is needed.
"""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from environments.policy.rendering.tokenizer_files import EMBEDDED_TOKENIZER_DIR
from environments.probe.tensor_files import Tensor, Weights, read_weights, write_safetensors
from environments.trainers.canary import VOCABULARY as CANARY_IDS
from tools.errors import ConfigError

HEAD = "lm_head.weight"
"""What of a checkpoint is compared, (VOCABULARY, WIDTH)."""
VOCABULARY = 2048
"""That of the embedded tokenizer, which lies beside the weights."""
WIDTH = 64
_SAME = 0.5
"""Cosine from which a head is the canary model's."""
_HEADS = 2
_EPSILON = 1e-6
_THETA = 10_000.0
_LAYER = "model.layers.0"
_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "head_dim": WIDTH // _HEADS,
    "hidden_act": "silu",
    "rms_norm_eps": _EPSILON,
    "rope_theta": _THETA,
    "max_position_embeddings": 8192,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "float32",
}
_PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_FEED_FORWARD = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_NORMS = (f"{_LAYER}.input_layernorm", f"{_LAYER}.post_attention_layernorm", "model.norm")


def write_canary_model(folder: Path) -> None:
    """Write config, weights and tokenizer as `from_pretrained` of transformers takes them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_CONFIG, indent=2) + "\n")
    write_safetensors(folder / "model.safetensors", _random_weights())
    for file in EMBEDDED_TOKENIZER_DIR.iterdir():
        shutil.copyfile(file, folder / file.name)


class CanaryModel:
    """The model in a folder, in float64."""

    def __init__(self, folder: Path) -> None:
        """Read the weights.

        Raises:
            ConfigError: there are none.
        """
        path = folder / "model.safetensors"
        names = (HEAD, "model.embed_tokens.weight", *(f"{name}.weight" for name in _parts()))
        self._weights = {name.removesuffix(".weight"): read_weights(path, name) for name in names}
        self.head = self._weights["lm_head"]

    def forward(self, token_ids: list[int]) -> tuple[Weights, Weights]:
        """Hidden states before the head (tokens, WIDTH), and log-probabilities (tokens, VOCABULARY)."""
        hidden = self._weights["model.embed_tokens"][token_ids]
        hidden = hidden + self._attention(self._norm(hidden, _NORMS[0]))
        normed = self._norm(hidden, _NORMS[1])
        gate = self._times(normed, "mlp.gate_proj")
        up = self._times(normed, "mlp.up_proj")
        hidden = hidden + self._times(gate / (1 + np.exp(-gate)) * up, "mlp.down_proj")
        hidden = self._norm(hidden, _NORMS[2])
        logits = hidden @ self.head.T
        logits -= logits.max(axis=1, keepdims=True)
        return hidden, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def _attention(self, hidden: Weights) -> Weights:
        count = len(hidden)
        query, key, value = (
            self._times(hidden, name).reshape(count, _HEADS, -1).transpose(1, 0, 2)
            for name in _PROJECTIONS[:3]
        )
        scores = _rotated(query) @ _rotated(key).transpose(0, 2, 1) / np.sqrt(WIDTH / _HEADS)
        scores[:, np.triu(np.ones((count, count), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = weights / weights.sum(axis=-1, keepdims=True) @ value
        return self._times(mixed.transpose(1, 0, 2).reshape(count, WIDTH), _PROJECTIONS[3])

    def _times(self, hidden: Weights, name: str) -> Weights:
        return hidden @ self._weights[f"{_LAYER}.{name}"].T

    def _norm(self, hidden: Weights, name: str) -> Weights:
        size = np.sqrt((hidden**2).mean(axis=-1, keepdims=True) + _EPSILON)
        return hidden / size * self._weights[name]


def refuse_another_model(head: Weights, given: Weights, *, is_gradient: bool) -> None:
    """Hold what is read to be the canary model's head after a step, or its gradient.

    Raises:
        ConfigError: it is the other, or of another model.
    """
    # A step hardly moves the rows of ids that no canary has.
    before, after = head[CANARY_IDS:], given[CANARY_IDS:]
    size = float(np.linalg.norm(before) * np.linalg.norm(after))
    if not math.isfinite(size):
        return
    is_head = float((before * after).sum()) > _SAME * size
    if is_gradient and is_head:
        raise ConfigError("these are weights and no gradient; leave out --gradient")
    if not is_gradient and not is_head:
        raise ConfigError(
            "these are not the weights of the canary model after a step: of another model, or the gradient, "
            "which --gradient reads"
        )


def _rotated(heads: Weights) -> Weights:
    """Rotary positions, (head, token, width of a head): the halves of a head are the two coordinates."""
    half = heads.shape[-1] // 2
    frequencies = np.exp(-np.log(_THETA) * np.arange(half, dtype=np.float64) / half)
    angles = np.arange(heads.shape[1], dtype=np.float64)[:, None] * frequencies
    first, second = heads[..., :half], heads[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _parts() -> list[str]:
    return [*(f"{_LAYER}.{name}" for name in (*_PROJECTIONS, *_FEED_FORWARD)), *_NORMS]


def _random_weights() -> dict[str, Tensor]:
    rng = np.random.default_rng(0)

    def matrix(rows: int, deviation: float) -> Tensor:
        return (deviation * rng.standard_normal((rows, WIDTH))).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(VOCABULARY, 1.0), HEAD: matrix(VOCABULARY, WIDTH**-0.5)}
    for name in _parts():
        is_norm = name in _NORMS
        weights[f"{name}.weight"] = np.ones(WIDTH, np.float32) if is_norm else matrix(WIDTH, WIDTH**-0.5)
    return weights
