"""Many small transformers as one: each parameter has a dimension of runs in front, and no run sees another.

Two layers, 64 wide, 4 heads, causal, with a cache of keys and values for sampling; 0.1 million weights a run.
"""

import torch
from torch.nn import functional

VOCABULARY, WIDTH, LAYERS, HEADS, INNER = 24, 64, 2, 4, 256


def first_weights(seeds, length):
    """Random parameters, `[run, …]`, each run's of its own seed."""
    runs = [_first_weights(seed, length) for seed in seeds]
    return {name: torch.stack([run[name] for run in runs]) for name in runs[0]}


def _first_weights(seed, length):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, std):
        return torch.randn(*shape, generator=generator) * std

    into, out = WIDTH**-0.5, (2 * LAYERS * WIDTH) ** -0.5
    weights = {
        "tokens": normal(VOCABULARY, WIDTH, std=0.1),
        "positions": normal(length, WIDTH, std=0.1),
        "logits": normal(WIDTH, VOCABULARY, std=0.02),
    }
    for layer in range(LAYERS):
        weights |= {
            f"attend{layer}": normal(WIDTH, 3 * WIDTH, std=into),
            f"mix{layer}": normal(WIDTH, WIDTH, std=out),
            f"up{layer}": normal(WIDTH, INNER, std=into),
            f"down{layer}": normal(INNER, WIDTH, std=out),
            f"up_bias{layer}": torch.zeros(1, INNER),
            f"down_bias{layer}": torch.zeros(1, WIDTH),
        }
    return weights


def logits_of(weights, ids, cache=None):
    """`[run, row, token, vocabulary]` after ids `[run, row, token]`.

    `cache` is a list of what each layer made of the tokens before, which this call extends.
    """
    runs, rows, tokens = ids.shape
    start = 0 if not cache else cache[0][0].shape[2]
    places = weights["positions"][:, None, start : start + tokens]
    chosen = weights["tokens"][torch.arange(runs)[:, None], ids.reshape(runs, -1)]
    state = chosen.view(runs, rows, tokens, WIDTH) + places
    for layer in range(LAYERS):
        state = state + _attention(weights, layer, state, cache, start)
        inner = torch.baddbmm(weights[f"up_bias{layer}"], _normed(state), weights[f"up{layer}"])
        outer = torch.baddbmm(weights[f"down_bias{layer}"], functional.gelu(inner), weights[f"down{layer}"])
        state = state + outer.view_as(state)
    return torch.bmm(_normed(state), weights["logits"]).view(runs, rows, tokens, VOCABULARY)


def _normed(state):
    return functional.layer_norm(state, (WIDTH,)).flatten(1, 2)


def _attention(weights, layer, state, cache, start):
    runs, rows, tokens, _ = state.shape
    made = torch.bmm(_normed(state), weights[f"attend{layer}"])
    query, key, value = made.view(runs * rows, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
    if cache is not None:
        if start:
            key, value = (torch.cat(pair, 2) for pair in zip(cache[layer], (key, value), strict=True))
            cache[layer] = (key, value)
        else:
            cache.append((key, value))
    mask = torch.ones(tokens, start + tokens, dtype=torch.bool).tril(start)
    seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return torch.bmm(seen.transpose(1, 2).reshape(runs, -1, WIDTH), weights[f"mix{layer}"]).view_as(state)


class Adam:
    """Adam with a learning rate for each run; each run's gradient is cut at norm 1."""

    def __init__(self, weights, rates, betas=(0.9, 0.95)):
        self.weights, self.rates, self.betas, self.steps = weights, rates, betas, 0
        self.means = {name: torch.zeros_like(value) for name, value in weights.items()}
        self.squares = {name: torch.zeros_like(value) for name, value in weights.items()}

    def step(self, loss, factor=1.0):
        """One step down the gradient of a loss that is the sum over runs."""
        gradients = torch.autograd.grad(loss, list(self.weights.values()))
        norms = sum(each.flatten(1).square().sum(1) for each in gradients).sqrt()
        cut = (1 / (norms + 1e-6)).clamp(max=1.0)
        self.steps += 1
        first, second = (1 - beta**self.steps for beta in self.betas)
        with torch.no_grad():
            for (name, value), each in zip(self.weights.items(), gradients, strict=True):
                shape = (-1, *[1] * (value.dim() - 1))
                gradient = each * cut.view(shape)
                mean = self.means[name].lerp_(gradient, 1 - self.betas[0])
                square = self.squares[name].lerp_(gradient.square(), 1 - self.betas[1])
                rate = (self.rates * factor).view(shape)
                value -= rate * (mean / first) / ((square / second).sqrt() + 1e-8)

    def keep(self, runs):
        """Go on with some of the runs."""
        self.rates = self.rates[runs]
        self.weights = {name: value.detach()[runs].requires_grad_() for name, value in self.weights.items()}
        self.means = {name: value[runs] for name, value in self.means.items()}
        self.squares = {name: value[runs] for name, value in self.squares.items()}
