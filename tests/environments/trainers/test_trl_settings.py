"""What settings of TRL do to its own trainer's step; needs torch and TRL."""

import importlib
import os
import warnings
from dataclasses import dataclass, replace

import pytest

from environments.trainers.settings import InexactStepWarning
from tools.errors import ConfigError
from turnwise.lab.probe import canaries as canary
from turnwise.lab.probe.canaries import CanaryEnv

if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
    pytest.importorskip("trl", reason="needs torch and TRL, to run TRL's own trainer")
steps = importlib.import_module("tests.environments.trainers.trl_steps")
torch, trl, transformers, tiny_model = steps.torch, steps.trl, steps.transformers, steps.tiny_model
EXACT = (pytest.approx(1, abs=1e-4), pytest.approx(1, abs=1e-4))

# The step is the policy gradient with these, all at once; those of `vespo` are tried with it.
HARMLESS = {
    "average_tokens_across_devices": False, "cast_lm_head_to_fp32": True, "data_seed": 3,
    "dataloader_drop_last": True, "disable_dropout": True, "gradient_checkpointing": False,
    "ignore_data_skip": True, "label_smoothing_factor": 0.1, "logging_nan_inf_filter": False,
    "max_completion_length": 7, "max_tool_calling_iterations": 1,
    "multi_objective_aggregation": "normalize_then_sum", "num_generations_eval": 1, "pad_to_multiple_of": 8,
    "per_device_eval_batch_size": 3, "remove_unused_columns": False, "reward_weights": [7.0],
    "sapo_temperature_neg": 9.0, "sapo_temperature_pos": 9.0, "seed": 3, "shuffle_dataset": False,
    "torch_empty_cache_steps": 1, "train_sampling_strategy": "group_by_length", "use_cache": True,
    "weight_decay": 0.5,
}  # fmt: skip
VESPO = {"vespo_k_neg": 9.0, "vespo_k_pos": 0.5, "vespo_lambda_neg": 0.0, "vespo_lambda_pos": 7.0}


@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        pytest.param("dapo", HARMLESS, id="all"),
        pytest.param("vespo", VESPO, id="vespo"),
        pytest.param("dr_grpo", {"gradient_checkpointing_kwargs": {"use_reentrant": True}}, id="reentrant"),
        pytest.param("dapo", {"generation_batch_size": 8}, id="generation_batch"),
    ],
)
def test_with_what_is_harmless_the_step_is_the_policy_gradient_and_nothing_warns(tmp_path, loss, settings):
    with warnings.catch_warnings():
        warnings.simplefilter("error", InexactStepWarning)
        done = steps.run(CanaryEnv, tmp_path, loss_type=loss, **settings)
    assert steps.compared(done, loss) == EXACT


def test_a_setting_of_a_later_trl_warns_where_it_is_set(tmp_path, monkeypatch):
    @dataclass
    class Later(trl.GRPOConfig):
        new_term: float = 0.0

    monkeypatch.setattr(trl, "GRPOConfig", Later)
    with warnings.catch_warnings():
        warnings.simplefilter("error", InexactStepWarning)
        steps.run(CanaryEnv, tmp_path)
    with pytest.warns(InexactStepWarning, match=r"what new_term=0\.5 does to the step was never tried"):
        steps.run(CanaryEnv, tmp_path, new_term=0.5)


def test_what_is_refused_can_be_run_with_a_warning(tmp_path):
    with pytest.warns(InexactStepWarning, match=r"loss_type=grpo divides each session by its own length"):
        steps.run(CanaryEnv, tmp_path, loss_type="grpo", exact="warn")


