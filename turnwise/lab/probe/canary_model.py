"""A Llama of one layer with random weights: a Hugging Face folder, and its forward pass in numpy.

Only the gradient of the head is compared: (one-hot - p) times the last hidden state, which needs a forward
pass and no autograd package.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]  # of its paths

from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR
from environments.trajectory import NOT_SAMPLED, CreditedGroup, Trajectory
from turnwise.lab.probe.canaries import PROBED

Tensor = NDArray[np.float32]
Weights = NDArray[np.float64]

HEAD = "lm_head.weight"
VOCABULARY = 2048
"""Vocabulary size of the embedded tokenizer, which is saved beside the weights."""
WIDTH = 64
_HEADS = 2
_LOGIT_DEVIATION = 3.0
"""Large, so that temperatures, entropy bonuses and penalties show in a step."""
_EPSILON = 1e-6
_THETA = 10_000.0
_EMBEDDING = "model.embed_tokens.weight"
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
_PARTS = (*(f"{_LAYER}.{name}" for name in (*_PROJECTIONS, *_FEED_FORWARD)), *_NORMS)


def write_canary_model(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_CONFIG, indent=2) + "\n")
    save_file(_random_weights(), folder / "model.safetensors", {"format": "pt"})
    for file in EMBEDDED_TOKENIZER_DIR.iterdir():
        shutil.copyfile(file, folder / file.name)


class CanaryModel:
    def __init__(self) -> None:
        self.weights: Mapping[str, Weights] = {
            name: tensor.astype(np.float64) for name, tensor in _random_weights().items()
        }
        self.head, self.embedding = self.weights[HEAD], self.weights[_EMBEDDING]

    def groups(self) -> list[CreditedGroup]:
        """Return every canary with this model's log-probabilities, so that ratios are 1."""
        return [self._with_logprobs(make()) for make in PROBED.values()]

    def forward(self, token_ids: list[int]) -> tuple[Weights, Weights]:
        """Return hidden states before the head (tokens, WIDTH) and log-probabilities (tokens, VOCABULARY)."""
        hidden = self.embedding[token_ids]
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
        scores = _rotate(query) @ _rotate(key).transpose(0, 2, 1) / np.sqrt(WIDTH / _HEADS)
        scores[:, np.triu(np.ones((count, count), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = weights / weights.sum(axis=-1, keepdims=True) @ value
        return self._times(mixed.transpose(1, 0, 2).reshape(count, WIDTH), _PROJECTIONS[3])

    def _times(self, hidden: Weights, name: str) -> Weights:
        return hidden @ self.weights[f"{_LAYER}.{name}.weight"].T

    def _norm(self, hidden: Weights, name: str) -> Weights:
        size = np.sqrt((hidden**2).mean(axis=-1, keepdims=True) + _EPSILON)
        return hidden / size * self.weights[f"{name}.weight"]

    def _with_logprobs(self, credited: CreditedGroup) -> CreditedGroup:
        trajectories: list[Trajectory] = []
        for each in credited.group.trajectories:
            logprobs = [[NOT_SAMPLED] * len(row.token_ids) for row in each.rows]
            log_p = [self.forward(list(row.token_ids))[1] for row in each.rows]
            for span in (turn.span for turn in each.turns):
                for index in range(span.start, span.end):
                    token = each.rows[span.row].token_ids[index]
                    logprobs[span.row][index] = float(log_p[span.row][index - 1, token])
            rows = zip(each.rows, logprobs, strict=True)
            trajectories.append(
                replace(each, rows=tuple(replace(row, logprobs=tuple(own)) for row, own in rows))
            )
        return replace(credited, group=replace(credited.group, trajectories=tuple(trajectories)))


def _rotate(heads: Weights) -> Weights:
    """Apply rotary positions to (head, token, width); the two halves of a head are the coordinates."""
    half = heads.shape[-1] // 2
    frequencies = np.exp(-np.log(_THETA) * np.arange(half, dtype=np.float64) / half)
    angles = np.arange(heads.shape[1], dtype=np.float64)[:, None] * frequencies
    first, second = heads[..., :half], heads[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _random_weights() -> dict[str, Tensor]:
    rng = np.random.default_rng(0)

    def matrix(rows: int, deviation: float) -> Tensor:
        return (deviation * rng.standard_normal((rows, WIDTH))).astype(np.float32)

    head = matrix(VOCABULARY, _LOGIT_DEVIATION * WIDTH**-0.5)
    weights = {_EMBEDDING: matrix(VOCABULARY, 1.0), HEAD: head}
    for name in _PARTS:
        is_norm = name in _NORMS
        weights[f"{name}.weight"] = np.ones(WIDTH, np.float32) if is_norm else matrix(WIDTH, WIDTH**-0.5)
    return weights
