"""Every setting that verl's and SkyRL's steps read is refused, exact, or their own; needs both.

A release that reads another one fails here until somebody has looked what it does.
"""

import importlib
import os

import pytest

from environments.trainers.exact_settings import SKYRL, VERL, refuse_inexact
from tests.environments.trainers.settings_read import settings_read
from tools.errors import ConfigError

if not (os.environ.get("TURNWISE_REQUIRE_VERL") and os.environ.get("TURNWISE_REQUIRE_SKYRL")):
    pytest.importorskip("verl", reason="needs verl, to read its source")
    pytest.importorskip("skyrl", reason="needs skyrl, to read its source")
skyrl = importlib.import_module("tests.environments.trainers.test_skyrl_adapter")
verl = importlib.import_module("tests.environments.trainers.test_verl_adapter")
settings_of_skyrl = importlib.import_module("skyrl.train.config.config")
queue = verl.queue


def refused(settings):
    """Names and their ends, as code reads them that was given a part of the config."""
    names = [setting.name.split(".") for setting in settings]
    return {".".join(name[start:]) for name in names for start in range(len(name))}


def methods(cls, *names):
    return [getattr(cls, name) for name in names]


VERL_OWN = """
    actor_rollout_ref.actor.ppo_mini_batch_size actor_rollout_ref.actor.shuffle data.train_batch_size
    actor_rollout_ref.actor.data_loader_seed actor_rollout_ref.actor.entropy_coeff entropy_coeff
    actor_rollout_ref.actor.calculate_entropy kl_loss_coef kl_loss_type use_kl_loss trainer.critic_warmup
    rollout_is_threshold bypass_mode loss_type"""
# Not read with what is not refused; or not of a step: what else is measured, validation, how many sessions.
VERL_UNREAD = """
    algorithm.gamma algorithm.lam algorithm.norm_adv_by_std_in_grpo algorithm.kl_penalty rollout_rs_threshold
    distillation distillation_loss.loss_settings.use_topk use_policy_gradient use_task_rewards
    actor_rollout_ref.rollout.calculate_log_probs actor_rollout_ref.rollout.n n val_kwargs.n"""
# Constants of the loss, which are measured, and parts of which each name is looked at.
VERL_PARTS = """
    global_batch_info.batch_num_tokens global_batch_info.dp_size global_batch_info.global_batch_size
    global_batch_info.loss_scale_factor loss_scale_factor algorithm.rollout_correction
    policy_loss.rollout_correction"""


def test_every_setting_of_verls_step_has_its_place():
    losses, trainer = verl.core_algos, verl.trainer_base.PPOTrainer
    worker = verl.agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
    correction = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
    exact = {*verl.SETTINGS["loss_mode"].exact} - {None}
    read = settings_read(
        *(losses.POLICY_LOSS_REGISTRY[name] for name in exact),
        losses.agg_loss,
        losses.compute_policy_loss_reinforce,
        verl.losses.ppo_loss,
        correction.compute_rollout_correction_and_add_to_batch,
        verl.trainer_base.compute_advantage_for_multi_trajectories,
        *methods(trainer, "step", "_step_once", "_compute_reward_colocate", "_balance_batch"),
        *methods(trainer, "_compute_old_log_prob", "_compute_ref_log_prob", "_compute_advantage"),
        *methods(trainer, "_update_actor", "_fetch_one_gen_batch"),
        *methods(worker, "_run_prompt", "_agent_loop_postprocess"),
    )
    listed = " ".join((VERL_OWN, VERL_UNREAD, VERL_PARTS)).split()
    assert read - refused(VERL) - {*listed} == set()


SKYRL_OWN = """
    algorithm.use_kl_loss algorithm.kl_loss_coef algorithm.kl_estimator_type algorithm.use_entropy_loss
    algorithm.entropy_loss_coef trainer.policy_mini_batch_size trainer.train_batch_size
    trainer.update_ref_every_epoch"""
