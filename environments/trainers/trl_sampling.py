# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUntypedFunctionDecorator=false
# TRL and torch are not locked, so their names have no types.
"""Sampling for TRL: by its model, whose KV cache is kept over turns, or by the vLLM that it uses."""

from bisect import bisect
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from transformers.cache_utils import DynamicCache, DynamicLayer

from environments.trainers.in_process_policy import Batches, Sample, Sampled, Wanted

MAX_CACHE_BYTES = 2 * 2**30
_MIN_SHARED_TOKENS = 32
"""Minimum number of tokens that prompts must share to be read once, in a separate forward pass."""
_MAX_REREAD = 0.1
"""Cached tokens read again per new token, so that prompts with unequal numbers of new tokens share a pass."""

TokenIds = tuple[int, ...]
KeysValues = tuple[Any, Any]
"""Keys and values of one row, each [layer, head, token, dimension]."""


def sampler_of(trainer: Any, stop_ids: Collection[int], cache: "RowCache | None" = None) -> Sample:
    """Return a `GRPOTrainer`'s sampler: its model, or the vLLM that it uses."""
    accelerator = trainer.accelerator
    if trainer.use_vllm:
        by = _sample_by_server if trainer.vllm_generation.mode == "server" else _sample_by_engine
        sample = partial(by, engine=trainer.vllm_generation, stop_ids=[*stop_ids])
    else:
        model = accelerator.unwrap_model(trainer.model)
        sample = CachedSampler(model, stop_ids, autocast=accelerator.autocast, cache=cache)

    def on_device(batch: Sequence[Wanted]) -> Sequence[Sampled]:
        # Turns are sampled in a thread, and new threads use the first device.
        with torch.cuda.device(accelerator.device) if accelerator.device.type == "cuda" else nullcontext():
            return sample(batch)

    return Batches(on_device)


