"""Every setting that TRL's trainer reads is refused, exact, TRL's own term, or no part of a step; needs TRL.

A release that reads another one fails here until somebody has looked what it does.
"""

import importlib
import os
from dataclasses import fields, replace

import pytest

from environments.probe.canary_env import CanaryEnv
from environments.trainers import canary
from environments.trainers.trl_settings import RULES
from tests.environments.trainers.matrix import report
from tests.environments.trainers.settings_read import settings_read
from tools.errors import ConfigError

if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
    pytest.importorskip("trl", reason="needs torch and TRL, to run TRL's own trainer")
steps = importlib.import_module("tests.environments.trainers.trl_steps")
torch, trl, transformers, tiny_model = steps.torch, steps.trl, steps.transformers, steps.tiny_model

# The step is the policy gradient with these, all at once; those of `vespo` are tried with it.
EXACT = {
    "average_tokens_across_devices": False,
    "cast_lm_head_to_fp32": True,
    "data_seed": 3,
    "dataloader_drop_last": True,
    "disable_dropout": True,
    "gradient_checkpointing": False,
    "ignore_data_skip": True,
    "label_smoothing_factor": 0.1,
    "logging_nan_inf_filter": False,
    "max_completion_length": 7,
    "max_tool_calling_iterations": 1,
    "multi_objective_aggregation": "normalize_then_sum",
    "num_generations_eval": 1,
    "pad_to_multiple_of": 8,
    "per_device_eval_batch_size": 3,
    "remove_unused_columns": False,
    "reward_weights": [7.0],
    "sapo_temperature_neg": 9.0,
    "sapo_temperature_pos": 9.0,
    "seed": 3,
    "shuffle_dataset": False,
    "torch_empty_cache_steps": 1,
    "train_sampling_strategy": "group_by_length",
    "use_cache": True,
    "weight_decay": 0.5,
}
EXACT_WITH_VESPO = {"vespo_k_neg": 9.0, "vespo_k_pos": 0.5, "vespo_lambda_neg": 0.0, "vespo_lambda_pos": 7.0}
# What other tests try, in several values.
TRIED_ELSEWHERE = """
    gradient_accumulation_steps loss_type num_generations per_device_train_batch_size steps_per_generation
    max_steps gradient_checkpointing_kwargs generation_batch_size"""
# TRL adds these to the step, or takes it with them; what the advantages ask for stays in it.
OWN = """
    beta sync_ref_model use_bias_correction_kl entropy_coef use_adaptive_entropy entropy_coef_delta
    entropy_coef_max entropy_coef_min entropy_target router_aux_loss_coef max_grad_norm learning_rate optim
    optim_args adam_beta1 adam_beta2 adam_epsilon lr_scheduler_type lr_scheduler_kwargs num_train_epochs
    bf16 fp16 use_liger_kernel liger_kernel_config full_determinism torch_compile torch_compile_backend
    torch_compile_mode model_init_kwargs"""
# TRL refuses them itself, or they are about several processes, of which there is one.
ONE_PROCESS = """
    auto_find_batch_size parallelism_config deepspeed fsdp fsdp_config ddp_broadcast_buffers
    ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ds3_gather_for_generation"""
# Its own sampling in vLLM, evaluation, checkpoints, logs, and how data is loaded.
AROUND = """
    transformers_continuous_batching_config trust_remote_code output_dir report_to debug disable_tqdm
    accelerator_config activation_checkpointing activation_checkpointing_kwargs
    log_completions log_completions_hub_repo log_multimodal log_unique_prompts num_completions_to_print
    hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy hub_token push_to_hub
    dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers
    dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor length_column_name
    batch_eval_metrics bf16_full_eval fp16_full_eval eval_accumulation_steps eval_do_concat_batches
    eval_use_gather_object include_for_metrics prediction_loss_only label_names
    enable_jit_checkpoint greater_is_better include_num_input_tokens_seen load_best_model_at_end
    metric_for_best_model restore_callback_states_from_checkpoint save_only_model save_strategy
    save_total_limit skip_memory_metrics"""
VLLM = "vllm_"


def read():
    names = {name.partition(".")[0] for name in settings_read(trl.GRPOTrainer, transformers.Trainer)}
    return names & {each.name for each in fields(trl.GRPOConfig)}


def classified():
    refused = {rule.setting for rule in RULES}
    listed = " ".join((TRIED_ELSEWHERE, OWN, ONE_PROCESS, AROUND)).split()
    return refused | {*EXACT} | {*EXACT_WITH_VESPO} | {*listed}


def test_every_setting_that_is_read_has_its_place():
    assert {name for name in read() - classified() if not name.startswith(VLLM)} == set()


def test_every_setting_that_has_a_place_is_one_of_trl():
    ours = {"world_size", "gradient_accumulation_kwargs"}
    assert classified() - {each.name for each in fields(trl.GRPOConfig)} == ours


@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        pytest.param("dapo", EXACT, id="all"),
        pytest.param("vespo", EXACT_WITH_VESPO, id="vespo"),
        pytest.param("dr_grpo", {"gradient_checkpointing_kwargs": {"use_reentrant": True}}, id="reentrant"),
        pytest.param("dapo", {"generation_batch_size": 8}, id="generation_batch"),
    ],
)
def test_with_what_is_exact_the_step_is_the_policy_gradient(tmp_path, loss, settings):
    done = steps.run(CanaryEnv, tmp_path, loss_type=loss, **settings)
    assert steps.compared(done, loss) == (pytest.approx(1, abs=1e-4), pytest.approx(1, abs=1e-4))


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
        return (
            steps.run(env, tmp_path, **given, **on).gradient
            - steps.run(env, tmp_path, **given, **off).gradient
        )

    term, other = added(canary.unequal_lengths), added(tripled)
    assert term.norm() > 1e-3
    assert torch.allclose(term, other, atol=1e-3 * term.norm().item())


def old_gpt():
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 256}
    ids = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=2048, **sizes, **ids))


def test_modules_that_drop_are_refused_and_what_the_refusal_says_is_exact(tmp_path):
    report(
        trainer="TRL", version=trl.__version__, path="`rollout_func`, `TurnwiseGRPOTrainer`",
        refused=("dropout in the model", "fewer items than a step takes", "world_size > 1"),
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"dropout \(transformer\.drop\).*use GRPOConfig\(disable_dropout"):
        steps.run(CanaryEnv, tmp_path, model=old_gpt)
    done = steps.run(CanaryEnv, tmp_path, model=old_gpt, disable_dropout=True)
    done.before.eval()
    assert steps.compared(done, "dr_grpo") == (pytest.approx(1, abs=1e-4), pytest.approx(1, abs=1e-4))


def test_a_config_that_drops_is_refused_where_disable_dropout_does_not_reach_it(tmp_path):
    with pytest.raises(ConfigError, match=r"at random when it trains \(attention_dropout=0\.1\).*to 0\.0"):
        steps.run(CanaryEnv, tmp_path, model=lambda: tiny_model(attention_dropout=0.1), disable_dropout=True)


def test_fewer_items_than_a_step_takes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"a step takes 8 items .*, and there are 4; lower"):
        steps.run(CanaryEnv, tmp_path, gradient_accumulation_steps=4, per_device_train_batch_size=8)


def test_a_reader_finds_names_however_they_are_read():
    class Reader:
        def step(self, config, name):
            first = config.one.two + self.args.three
            return (
                first,
                config.get("four", 0),
                getattr(config, name, 0) or getattr(self.config, "five", 0),
                config["six"].seven,
            )

    assert settings_read(Reader) == {"one.two", "three", "four", "five", "six.seven"}
