"""The measured gradients: those of a causal language model, one backward for each turn."""

import importlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tools.errors import ConfigError, CreditError
from tools.extras import needs_extra
from turnwise.lab.credit_report.arms import Numbers, ReportData, ReportGroup, Sampled
from turnwise.lab.credit_report.proxy import SEED, SKETCH
from turnwise.lab.credit_report.signal_noise import Gradients

_MOST_NATS = 0.05
"""Mean difference of a log-probability from the recorded one: above it these are other weights."""


def model_gradients(data: ReportData, folder: Path) -> Gradients:
    """Each arm's gradient in each group, [group][arm][bucket], each turn's in a CountSketch.

    Raises:
        ConfigError: torch or transformers is missing, or the folder holds no causal model for these tokens.
        CreditError: the record has no log-probabilities, or those of other weights.
    """
    model = _Model(folder)
    gradients = np.zeros((len(data.groups), len(data.arms), SKETCH), dtype=np.float32)
    for index, group in enumerate(data.groups):
        # Summed in the order of the turns, so that memory holds the sketches of one group.
        gradients[index] = group.advantages @ model.sketches(group)
    model.check_logprobs(folder)
    return gradients


class _Model:
    """A model, and how far its log-probabilities are from the recorded ones."""

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

    def sketches(self, group: ReportGroup) -> Numbers:
        """Of the gradient of each turn's summed log-probability, [turn][bucket]."""
        sketches = np.zeros((len(group.turns), SKETCH))
        by_row: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for index, turn in enumerate(group.turns):
            by_row[turn.trajectory, turn.row].append(index)
        for indices in by_row.values():
            turns = [group.turns[index] for index in indices]
            for index, logprobs in zip(indices, self._logprobs(group, turns), strict=True):
                keeps_graph = index != indices[-1]
                sketches[index] = self._sketch(logprobs.sum(), keeps_graph=keeps_graph)
        return sketches

    def check_logprobs(self, folder: Path) -> None:
        """Raises CreditError if the recorded log-probabilities are not the model's."""
        mean = sum(self.differences) / len(self.differences)
        if not mean <= _MOST_NATS:
            raise CreditError(
                f"the log-probabilities of {folder} are {mean:.3f} from the recorded ones on average, and "
                f"{_MOST_NATS} is the most: the gradient at other weights says nothing of this record"
            )

    def _logprobs(self, group: ReportGroup, turns: list[Sampled]) -> Iterator[Any]:
        """Of each turn of one row, the log-probabilities of its tokens."""
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

    def _sketch(self, total: Any, *, keeps_graph: bool) -> Numbers:
        torch = self.torch
        gradients = torch.autograd.grad(total, self.parameters, retain_graph=keeps_graph, allow_unused=True)
        sketch = torch.zeros(SKETCH, device=total.device, dtype=torch.float64)
        for number, gradient in enumerate(gradients):
            if gradient is not None:
                flat = gradient.reshape(-1)
                hashed = self._hashes(number, len(flat), total.device)
                signs = 1 - 2 * ((hashed >> 20) & 1)
                sketch.index_add_(0, hashed & (SKETCH - 1), (flat * signs).double())
        return sketch.cpu().numpy()

    def _hashes(self, number: int, count: int, device: Any) -> Any:
        """Hashes of a parameter's entries: computed, not stored, as a model may have billions."""
        mixed = self.torch.arange(count, device=device) + ((SEED + number * 0x9E3779B1) & 0x7FFFFFFF)
        for factor in (0x2C1B3C6D, 0x297A2D39):
            mixed = ((mixed ^ (mixed >> 15)) * factor) & 0x7FFFFFFF
        return mixed ^ (mixed >> 15)
