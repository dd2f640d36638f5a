# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false, reportAttributeAccessIssue=false
# torch is in no lock: its types are unknown where it is not installed.
"""Turns sampled from a transformers model: the model's own distribution, without anything that reshapes it.

`model.generate` takes over what a model's `generation_config` says (top_k, penalties, suppressed tokens), and
then its log-probabilities are not those of the loss.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from environments.trainers.in_process_policy import Sampled, Wanted


@torch.no_grad()
def sample_batch(
    batch: Sequence[Wanted],
    *,
    model: Any,
    stop_ids: Collection[int],
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> list[Sampled]:
    """One turn for each prompt, at temperature 1, up to and with the first stop token.

    Args:
        batch: what to sample; prompts are padded on the left.
        model: takes `position_ids`, `logits_to_keep` and a cache; left in the mode it was in.
        stop_ids: those that end a turn.
        autocast: what the loss is computed in.
    """
    was_training = model.training
    model.eval()
    try:
        with autocast():
            return _sampled(batch, model, frozenset(stop_ids))
    finally:
        model.train(was_training)


def _sampled(batch: Sequence[Wanted], model: Any, stop_ids: frozenset[int]) -> list[Sampled]:
    width = max(len(wanted.prompt_ids) for wanted in batch)
    padding = [width - len(wanted.prompt_ids) for wanted in batch]
    rows = [[0] * pad + list(wanted.prompt_ids) for pad, wanted in zip(padding, batch, strict=True)]
    seen = [[0] * pad + [1] * (width - pad) for pad in padding]
    ids, attention = (torch.tensor(each, device=model.device) for each in (rows, seen))
    positions = (attention.cumsum(-1) - 1).clamp(min=0)
    found: list[tuple[list[int], list[float]]] = [([], []) for _ in batch]
    going = set(range(len(batch)))
    cache: Any = None
    while True:
        output = model(
            input_ids=ids,
            attention_mask=attention,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = output.past_key_values
        tokens, logprobs = _drawn(output.logits[:, -1], [wanted.draws.random() for wanted in batch])
        for row in sorted(going):
            token_ids, of_tokens = found[row]
            token_ids.append(tokens[row])
            of_tokens.append(logprobs[row])
            if tokens[row] in stop_ids or len(token_ids) == batch[row].max_tokens:
                going.remove(row)
        if not going:
            return [Sampled(token_ids=tuple(each), logprobs=tuple(of)) for each, of in found]
        ids = torch.tensor(tokens, device=model.device)[:, None]
        attention = torch.cat([attention, torch.ones_like(ids)], dim=1)
        positions = positions[:, -1:] + 1


def _drawn(logits: Any, draws: Sequence[float]) -> tuple[list[int], list[float]]:
    """A token for each row, where a number from 0 to 1 falls among the probabilities."""
    log_p = torch.log_softmax(logits.float(), dim=-1)
    mass = log_p.double().exp().cumsum(-1)
    reached = torch.tensor(draws, dtype=mass.dtype, device=mass.device) * mass[:, -1]
    tokens = torch.searchsorted(mass, reached[:, None], right=True).clamp(max=mass.shape[-1] - 1)
    return tokens[:, 0].tolist(), log_p.gather(1, tokens)[:, 0].tolist()