@contextmanager
def whole_weights(trainer: Any) -> Generator[None]:
    """Hold whole weights in place of FSDP2's shards while a rollout samples.

    Gathering shards needs all processes at each token, and each samples another number of tokens.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    parts = [each for each in model.modules() if isinstance(each, FSDPModule)]
    if not parts or trainer.use_vllm:
        yield
        return
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        is_resharded = bool(trainer.accelerator.state.fsdp_plugin.reshard_after_forward)
        for part in parts:
            part.set_reshard_after_forward(is_resharded, recurse=False)
            part.reshard()
        for part in (model, model.get_output_embeddings()):  # as accelerate has it
            if isinstance(part, FSDPModule):
                part.set_reshard_after_forward(False, recurse=False)
        with torch.no_grad():
            # The backward pass gathers what was used before the loss, which has to be the same everywhere.
            model(input_ids=torch.zeros((1, 1), dtype=torch.long, device=trainer.accelerator.device))


class RowCache:
    """Keys and values of rows, by token ids; the oldest rows are evicted first."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._weights: Any = None
        self.rows: dict[TokenIds, KeysValues] = {}

    def clear(self) -> None:
        self.rows = {}

    def clear_if_changed(self, model: Any) -> None:
        """Clear if the weights differ from those of the last call."""
        parameters = [*model.parameters()]
        # Some values, too, since fused optimizers leave versions as they are.
        some = torch.cat(
            [each.detach().flatten()[:: max(1, each.numel() // 32)].cpu() for each in parameters]
        )
        versions = [(each.data_ptr(), each._version, each.requires_grad) for each in parameters]
        if (versions, some.tolist()) != self._weights:
            self.clear()
        self._weights = versions, some.tolist()

    def add(self, ids: TokenIds, row: KeysValues) -> None:
        """Add a row in the place of those that it continues."""
        self.rows = {known: kept for known, kept in self.rows.items() if ids[: len(known)] != known}
        self.rows[ids] = row
        excess = sum(map(_bytes_of, self.rows.values())) - self._max_bytes
        while excess > 0:
            excess -= _bytes_of(self.rows.pop(next(iter(self.rows))))


class CachedSampler:
    """Samples turns with a model, and keeps their keys and values, so that the next turns read what is new.

    They are kept until the weights change. A model without a plain cache reads each prompt anew.
    """

    def __init__(
        self,
        model: Any,
        stop_ids: Collection[int],
        *,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        cache: RowCache | None = None,
    ) -> None:
        self._model = model
        self._stop_ids = frozenset(stop_ids)
        self._autocast = autocast
        self._cache = RowCache() if cache is None else cache
        self._is_plain: bool | None = None
        self.prompt_tokens_read = 0

    @torch.no_grad()
    def __call__(self, batch: Sequence[Wanted]) -> list[Sampled]:
        """Sample one turn per prompt at temperature 1, up to and including the first stop token.

        Unlike `model.generate`, this ignores the model's `generation_config` (top_k, penalties), so that
        log-probabilities are those of the loss, which is computed in `autocast`.
        """
        was_training = self._model.training
        self._model.eval()
        try:
            with self._autocast():
                if self._is_plain is None:
                    self._is_plain = has_plain_cache(self._model)
                if self._is_plain:
                    return self._sample_with_rows(batch)
                return self._sample(batch, None, max(len(wanted.prompt_ids) for wanted in batch))[0]
        finally:
            self._model.train(was_training)

    def _sample_with_rows(self, batch: Sequence[Wanted]) -> list[Sampled]:
        self._cache.clear_if_changed(self._model)
        prompts = [tuple(wanted.prompt_ids) for wanted in batch]
        known, width = self._read_beginnings(prompts)
        end = width + (0 if known is None else known.get_seq_length())
        sampled, cache = self._sample(batch, known, width)
        for index, (ids, each) in enumerate(zip(prompts, sampled, strict=True)):
            fed = (*ids, *each.token_ids[:-1])
            self._cache.add(fed, _row_of(cache, index, end - len(ids), len(fed)))
        return sampled

    def _read_beginnings(self, prompts: Sequence[TokenIds]) -> tuple[Any, int]:
        """Return a cache of all but the last tokens of the prompts, and the number of those."""
        rows = dict(self._cache.rows)
        while beginnings := _shared_beginnings(prompts, rows):
            self._read(beginnings, rows)
        new = [max(1, len(ids) - known) for ids, _, known in _longest_matches(prompts, rows)]
        width = max(n for n in new if sum(max(0, n - each) for each in new) <= _MAX_REREAD * sum(new))
        self._read([ids[:-width] for ids in prompts], rows)
        matches = _longest_matches(prompts, rows)
        return _join([(rows.get(key), max(0, len(ids) - width)) for ids, key, _ in matches]), width

    def _read(self, beginnings: Collection[TokenIds], rows: dict[TokenIds, KeysValues]) -> None:
        """Add the rows of `beginnings` that are missing."""
        matches = _longest_matches({*beginnings}, rows)
        missing = sorted((len(ids) - known, ids, key) for ids, key, known in matches if known < len(ids))
        # A pass is as wide as its longest row.
        for _, group in groupby(missing, key=lambda each: each[0].bit_length()):
            of_a_size = [*group]
            width = of_a_size[-1][0]
            known = [(rows.get(key), len(ids) - new) for new, ids, key in of_a_size]
            past = max(length for _, length in known)
            left = [past - length for _, length in known]
            unread = [[*ids[-new:], *[0] * (width - new)] for new, ids, _ in of_a_size]
            attention = [
                [0] * pad + [1] * len(ids) + [0] * (width - new)
                for pad, (new, ids, _) in zip(left, of_a_size, strict=True)
            ]
            output = self._forward(self._tensor(unread), self._tensor(attention), _join(known))
            for index, (pad, (new, ids, _)) in enumerate(zip(left, of_a_size, strict=True)):
                rows[ids] = _row_of(output.past_key_values, index, pad, len(ids))
                self.prompt_tokens_read += new

    def _sample(self, batch: Sequence[Wanted], cache: Any, width: int) -> tuple[list[Sampled], Any]:
        """Sample after the last `width` tokens of each prompt; `cache` has what stands before them."""
        past = 0 if cache is None else cache.get_seq_length()
        prompts = [wanted.prompt_ids for wanted in batch]
        self.prompt_tokens_read += sum(min(width, len(ids)) for ids in prompts)
        ids = self._tensor([[0] * (width - len(ids)) + [*ids[-width:]] for ids in prompts])
        attention = self._tensor([[0] * (past + width - len(ids)) + [1] * len(ids) for ids in prompts])
        found: list[tuple[list[int], list[float]]] = [([], []) for _ in batch]
        going, length = set(range(len(batch))), 0
        while True:
            output = self._forward(ids, attention, cache)
            cache = output.past_key_values
            forced = [next(iter(wanted.forced_ids[length:]), None) for wanted in batch]
            draws = [wanted.draws.random() for wanted in batch]
            tokens, logprobs = _draw(output.logits[:, -1], draws, forced)
            length += 1
            for row in sorted(going):
                token_ids, of_tokens = found[row]
                token_ids.append(tokens[row])
                of_tokens.append(logprobs[row])
                if tokens[row] in self._stop_ids or len(token_ids) == batch[row].max_tokens:
                    going.remove(row)
            if not going:
                return [Sampled(token_ids=tuple(each), logprobs=tuple(of)) for each, of in found], cache
            ids = self._tensor([[token] for token in tokens])
            attention = torch.cat([attention, torch.ones_like(ids)], dim=1)

    def _forward(self, ids: Any, attention: Any, cache: Any) -> Any:
        return self._model(
            input_ids=ids,
            attention_mask=attention,
            position_ids=(attention.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )

    def _tensor(self, ids: list[list[int]]) -> Any:
        return torch.tensor(ids, device=self._model.device)


def has_plain_cache(model: Any) -> bool:
    """Whether keys and values are the model's only state, and later tokens leave them unchanged.

    Not so with sliding windows, linear attention, layers that share keys or lie on several devices, and
    rotary frequencies that change with the length.
    """
    kinds = [str(getattr(module, "rope_type", "")) for module in model.modules()]
    if any("dynamic" in kind or "longrope" in kind for kind in kinds):
        return False
    one = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    cache = model(input_ids=one, use_cache=True, logits_to_keep=1).past_key_values
    layers = getattr(cache, "layers", ())
    if type(cache) is not DynamicCache or any(
        type(layer) is not DynamicLayer or layer.get_seq_length() != 1 for layer in layers
    ):
        return False
    return len({(layer.keys.shape, layer.values.shape, layer.keys.device) for layer in layers}) == 1


def _shared_beginnings(prompts: Sequence[TokenIds], rows: dict[TokenIds, KeysValues]) -> list[TokenIds]:
    """Return the prefixes that several prompts share, without last tokens, and that no cached row has."""
    beginnings: list[TokenIds] = []
    was_shared = False
    for (first, _, known), (second, *_) in pairwise(_longest_matches(sorted(prompts), rows)):
        length = min(_common(first, second), len(first) - 1)
        is_shared = length - known >= _MIN_SHARED_TOKENS
        if is_shared:
            beginnings.append((beginnings.pop() if was_shared else first)[:length])
        was_shared = is_shared
    return beginnings


def _longest_matches(
    prompts: Collection[TokenIds], rows: dict[TokenIds, KeysValues]
) -> list[tuple[TokenIds, TokenIds, int]]:
    """Return (prompt, cached row with the longest common prefix, its length) for each prompt."""
    ordered = sorted(rows)
    found: list[tuple[TokenIds, TokenIds, int]] = []
    for ids in prompts:
        index = bisect(ordered, ids)
        neighbours = ordered[max(0, index - 1) : index + 1]
        known, key = max(((_common(ids, row), row) for row in neighbours), default=(0, ()))
        found.append((ids, key, known))
    return found


def _common(first: TokenIds, second: TokenIds) -> int:
    pairs = zip(first, second, strict=False)
    differ = (index for index, (one, other) in enumerate(pairs) if one != other)
    return next(differ, min(len(first), len(second)))


def _join(rows: Sequence[tuple[KeysValues | None, int]]) -> DynamicCache | None:
    """Return a cache of the first tokens of each row, padded on the left."""
    width = max(length for _, length in rows)
    some = next((row for row, length in rows if row and length), None)
    if some is None:
        return None
    cache = DynamicCache()
    for layer in range(len(some[0])):
        keys, values = (
            each[layer].new_zeros((len(rows), each.shape[1], width, each.shape[3])) for each in some
        )
        for index, (row, length) in enumerate(rows):
            if row:
                keys[index, :, width - length :] = row[0][layer, :, :length]
                values[index, :, width - length :] = row[1][layer, :, :length]
        cache.update(keys, values, layer)
    return cache


def _row_of(cache: Any, index: int, start: int, length: int) -> KeysValues:
    """Return a copy of `length` tokens of a row of a batch."""
    within = slice(start, start + length)
    keys = torch.stack([layer.keys[index, :, within] for layer in cache.layers])
    return keys, torch.stack([layer.values[index, :, within] for layer in cache.layers])


def _bytes_of(row: KeysValues) -> int:
    return sum(each.nbytes for each in row)


def _draw(logits: Any, draws: Sequence[float], forced: Sequence[int | None]) -> tuple[list[int], list[float]]:
    """Return one token per row, and its log-probability: the forced token, or else one drawn."""
    log_p = torch.log_softmax(logits.float(), dim=-1)
    mass = log_p.double().exp().cumsum(-1)
    reached = torch.tensor(draws, dtype=mass.dtype, device=mass.device) * mass[:, -1]
    tokens = torch.searchsorted(mass, reached[:, None], right=True).clamp(max=mass.shape[-1] - 1)
    for row, token in enumerate(forced):
        tokens[row] = tokens[row] if token is None else token
    return tokens[:, 0].tolist(), log_p.gather(1, tokens)[:, 0].tolist()


def _sample_by_server(batch: Sequence[Wanted], *, engine: Any, stop_ids: list[int]) -> list[Sampled]:
    """Send one request per turn: token limits and seeds differ."""

    def one(wanted: Wanted) -> Sampled:
        # By default the client samples at temperature 1 from the unchanged distribution.
        given = engine.vllm_client.generate(
            [[*wanted.prompt_ids]],
            max_tokens=wanted.max_tokens,
            generation_kwargs=_ends_and_seed(wanted, stop_ids),
        )
        return _read_reply(given["completion_ids"][0], given["logprobs"][0])

    with ThreadPoolExecutor(len(batch)) as pool:
        return list(pool.map(one, batch))


def _sample_by_engine(batch: Sequence[Wanted], *, engine: Any, stop_ids: list[int]) -> list[Sampled]:
    from trl.generation import vllm_generation  # noqa: PLC0415  # the model samples without TRL

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
    return [_read_reply(each.outputs[0].token_ids, of) for each, of in zip(outputs, logprobs, strict=True)]


def _ends_and_seed(wanted: Wanted, stop_ids: list[int]) -> dict[str, Any]:
    # Only the chat format's stop tokens end a turn; a model's `eos_token` may be another.
    return {"stop_token_ids": stop_ids, "ignore_eos": True, "seed": wanted.draws.getrandbits(31)}


def _read_reply(token_ids: Sequence[int], logprobs: Sequence[Sequence[float]]) -> Sampled:
    return Sampled(token_ids=tuple(token_ids), logprobs=tuple(of for (of,) in logprobs))
