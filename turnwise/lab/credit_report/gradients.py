"""Each arm's gradient in each group: by a proxy in numpy alone, or measured on a causal language model."""

import importlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.errors import ConfigError, CreditError
from tools.extras import needs_extra
from turnwise.lab.credit_report.arms import Ids, Numbers, ReportData, ReportGroup, TurnTokens
from turnwise.lab.credit_report.signal_noise import Gradients

SKETCH = 4096
"""Buckets of a CountSketch: inner products keep an error of 1/√4096 of the lengths (Charikar et al. 2002)."""
SEED = 20260930
_NO_TOKEN = -1
_MOST_NATS = 0.05
"""Mean difference of a log-probability from the recorded one above which the weights are other ones."""


def proxy_gradients(data: ReportData) -> Gradients:
    """Return the gradients of a softmax table that is fitted on the record's other groups.

    A turn's gradient is Σ onehot(token) - p̂ over its tokens. p̂ is a table over (turn index, the two tokens
    before) of the tokens that the record has there, with the counts of the other groups plus ½.

    Returns:
        [group][arm][bucket]
    """
    tables = _Tables(data.groups)
    gradients = np.zeros((len(data.groups), len(data.arms), SKETCH), dtype=np.float32)
    for index, group in enumerate(data.groups):
        if group.turns:
            gradients[index] = group.advantages @ tables.sketch(index, len(group.turns))
    return gradients


