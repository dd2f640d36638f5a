"""The measured tier of the credit report: its figures are those of a real model's exact gradients."""

from dataclasses import replace

import numpy as np
import pytest

from environments.trajectory import NOT_SAMPLED, TokenRow
from tests.turnwise.lab.credit_report.token_games import game
from tools.errors import ConfigError, CreditError
from turnwise.lab.credit_report.arms import read_for_report
from turnwise.lab.credit_report.gradients import model_gradients
from turnwise.lab.credit_report.report import credit_report
from turnwise.lab.credit_report.signal_noise import measure

torch = pytest.importorskip("torch", reason="needs torch, for a real model")
GROUPS, TURNS = 40, 3


@pytest.fixture(scope="module")
def model():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Qwen2Config(
        vocab_size=256, hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, tie_word_embeddings=True, max_position_embeddings=64, initializer_range=0.1,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def logprobs_of(model, row):
    ids = torch.tensor([list(row.token_ids)])
    return model(input_ids=ids).logits[0].log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]


@pytest.fixture(scope="module")
def sampled(model):
    """Groups whose log-probabilities are the model's."""
    groups = []
    for each in game(noise=0.0, groups=GROUPS, turns=TURNS):
        siblings = []
        for sibling in each.group.trajectories:
            (row,) = sibling.rows
            own = TokenRow(token_ids=row.token_ids, logprobs=[NOT_SAMPLED, *logprobs_of(model, row).tolist()])
            siblings.append(replace(sibling, rows=(own,)))
        groups.append(replace(each, group=replace(each.group, trajectories=tuple(siblings))))
    return groups


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    return path


def test_groups_needed_are_within_five_percent_of_exact_gradients(model, sampled, folder):
    data = read_for_report(sampled)
    exact = []
    for group in data.groups:
        turns = []
        for turn in group.turns:
            row = group.credited.group.trajectories[turn.trajectory].rows[0]
            own = logprobs_of(model, row)[turn.start - 1]
            turns.append(
                torch.cat([each.flatten() for each in torch.autograd.grad(own, [*model.parameters()])])
            )
        exact.append(group.advantages.astype(np.float32) @ torch.stack(turns).numpy())
    units, in_rewards = [group.unit for group in data.groups], [True] * len(data.arms)
    wanted = measure(np.stack(exact), units, in_rewards)
    found = measure(model_gradients(data, folder), units, in_rewards)
    for arm, each in wanted.items():
        assert found[arm].noise.value == pytest.approx(each.noise.value, rel=0.05)
        assert found[arm].direction == each.direction == 1


def test_the_report_says_whose_gradients_it_compares(sampled, folder):
    assert credit_report(sampled[:4], folder)["gradients"] == "the model's gradients"


def test_other_weights_are_refused(sampled, folder, model, tmp_path):
    from transformers import Qwen2ForCausalLM

    torch.manual_seed(1)
    Qwen2ForCausalLM(model.config).save_pretrained(tmp_path)
    with pytest.raises(CreditError, match="the gradient at other weights says nothing"):
        credit_report(sampled[:4], tmp_path)


def test_a_record_without_logprobs_is_refused(folder):
    with pytest.raises(CreditError, match="and the record has none"):
        credit_report(game(groups=4), folder)


def test_tokens_that_the_model_does_not_know_are_refused(sampled, tmp_path, model):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    small = Qwen2Config(**{**model.config.to_dict(), "vocab_size": 100})
    Qwen2ForCausalLM(small).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="ids below 100"):
        credit_report(sampled[:4], tmp_path)