SKYRL_EXACT = {
    "gamma": 0.5,
    "grpo_norm_by_std": False,
    "lambd": 0.5,
    "zero_variance_filter": True,
    "zero_variance_filter_tol": 1.0,
    "eps_clip_low": 0.01,
    "eps_clip_high": 0.01,
    "clip_ratio_c": 1.01,
    "cispo": settings_of_skyrl.CISPOConfig(cispo_eps_clip_low=0.0, cispo_eps_clip_high=0.0),
    "dppo": settings_of_skyrl.DPPOConfig(dppo_type="binary_kl", delta_low=0.01, delta_high=0.01),
}
# How rows are cut up, generators of its own, checkpoints and logs.
SKYRL_AROUND = """
    environment.env_class generator.inference_engine.backend generator.merge_stepwise_output
    generator.n_samples_per_prompt generator.sampling_params max_tokens_per_microbatch
    micro_forward_batch_size_per_gpu micro_train_batch_size_per_gpu off_policy_correction
    policy.model.lora.lora_sync_path trainer.algorithm.kl_estimator_type trainer.algorithm.kl_loss_coef
    trainer.algorithm.max_seq_len trainer.algorithm.off_policy_correction dppo.dppo_type
    trainer.ckpt_interval trainer.critic.model.path trainer.critic_mini_batch_size trainer.dump_data_batch
    trainer.epochs trainer.eval_before_train trainer.hf_save_interval trainer.max_training_steps
    trainer.micro_train_batch_size_per_gpu trainer.num_logger_train_samples trainer.print_example_interval"""


def test_every_setting_of_skyrls_step_has_its_place():
    worker = importlib.import_module("skyrl.backends.skyrl_train.workers.worker").PolicyWorkerBase
    exact = skyrl.SETTINGS["policy_loss_type"].exact
    read = settings_read(
        *(skyrl.ppo_utils.PolicyLossRegistry.get(name) for name in exact),
        importlib.import_module("skyrl.backends.skyrl_train.utils.off_policy_correction_utils"),
        *methods(skyrl.trainer_module.RayPPOTrainer, "train", "generate", "postprocess_generator_output"),
        *methods(skyrl.trainer_module.RayPPOTrainer, "convert_to_training_input", "_normalize_advantages"),
        *methods(
            skyrl.trainer_module.RayPPOTrainer, "compute_advantages_and_returns", "train_critic_and_policy"
        ),
        *methods(skyrl.trainer_module.RayPPOTrainer, "fwd_logprobs_values_reward", "_execute_training_step"),
        worker,
    )
    tried = {f"trainer.algorithm.{name}" for name in SKYRL_EXACT}
    listed = " ".join((SKYRL_OWN, SKYRL_AROUND)).split()
    assert read - refused(SKYRL) - tried - {*listed} == set()


@pytest.mark.parametrize("loss", skyrl.SETTINGS["policy_loss_type"].exact)
def test_with_what_is_exact_skyrls_step_is_the_policy_gradient(loss):
    cosine, ratio = skyrl.measured(list(skyrl.GROUPS.values()), policy_loss_type=loss, **SKYRL_EXACT)
    assert (cosine, ratio) == (pytest.approx(1, abs=1e-4), pytest.approx(1, abs=1e-4))


@pytest.mark.parametrize("loss", sorted({*verl.SETTINGS["loss_mode"].exact} - {None}))
def test_the_narrowest_ranges_that_are_allowed_leave_verls_step(queue, loss):
    credited = verl.GROUPS["unequal lengths"]
    ranges = {"clip_ratio": 0.01, "clip_ratio_low": 0.01, "clip_ratio_high": 0.01, "clip_ratio_c": 1.01}
    mode = verl.PolicyLoss({"loss_mode": loss, "rollout_correction": {}})
    constant = verl.divisor(credited, "token-mean")
    cosine, ratio = verl.measured(queue, credited, constant, policy_loss=mode, **ranges)
    assert (cosine, ratio) == (pytest.approx(1, abs=1e-4), pytest.approx(1, abs=1e-4))


def test_a_range_of_skyrl_that_is_refused_would_have_trained_nothing(monkeypatch):
    given = {"policy_loss_type": "rollout_is", "eps_clip_low": 0.0, "eps_clip_high": 0.0}
    with pytest.raises(ConfigError, match=r"eps_clip_low=0\.0 clips ratios .*; use 0\.2$"):
        refuse_inexact(skyrl.config_of(**given), SKYRL)
    monkeypatch.setattr(skyrl.adapter, "refuse_inexact", lambda *_: None)
    _, ratio = skyrl.measured(list(skyrl.GROUPS.values()), **given)
    assert ratio == 0.0


def test_a_range_of_verl_that_is_refused_would_have_been_another_step(queue):
    credited = verl.GROUPS["unequal lengths"]
    assert verl.measured(queue, credited, clip_ratio_low=-0.1, clip_ratio_high=-0.1)[0] < 0.9
    (low,) = (each for each in VERL if each.name.endswith("clip_ratio_low"))
    with pytest.raises(ConfigError, match=r"clip_ratio_low=-0\.1 clips ratios .*; use 0\.2$"):
        refuse_inexact({"actor_rollout_ref": {"actor": {"clip_ratio_low": -0.1}}}, [low])