class _Tables:
    def __init__(self, groups: Sequence[ReportGroup]) -> None:
        positions = [np.array([*_positions(each)], dtype=np.int64).reshape(-1, 5) for each in groups]
        every = np.concatenate(positions)
        tokens, named = np.unique(every[:, 2:], return_inverse=True)
        turn, (second, last, token) = every[:, 1], named.reshape(-1, 3).T
        _, ends_of = np.unique(second * len(tokens) + last, return_inverse=True)
        _, contexts = np.unique(turn * (int(ends_of.max()) + 1) + ends_of, return_inverse=True)
        pairs, of_position = np.unique(contexts * len(tokens) + token, return_inverse=True)
        self.context: Ids = pairs // len(tokens)
        """[pair]; sorted, so that pairs of a context are adjacent."""
        contexts_count = int(self.context.max()) + 1
        self.first = np.searchsorted(self.context, np.arange(contexts_count + 1))
        self.counts = np.bincount(of_position, minlength=len(pairs))
        ends = np.cumsum([len(each) for each in positions])[:-1]
        self.pairs = np.split(of_position, ends)
        self.turns = [each[:, 0] for each in positions]
        draw = np.random.default_rng(SEED)
        self.bucket = draw.integers(0, SKETCH, len(pairs))
        self.sign = draw.choice([-1.0, 1.0], len(pairs))

    def sketch(self, index: int, turns: int) -> Numbers:
        pairs, turn_of = self.pairs[index], self.turns[index]
        # Tokens that the other groups sampled in the contexts of this one.
        contexts, of_position = np.unique(self.context[pairs], return_inverse=True)
        pair, local = self._pairs_of(contexts)
        others = self.counts[pair] + 0.5
        own, counts = np.unique(pairs, return_counts=True)
        others[np.searchsorted(pair, own)] -= counts
        chances = others / np.bincount(local, weights=others)[local]
        # Each context of a turn, with the number of its occurrences in the turn.
        cells, times = np.unique(turn_of * len(contexts) + of_position, return_counts=True)
        turn, context = np.divmod(cells, len(contexts))
        expected, cell = self._pairs_of(contexts[context])
        at = np.searchsorted(pair, expected)
        sketch: Numbers = np.bincount(
            np.concatenate([turn_of, turn[cell]]) * SKETCH + self.bucket[np.concatenate([pairs, expected])],
            weights=np.concatenate([self.sign[pairs], -times[cell] * chances[at] * self.sign[expected]]),
            minlength=turns * SKETCH,
        ).astype(np.float64)
        return sketch.reshape(turns, SKETCH)

    def _pairs_of(self, contexts: Ids) -> tuple[Ids, Ids]:
        """Return all pairs of these contexts, and the index of each pair's context."""
        sizes = self.first[contexts + 1] - self.first[contexts]
        local = np.repeat(np.arange(len(contexts)), sizes)
        offset = np.arange(len(local)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return self.first[contexts][local] + offset, local


def _positions(group: ReportGroup) -> Iterator[tuple[int, int, int, int, int]]:
    for index, turn in enumerate(group.turns):
        second, last = (_NO_TOKEN, _NO_TOKEN, *turn.before)[-2:]
        for token in turn.tokens:
            yield index, turn.turn, second, last, token
            second, last = last, token


def model_gradients(data: ReportData, folder: Path) -> Gradients:
    """Return each arm's gradient in each group, [group][arm][bucket], by one backward pass per turn."""
    model = _Model(folder)
    gradients = np.zeros((len(data.groups), len(data.arms), SKETCH), dtype=np.float32)
    for index, group in enumerate(data.groups):
        # One group at a time, so that memory holds the sketches of one.
        gradients[index] = group.advantages @ model.sketch(group)
    model.check_logprobs(folder)
    return gradients


class _Model:
    def __init__(self, folder: Path) -> None:
        with needs_extra("trl", "turnwise credit --model"):
            self.torch: Any = importlib.import_module("torch")
            transformers: Any = importlib.import_module("transformers")
            transformers.utils.logging.disable_progress_bar()
        if not (folder / "config.json").is_file():
            raise ConfigError(f"--model is {str(folder)!r}; give the folder of a Hugging Face causal model")
        device = "cuda" if self.torch.cuda.is_available() else "cpu"
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
            raise ConfigError(f"--model {folder} cannot be loaded: {error}") from None
        self.model = model.float().to(device).eval()
        self.parameters = [each for each in self.model.parameters() if each.requires_grad]
        self.differences: list[float] = []

    def sketch(self, group: ReportGroup) -> Numbers:
        sketches = np.zeros((len(group.turns), SKETCH))
        by_row: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for index, turn in enumerate(group.turns):
            by_row[turn.trajectory, turn.row].append(index)
        for indices in by_row.values():
            turns = [group.turns[index] for index in indices]
            for index, logprobs in zip(indices, self._compute_logprobs(group, turns), strict=True):
                keeps_graph = index != indices[-1]
                sketches[index] = self._sketch_gradient(logprobs.sum(), keeps_graph=keeps_graph)
        return sketches

    def check_logprobs(self, folder: Path) -> None:
        mean = sum(self.differences) / len(self.differences)
        if not mean <= _MOST_NATS:
            raise CreditError(
                f"the log-probabilities of {folder} are {mean:.3f} from the recorded ones on average, and "
                f"{_MOST_NATS} is the most: the gradient at other weights says nothing of this record"
            )

    def _compute_logprobs(self, group: ReportGroup, turns: list[TurnTokens]) -> Iterator[Any]:
        row = group.credited.group.trajectories[turns[0].trajectory].rows[turns[0].row]
        if row.logprobs is None:
            raise CreditError("--model recomputes the recorded log-probabilities, and the record has none")
        ids = list(row.token_ids[: max(turn.start + len(turn.tokens) for turn in turns)])
        config = self.model.config.get_text_config()
        longest = getattr(config, "max_position_embeddings", None) or len(ids)
        if max(ids) >= config.vocab_size or min(ids) < 0 or len(ids) > longest:
            raise ConfigError(
                f"the model takes {longest} tokens with ids below {config.vocab_size}; a row has {len(ids)}, "
                f"up to {max(ids)}"
            )
        tokens = self.torch.tensor([ids], device=self.model.device)
        logits = self.model(input_ids=tokens, use_cache=False).logits[0].log_softmax(-1)
        for turn in turns:
            start = max(turn.start, 1)  # nothing predicts the first token
            end = turn.start + len(turn.tokens)
            values = logits[start - 1 : end - 1].gather(1, tokens[0, start:end, None])[:, 0]
            recorded = row.logprobs[start:end]
            got = values.detach().tolist()
            self.differences += [abs(one - other) for one, other in zip(got, recorded, strict=True)]
            yield values

    def _sketch_gradient(self, total: Any, *, keeps_graph: bool) -> Numbers:
        torch = self.torch
        gradients = torch.autograd.grad(total, self.parameters, retain_graph=keeps_graph, allow_unused=True)
        sketch = torch.zeros(SKETCH, device=total.device, dtype=torch.float64)
        for number, gradient in enumerate(gradients):
            if gradient is not None:
                flat = gradient.reshape(-1)
                hashed = self._hash(number, len(flat), total.device)
                signs = 1 - 2 * ((hashed >> 20) & 1)
                sketch.index_add_(0, hashed & (SKETCH - 1), (flat * signs).double())
        return sketch.cpu().numpy()

    def _hash(self, number: int, count: int, device: Any) -> Any:
        """Hash the entries of a parameter: computed, not stored, since a model may have billions."""
        mixed = self.torch.arange(count, device=device) + ((SEED + number * 0x9E3779B1) & 0x7FFFFFFF)
        for factor in (0x2C1B3C6D, 0x297A2D39):
            mixed = ((mixed ^ (mixed >> 15)) * factor) & 0x7FFFFFFF
        return mixed ^ (mixed >> 15)
