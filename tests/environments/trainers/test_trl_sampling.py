"""The sampler that keeps the KV cache over turns samples as from whole prompts; needs torch."""

import importlib
import os
import random
from contextlib import nullcontext
from functools import partial

import pytest

from environments.trainers.in_process_policy import Wanted

if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
    pytest.importorskip("trl", reason="needs torch and TRL")
torch = importlib.import_module("torch")
transformers = importlib.import_module("transformers")
sampling = importlib.import_module("environments.trainers.trl_sampling")
CachedSampler, RowCache = sampling.CachedSampler, sampling.RowCache
torch.set_num_threads(1)

VOCABULARY, STOPS = 64, (1, 2)
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
    "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def made(model, config, **more):
    torch.manual_seed(0)
    return model(config(**{**SIZES, "initializer_range": 0.2, **more}))


llama = partial(made, transformers.LlamaForCausalLM, transformers.LlamaConfig)
WHOLE = {
    "llama": llama,
    "qwen3": partial(made, transformers.Qwen3ForCausalLM, transformers.Qwen3Config, head_dim=8),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, initializer_range=0.2)
    ),
}


def windowed():
    return made(
        transformers.Qwen2ForCausalLM, transformers.Qwen2Config,
        use_sliding_window=True, sliding_window=8, layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip


def linear():
    return made(
        transformers.Qwen3NextForCausalLM, transformers.Qwen3NextConfig,
        layer_types=["linear_attention", "full_attention"], head_dim=8, linear_key_head_dim=8,
        linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=2, num_experts=2,
        num_experts_per_tok=1, moe_intermediate_size=8, shared_expert_intermediate_size=8,
    )  # fmt: skip


def stretched():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    return llama(max_position_embeddings=16, rope_parameters=rope)


def words(seed, length):
    return random.Random(seed).choices(range(3, VOCABULARY), k=length)


def wanted(prompt_ids, *, seed=0, most=6):
    draws = random.Random(f"{seed}:{len(prompt_ids)}")
    return Wanted(prompt_ids=tuple(prompt_ids), max_tokens=most, draws=draws)


@torch.no_grad()
def reread(model, prompt_ids, *, seed=0, most=6):
    """The turn, by a pass over the whole row for each token, without any cache."""
    draws = wanted(prompt_ids, seed=seed).draws
    ids, logprobs = [*prompt_ids], []
    while len(logprobs) < most and (not logprobs or ids[-1] not in STOPS):
        log_p = torch.log_softmax(
            model.eval()(torch.tensor([ids]), use_cache=False).logits[0, -1].float(), -1
        )
        mass = log_p.double().exp().cumsum(-1)
        ids.append(int(torch.searchsorted(mass, draws.random() * mass[-1], right=True)))
        logprobs.append(float(log_p[ids[-1]]))
    return ids[len(prompt_ids) :], logprobs


class Checked:
    """A sampler whose turns are compared with those of passes over whole rows."""

    def __init__(self, model, **options):
        self.model, self.sample = model, CachedSampler(model, STOPS, **options)
        self.read = 0

    def __call__(self, *prompts, most=6):
        """Return each prompt's turn. `prompts`: ids, or (ids, seed)."""
        asked = [each if isinstance(each, tuple) else (each, 0) for each in prompts]
        before = self.sample.prompt_tokens_read
        given = self.sample([wanted(ids, seed=seed, most=most) for ids, seed in asked])
        self.read = self.sample.prompt_tokens_read - before
        for (ids, seed), each in zip(asked, given, strict=True):
            token_ids, logprobs = reread(self.model, ids, seed=seed, most=most)
            assert [*each.token_ids] == token_ids
            assert each.logprobs == pytest.approx(logprobs, abs=1e-4)
        return [[*each.token_ids] for each in given]


def continued(row, turn, seed, length=5):
    return [*row, *turn, *words(seed, length)]


@pytest.mark.parametrize("name", WHOLE)
def test_turns_of_a_rollout_are_those_of_whole_prompts_and_only_new_tokens_are_read(name):
    sample, rows = Checked(WHOLE[name]()), [words(seed, 40 + seed) for seed in range(3)]
    turns = sample(*rows)
    for turn in range(1, 5):
        given = enumerate(zip(rows, turns, strict=True))
        rows = [continued(row, said, 10 * turn + index) for index, (row, said) in given]
        turns = sample(*rows)
        # The last sampled token was never read.
        assert sample.read == len(rows) * (5 + 1)


@pytest.mark.parametrize("model", [windowed, linear])
def test_a_model_whose_cache_is_more_than_rows_of_keys_and_values_reads_whole_prompts(model):
    sample = Checked(model())
    rows = [words(seed, 20) for seed in range(2)]
    turns = sample(*rows)
    rows = [continued(row, said, 7) for row, said in zip(rows, turns, strict=True)]
    sample(rows[0])
    assert sample.read == len(rows[0])


def test_a_model_whose_rotary_frequencies_change_with_the_length_reads_whole_prompts():
    sample, row = CachedSampler(stretched(), STOPS), words(0, 20)
    sample([wanted(row)])
    sample([wanted(row)])
    assert sample.prompt_tokens_read == 2 * 20


def test_what_siblings_have_in_common_is_read_once():
    sample, row = Checked(llama()), words(0, 50)
    sample(*((row, seed) for seed in range(4)))
    assert sample.read == 49 + 4


def test_what_several_items_have_in_common_is_read_once():
    sample, instructions = Checked(llama()), words(0, 100)
    rows = [[*instructions, *words(seed, 40)] for seed in (1, 2)]
    sample(*((row, seed) for row in rows for seed in range(4)))
    assert sample.read == 100 + 2 * 39 + 8


def test_two_siblings_may_continue_one_row():
    sample, row = Checked(llama()), words(0, 50)
    (said,) = sample(row)
    sample(continued(row, said, 1), continued(row, said, 2))
    assert sample.read == 2 * 6


def test_a_fork_reads_what_differs():
    sample, row = Checked(llama()), words(0, 50)
    (said,) = sample(row)
    sample([*row[:30], *words(1, 30)])
    assert sample.read == 30
    sample(continued(row, said, 2))
    assert sample.read == 6


def test_interleaved_groups_in_other_batches_and_orders_keep_their_rows():
    sample, first, second = Checked(llama()), words(0, 50), words(1, 90)
    (said,) = sample(first)
    (other,) = sample(second)
    first, second = continued(first, said, 2), continued(second, other, 3)
    other, said = sample(second, first)
    assert sample.read == 2 * 6
    sample(continued(first, said, 4), words(5, 70), continued(second, other, 6))
    assert sample.read == 2 * 6 + 70


def test_prompts_with_few_and_many_new_tokens_share_a_batch():
    sample, rows = Checked(llama()), [words(seed, 40) for seed in range(4)]
    turns = sample(*rows)
    new = (5, 200, 6, 130)
    rows = [continued(row, said, 9, length) for row, said, length in zip(rows, turns, new, strict=True)]
    sample(*rows, words(10, 3))
    assert sample.read <= 1.2 * (sum(new) + len(new) + 3)


def test_a_prompt_that_was_read_to_its_end_reads_its_last_token_again():
    sample, row = Checked(llama()), words(0, 50)
    assert sample(row) == sample(row)
    assert sample.read == 1
    sample(row[:20])
    assert sample.read == 1


def test_a_turn_of_one_token_is_continued():
    sample, row = Checked(llama()), words(0, 50)
    (said,) = sample(row, most=1)
    sample([*row, *said], most=1)
    assert (len(said), sample.read) == (1, 1)


def test_a_row_that_ended_before_its_batch_is_continued():
    sample, rows = Checked(llama()), [words(seed, 40) for seed in range(8)]
    turns = sample(*rows, most=40)
    assert len({*map(len, turns)}) > 2
    sample(*(continued(row, said, 9) for row, said in zip(rows, turns, strict=True)))
    assert sample.read == 8 * 6


# --- weights that change -------------------------------------------------------------------------------


def stepped(optimizer):
    def change(model):
        taken = optimizer(model.parameters())
        model(torch.tensor([words(1, 20)])).logits.logsumexp(-1).sum().backward()
        taken.step()
        model.zero_grad()

    return change


def written(model):
    for each in model.parameters():
        each.data.mul_(1.1)


@torch.no_grad()
def one_token(model):
    model.get_input_embeddings().weight[words(0, 50)[3]] += 0.5


CHANGES = {
    "sgd": stepped(partial(torch.optim.SGD, lr=0.1)),
    "fused AdamW": stepped(partial(torch.optim.AdamW, lr=0.01, fused=True)),
    "foreach Adam": stepped(partial(torch.optim.Adam, lr=0.01, foreach=True)),
    "data": written,
    "one token": one_token,
    "other tensors": lambda model: model.load_state_dict(llama(hidden_act="relu").state_dict(), assign=True),
    "to and fro": lambda model: written(model.double()) or model.float(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_change_between_turns_have_rows_read_anew(change):
    model = llama()
    sample, row = Checked(model), words(0, 50)
    (said,) = sample(row)
    CHANGES[change](model)
    row = continued(row, said, 1)
    sample(row)
    assert sample.read == len(row)


def test_an_adapter_that_is_switched_off_has_rows_read_anew():
    model = llama()
    layer = model.model.layers[0].self_attn.k_proj
    adapter = torch.nn.Parameter(torch.ones(layer.out_features))
    layer.register_parameter("adapter", adapter)
    layer.register_forward_hook(lambda _, __, output: output + adapter if adapter.requires_grad else output)
    sample, row = Checked(model), words(0, 50)
    (said,) = sample(row)
    adapter.requires_grad_(False)  # as peft does
    sample(continued(row, said, 1))
    assert sample.read == 50 + len(said) + 5


def test_training_mode_and_gradient_checkpointing_stay_on_and_change_nothing():
    model = llama()
    model.gradient_checkpointing_enable()
    sample, row = Checked(model), words(0, 50)
    model.train()
    (turn,) = sample.sample([wanted(row)])
    assert model.training
    assert [*turn.token_ids] == reread(model, row)[0]
    model.train()
    sample(continued(row, turn.token_ids, 1))
    assert sample.read == 6


def test_two_models_may_use_one_cache():
    cache, row = RowCache(), words(0, 50)
    other = llama()
    written(other)
    first, second = Checked(llama(), cache=cache), Checked(other, cache=cache)
    (said,) = first(row)
    second(continued(row, said, 1))
    assert second.read == 50 + len(said) + 5


# --- the bound -----------------------------------------------------------------------------------------


def bytes_of(tokens):
    return tokens * 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, dimensions, bytes


def test_the_oldest_rows_leave_when_the_bound_is_reached():
    cache = RowCache(bytes_of(150))
    sample, rows = Checked(llama(), cache=cache), [words(seed, 60) for seed in range(3)]
    turns = [sample(row)[0] for row in rows]
    assert sum(len(row) for row in cache.rows) <= 150
    kept = [continued(row, said, 9) for row, said in zip(rows, turns, strict=True)]
    sample(kept[2])
    assert sample.read == 6
    sample(kept[0])
    assert sample.read == len(kept[0])


def test_a_bound_of_zero_keeps_nothing():
    cache = RowCache(0)
    sample, row = Checked(llama(), cache=cache), words(0, 50)
    (said,) = sample(row)
    sample(continued(row, said, 1))
    assert (cache.rows, sample.read) == ({}, 50 + len(said) + 5)


def test_a_row_takes_the_place_of_those_that_it_continues():
    cache = RowCache()
    sample, row = Checked(llama(), cache=cache), words(0, 50)
    for turn in range(4):
        (said,) = sample(row)
        row = continued(row, said, turn)
    assert [len(ids) for ids in cache.rows] == [len(row) - 5 - 1]


# --- lower precision -----------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16", "autocast"])
def test_half_precision_stays_near_the_log_probabilities_of_whole_prompts(precision):
    model = llama()
    autocast = nullcontext
    if precision == "bf16":
        model = model.bfloat16()
    else:
        autocast = partial(torch.autocast, "cpu", torch.bfloat16)
    kept = CachedSampler(model, STOPS, autocast=autocast)
    rows, apart = [words(seed, 40) for seed in range(8)], []
    for turn in range(4):
        given = kept([wanted(row) for row in rows])
        for index, (row, each) in enumerate(zip(rows, given, strict=True)):
            whole = torch.tensor([[*row, *each.token_ids]])
            with torch.no_grad(), autocast():
                log_p = torch.log_softmax(model(whole).logits[0].float(), -1)
            of = log_p[range(len(row) - 1, whole.shape[1] - 1), each.token_ids]
            apart += (of - torch.tensor(each.logprobs)).abs().tolist()
            rows[index] = continued(row, each.token_ids, 10 * turn + index)
    assert sum(apart) / len(apart) < 0.05


@pytest.mark.parametrize("model", [*WHOLE.values(), linear])
@torch.no_grad()
def test_forced_ids_have_the_log_probabilities_of_a_pass_over_the_whole_row(model):
    model = model()
    sample, rows = CachedSampler(model, STOPS), [words(seed, 20 + seed) for seed in range(3)]
    (said,) = sample([wanted(rows[0])])
    texts = [words(seed, 4 + seed) for seed in range(3)]
    asked = [
        Wanted(prompt_ids=row, max_tokens=len(text), draws=random.Random(0), forced_ids=text)
        for row, text in zip(rows, texts, strict=True)
    ]
    *scored, again = sample([*asked, wanted(rows[0])])
    assert again.token_ids == said.token_ids
    for row, text, given in zip(rows, texts, scored, strict=True):
        log_p = torch.log_softmax(model.eval()(torch.tensor([[*row, *text]])).logits[0].float(), -1)
        whole = [float(log_p[len(row) + at - 1, token]) for at, token in enumerate(text)]
        assert given.token_ids == tuple(text)
        assert given.logprobs == pytest.approx(whole, abs=1e-5)
