# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUntypedFunctionDecorator=false, reportAttributeAccessIssue=false
# TRL and torch are in no lock: their types are unknown where they are not installed.
"""Turns sampled from the model that TRL trains: in its own process, or by the vLLM that TRL keeps for it."""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from trl.generation import vllm_generation

from environments.trainers.in_process_policy import Batches, Sample, Sampled, Wanted


def sampler_of(trainer: Any, stop_ids: Collection[int]) -> Sample:
    """How a `GRPOTrainer` samples, in its settings; `stop_ids` are those that end a turn."""
    accelerator = trainer.accelerator
    if trainer.use_vllm:
        by = _by_server if trainer.vllm_generation.mode == "server" else _by_engine
        sample = partial(by, engine=trainer.vllm_generation, stop_ids=[*stop_ids])
    else:
        model = accelerator.unwrap_model(trainer.model)
        sample = partial(sample_batch, model=model, stop_ids=stop_ids, autocast=accelerator.autocast)

    def on_device(batch: Sequence[Wanted]) -> Sequence[Sampled]:
        # Turns are sampled in a thread, and a thread begins on the first device, whichever process it is of.
        with torch.cuda.device(accelerator.device) if accelerator.device.type == "cuda" else nullcontext():
            return sample(batch)

    return Batches(on_device)


@torch.no_grad()
def sample_batch(
    batch: Sequence[Wanted],
    *,
    model: Any,
    stop_ids: Collection[int],
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> list[Sampled]:
    """One turn for each prompt, at temperature 1, up to and with the first stop token.

    `model.generate` would take over a model's `generation_config` (top_k, penalties, suppressed
    tokens), and then its log-probabilities are not those of the loss.

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


def _by_server(batch: Sequence[Wanted], *, engine: Any, stop_ids: list[int]) -> list[Sampled]:
    """A request for each turn: siblings ask for different numbers of tokens, and have seeds of their own."""

    def one(wanted: Wanted) -> Sampled:
        # The client's own defaults are temperature 1 and no other changes of the distribution.
        given = engine.vllm_client.generate(
            [[*wanted.prompt_ids]],
            max_tokens=wanted.max_tokens,
            generation_kwargs=_ends_and_seed(wanted, stop_ids),
        )
        return _read(given["completion_ids"][0], given["logprobs"][0])

    with ThreadPoolExecutor(len(batch)) as pool:
        return list(pool.map(one, batch))


def _by_engine(batch: Sequence[Wanted], *, engine: Any, stop_ids: list[int]) -> list[Sampled]:
    outputs = engine.llm.generate(
        [{"prompt_token_ids": [*wanted.prompt_ids]} for wanted in batch],
        sampling_params=[
            vllm_generation.SamplingParams(
                max_tokens=wanted.max_tokens, logprobs=0, **_ends_and_seed(wanted, stop_ids)
            )
            for wanted in batch
        ],
        use_tqdm=False,
    )
    logprobs, _ = vllm_generation.extract_logprobs(outputs)
    return [_read(each.outputs[0].token_ids, of) for each, of in zip(outputs, logprobs, strict=True)]


def _ends_and_seed(wanted: Wanted, stop_ids: list[int]) -> dict[str, Any]:
    # The chat format's ends alone, as above: a model's own `eos_token` may be another.
    return {"stop_token_ids": stop_ids, "ignore_eos": True, "seed": wanted.draws.getrandbits(31)}


def _read(token_ids: Sequence[int], logprobs: Sequence[Sequence[float]]) -> Sampled:
    """What vLLM gives for one prompt, where the sampled token alone has a log-probability."""
    return Sampled(token_ids=tuple(token_ids), logprobs=tuple(of for (of,) in logprobs))