@pytest.mark.parametrize("trade", [{"num_iterations": 2}, {"steps_per_generation": 4}], ids=str)
@pytest.mark.parametrize("loss", ["dr_grpo", "dapo"])
def test_steps_on_older_samples_warn_and_add_up_while_weights_hardly_move(tmp_path, trade, loss):
    with pytest.warns(InexactStepWarning, match="trains on samples of older weights"):
        done = steps.run(CanaryEnv, tmp_path, steps=2, loss_type=loss, learning_rate=1e-6, **trade)
    expected = -steps.gradients.policy_gradient(done.before, done.rollouts.groups)
    assert steps.gradients.cosine(sum(done.gradients), expected) == pytest.approx(1, abs=1e-4)


def test_a_clipped_norm_leaves_the_direction(tmp_path):
    done = steps.run(CanaryEnv, tmp_path, max_grad_norm=1e-3)
    cosine, _ = steps.compared(done, "dr_grpo")
    assert cosine == pytest.approx(1, abs=1e-6)
    assert done.gradient.norm() == pytest.approx(1e-3, rel=1e-3)


def tripled():
    group = canary.unequal_lengths()
    return replace(group, advantages=tuple(tuple(3 * each for each in row) for row in group.advantages))


@pytest.fixture
def perturbed(tmp_path):
    """A model that differs from the one that TRL loads as its reference."""
    folder = tmp_path / "reference"
    tiny_model().save_pretrained(folder)

    def model():
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
        torch.manual_seed(1)
        for weights in loaded.parameters():
            weights.data += 0.1 * torch.randn_like(weights)
        return loaded

    return model


def router():
    """A model whose trainer adds a loss of its routers."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    experts = {"num_experts": 4, "moe_intermediate_size": 8, "num_experts_per_tok": 2}
    config = transformers.Qwen3MoeConfig(
        vocab_size=2048, num_key_value_heads=1, head_dim=8, eos_token_id=2, pad_token_id=0, **sizes, **experts
    )
    return transformers.Qwen3MoeForCausalLM(config)


TERMS = {
    "beta": {"beta": 0.5, "use_bias_correction_kl": True, "sync_ref_model": True},
    "entropy": {"entropy_coef": 0.5},
    "router": {"model": router, "router_aux_loss_coef": 0.5},
}


@pytest.mark.parametrize("name", TERMS)
def test_a_term_of_trls_own_is_the_same_whatever_the_advantages_are(tmp_path, perturbed, name):
    on = {"model": perturbed, **TERMS[name]}
    off = {"model": on["model"]} | ({"router_aux_loss_coef": 0.0} if name == "router" else {})

    def added(group):
        env = type("One", (CanaryEnv,), {"groups": {"one": group}})
        given = {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 4}
        with_term, without = (steps.run(env, tmp_path, **given, **settings) for settings in (on, off))
        return with_term.gradient - without.gradient

    term, other = added(canary.unequal_lengths), added(tripled)
    assert term.norm() > 1e-3
    assert torch.allclose(term, other, atol=1e-3 * term.norm().item())


def old_gpt():
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 256}
    ids = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=2048, **sizes, **ids))


def test_modules_that_drop_are_refused_and_what_the_refusal_says_is_exact(tmp_path):
    with pytest.raises(ConfigError, match=r"dropout \(transformer\.drop\).*use GRPOConfig\(disable_dropout"):
        steps.run(CanaryEnv, tmp_path, model=old_gpt)
    done = steps.run(CanaryEnv, tmp_path, model=old_gpt, disable_dropout=True)
    done.before.eval()
    assert steps.compared(done, "dr_grpo") == EXACT


def test_a_config_that_drops_is_refused_where_disable_dropout_does_not_reach_it(tmp_path):
    with pytest.raises(ConfigError, match=r"at random when it trains \(attention_dropout=0\.1\).*to 0\.0"):
        steps.run(CanaryEnv, tmp_path, model=lambda: tiny_model(attention_dropout=0.1), disable_dropout=True)


def test_fewer_items_than_a_step_takes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"a step takes 8 items .*, and there are 4; lower"):
        steps.run(CanaryEnv, tmp_path, gradient_accumulation_steps=4, per_device_train_batch_size=8)
