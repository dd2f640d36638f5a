"""Settings of trainers: those known to change the step Σ A ∇log π, and those known to leave it as it is.

Found by running TRL 1.16, verl 0.9.1, SkyRL 0.3.0, tinker-cookbook 0.6.1 and Atropos' example trainer 0.4.0.
Any other setting warns by its name where it is set away from its default.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from fnmatch import fnmatchcase
from functools import reduce
from typing import Any, Literal, cast

from tools.errors import ConfigError

ESTIMATOR = "turnwise"
"""The name of the advantage estimator that the adapters to verl and SkyRL register."""

Exact = Literal["refuse", "warn"]
"""Whether a setting that changes the step is an error, or a warning."""

Get = Callable[[str], Any]
"""The value of a setting, by its dotted name, or `None`."""


class InexactStepWarning(UserWarning):
    """The trainer's step may not be Σ A ∇log π."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Which values of a setting leave the step as it is, where that depends on more than the value."""

    is_exact: Callable[[Any, Get], bool]
    use: str
    """What to use in the place of other values."""


Values = tuple[Any, ...]
"""The values that leave the step as it is, the first one to use; `None` among them: it may be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """What is known about the settings of one trainer."""

    trainer: str
    """As messages call it."""
    inexact: Mapping[str, Mapping[str, Values | Rule]]
    """What other values than these do: the reason, and settings by their dotted names."""
    harmless: str
    """Patterns of names, with blanks between them: no part of the step, or terms that the trainer adds."""


def check_settings(
    known: TrainerSettings, config: Any, *, changed: Iterable[str] = (), exact: Exact = "refuse"
) -> None:
    """Hold a trainer's config, nested mappings or objects, to what is known about its settings.

    Args:
        known: the trainer's table.
        config: the trainer's.
        changed: names that are set away from their defaults; those that nothing is known about warn.
        exact: see `Exact`.

    Raises:
        ConfigError: the first setting that would change the step, in one line that says what to use.
    """

    def get(name: str) -> Any:
        return reduce(_entry, name.split("."), config)

    listed: set[str] = set()
    for why, settings in known.inexact.items():
        listed |= settings.keys()
        for name, allowed in settings.items():
            rule = allowed if isinstance(allowed, Rule) else _one_of(allowed)
            if not rule.is_exact(get(name), get):
                inexact(f"{known.trainer}: {name}={get(name)} {why}; use {rule.use}", exact)
    unknown = [
        f"{name}={get(name)}"
        for name in changed
        if name not in listed and not any(fnmatchcase(name, each) for each in known.harmless.split())
    ]
    if unknown:
        inexact(
            f"{known.trainer}: what {', '.join(unknown)} does to the step was never tried; "
            f"`turnwise doctor trainer` finds out",
            "warn",
        )


def inexact(message: str, exact: Exact) -> None:
    """Refuse with a `ConfigError`, or warn."""
    if exact == "refuse":
        raise ConfigError(message)
    warnings.warn(message, InexactStepWarning, stacklevel=2)


def changed_names(config: Any, defaults: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of the values, in nested mappings or dataclasses, that differ from those of `defaults`."""
    for name in _names(config):
        value, default = _entry(config, name), _entry(defaults, name)
        if _names(value):
            yield from changed_names(value, default, f"{prefix}{name}.")
        elif value != default:
            yield f"{prefix}{name}"


def _entry(config: Any, name: str) -> Any:
    if isinstance(config, Mapping):
        return cast("Mapping[str, Any]", config).get(name)
    return getattr(config, name, None)


def _names(node: Any) -> list[str]:
    if isinstance(node, Mapping):
        return [*cast("Mapping[str, Any]", node)]
    return [each.name for each in fields(node)] if is_dataclass(node) else []


def _one_of(values: Values) -> Rule:
    named = " or ".join(str(each) for each in values if each is not None)
    return Rule(is_exact=lambda value, _: value in values, use=named or "null")


def _from(least: float, use: float) -> Rule:
    """A number from `least` on. Trainers compute a ratio of 1 twice, so that it is not quite 1."""
    return Rule(
        is_exact=lambda value, _: value is None or (isinstance(value, int | float) and value >= least),
        use=str(use),
    )


def _shares_no_count(accumulation: int, get: Get) -> bool:
    """Whether the parts of one optimiser step are not each divided by their own count of tokens."""
    if get("loss_type") == "bnpo":
        return accumulation == 1
    return get("loss_type") not in ("dapo", "cispo", "vespo") or accumulation == get("steps_per_generation")


def _clips_no_ratio_of_1(above: float | None, get: Get) -> bool:
    """`cispo` takes the clipped ratio for a factor, which must not be 0."""
    return above is None or (above > 0.0 if get("loss_type") == "cispo" else above >= 0.0)


_OWN_ADVANTAGES = "changes what are advantages already"
_FOR_SCORES = "takes sums of advantages for scores"
_WEIGHS = "weighs tokens by their session or their batch, or drops some"
_CLIPS = "clips ratios that are 1 but for rounding"
_OLDER = "trains on older samples, whose ratios are clipped"
_OTHER_MODEL = "makes the loss that of another model than the one that sampled"

TRL_LOSSES = ("dapo", "dr_grpo", "bnpo", "cispo", "luspo", "vespo")
"""They divide a sum over tokens by a number that all rows of a step share."""

TRL = TrainerSettings(
    trainer="GRPOConfig",
    inexact={
        "divides each session by its own length": {
            "loss_type": TRL_LOSSES,
            "importance_sampling_level": ("token",),
        },
        "divides advantages by a deviation": {"scale_rewards": ("none", False)},
        _OLDER: {
            "num_iterations": (1,),
            "steps_per_generation": Rule(
                is_exact=lambda steps, get: not get("gradient_accumulation_steps") % (steps or 1),
                use="gradient_accumulation_steps, which it is where it is left out",
            ),
        },
        "has this loss divide each part of a step by the part's own tokens": {
            "gradient_accumulation_steps": Rule(
                is_exact=_shares_no_count,
                use="loss_type dr_grpo, or dapo with steps_per_generation left out",
            ),
        },
        "changes gradient_accumulation_steps behind TRL": {
            "gradient_accumulation_kwargs": Rule(
                is_exact=lambda given, _: "num_steps" not in (given or ()), use="gradient_accumulation_steps"
            ),
        },
        "drops tokens or sessions": {
            "mask_truncated_completions": (False,),
            "top_entropy_quantile": (1.0,),
            "off_policy_mask_threshold": (None,),
        },
        "clips ratios that are 1, or turns the step round": {
            "epsilon": _from(0.0, use=0.2),
            "epsilon_high": Rule(is_exact=_clips_no_ratio_of_1, use="more than 0"),
            "delta": Rule(is_exact=lambda delta, _: (delta or 2.0) > 1.0, use="more than 1"),
        },
        _OTHER_MODEL: {"neftune_noise_alpha": (None, 0), "temperature": (1.0,)},
        "compares rollouts of evaluation items": {"eval_strategy": ("no",), "eval_on_start": (False,)},
        "has all processes roll out the same groups": {"world_size": (1,)},
        "has no effect: Turnwise samples from the trainer's own model": {
            "use_vllm": (False,),
            "top_p": (1.0,),
            "top_k": (0, None),
            "min_p": (None,),
            "repetition_penalty": (1.0,),
            "generation_kwargs": (None, {}),
            "chat_template_kwargs": (None, {}),
            "cache_implementation": (None,),
            "use_transformers_continuous_batching": (False,),
        },
    },
    harmless="""
        beta sync_ref_model ref_model_* use_bias_correction_kl entropy_* use_adaptive_entropy
        max_completion_length router_aux_loss_coef sapo_* vespo_* reward_weights multi_objective_aggregation
        learning_rate lr_scheduler_* warmup_* optim optim_* adam_* weight_decay max_grad_norm
        num_train_epochs max_steps num_generations* generation_batch_size per_device_*
        average_tokens_across_devices label_smoothing_factor max_tool_calling_iterations pad_to_multiple_of
        model_init_kwargs trust_remote_code disable_dropout cast_lm_head_to_fp32 use_cache use_cpu
        bf16* fp16* tf32 torch_* use_liger_kernel liger_kernel_config full_determinism
        activation_checkpointing* gradient_checkpointing* auto_find_batch_size
        accelerator_config parallelism_config deepspeed fsdp* ddp_* ds3_* local_rank
        seed data_seed shuffle_dataset ignore_data_skip train_sampling_strategy remove_unused_columns
        label_names length_column_name dataloader_* transformers_continuous_batching_config vllm_* do_* eval_*
        batch_eval_metrics include_for_metrics prediction_loss_only load_best_model_at_end
        metric_for_best_model greater_is_better output_dir report_to run_name project trackio_* debug
        disable_tqdm log_* logging_* num_completions_* include_num_input_tokens_seen skip_memory_metrics
        save_* enable_jit_checkpoint resume_from_checkpoint restore_* hub_* push_to_hub""",
)

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT_CORRECTION = "algorithm.rollout_correction"

VERL = TrainerSettings(
    trainer="verl",
    inexact={
        _OWN_ADVANTAGES: {
            "algorithm.adv_estimator": (ESTIMATOR,),
            "algorithm.use_kl_in_reward": (False, None),
            "reward.reward_model.enable": (False, None),
        },
        _FOR_SCORES: {
            "algorithm.filter_groups.enable": (False, None),
            "trainer.val_before_train": (False,),
            "trainer.test_freq": (-1, 0),
        },
        "divides sessions by their own length, or by the longest of a micro-batch": {
            f"{_ACTOR}.loss_agg_mode": ("token-mean", "token-sum", "seq-mean-token-sum"),
        },
        _WEIGHS: {
            f"{_ACTOR}.policy_loss.loss_mode": (
                *("vanilla", "gpg", "cispo", "dppo_tv", "dppo_kl", "bypass_mode"),
                None,
            ),
            f"{_ROLLOUT_CORRECTION}.rollout_is": ("token", None),
            f"{_ROLLOUT_CORRECTION}.rollout_is_batch_normalize": (False, None),
            f"{_ROLLOUT_CORRECTION}.rollout_rs": (None,),
            "distillation.enabled": (False, None),
        },
        _CLIPS: {
            f"{_ACTOR}.clip_ratio": _from(0.01, use=0.2),
            f"{_ACTOR}.clip_ratio_low": _from(0.01, use=0.2),
            f"{_ACTOR}.clip_ratio_high": _from(0.01, use=0.2),
            f"{_ACTOR}.clip_ratio_c": _from(1.01, use=3.0),
        },
        _OLDER: {f"{_ACTOR}.ppo_epochs": (1, None), "trainer.v1.trainer_mode": ("sync", None)},
        _OTHER_MODEL: {"actor_rollout_ref.rollout.temperature": (1.0, None)},
    },
    # Of the sections `algorithm` and `actor_rollout_ref.actor`.
    harmless="""
        algorithm._target_ algorithm.gamma algorithm.lam algorithm.norm_adv_by_std_in_grpo algorithm.kl_*
        algorithm.*pf_ppo* algorithm.filter_groups.* algorithm.rollout_correction.rollout_is_threshold
        algorithm.rollout_correction.rollout_rs_threshold algorithm.rollout_correction.loss_type
        algorithm.rollout_correction.bypass_mode *.actor._target_ *.actor.optim.* *.actor.fsdp_config.*
        *.actor.megatron.* *.actor.checkpoint.* *.actor.profiler.* *.actor.strategy *.actor.rollout_n
        *.actor.ppo_m* *.actor.use_dynamic_bsz *.actor.shuffle *.actor.data_loader_seed *.actor.entropy*
        *.actor.calculate_* *.actor.*kl_loss* *.actor.loss_scale_factor *.actor.grad_clip *.actor.ulysses_*
        *.actor.pad_to_length *.actor.use_remove_padding *.actor.use_torch_compile
        *.actor.use_fused_kernels""",
)

_ALGORITHM = "trainer.algorithm"
_CORRECTION = "trainer.algorithm.off_policy_correction"

SKYRL = TrainerSettings(
    trainer="SkyRL",
    inexact={
        _OWN_ADVANTAGES: {
            f"{_ALGORITHM}.advantage_estimator": (ESTIMATOR,),
            f"{_ALGORITHM}.advantage_batch_normalize": (False, None),
            f"{_ALGORITHM}.use_kl_in_reward": (False, None),
            "generator.step_wise_trajectories": (False, None),
        },
        _FOR_SCORES: {
            f"{_ALGORITHM}.dynamic_sampling.type": (None,),
            "trainer.eval_interval": (-1, 0),
        },
        "divides a part of the batch by the length of that part": {
            f"{_ALGORITHM}.loss_reduction": ("token_mean", "seq_mean_token_sum_norm"),
        },
        _WEIGHS: {
            f"{_ALGORITHM}.policy_loss_type": (
                *("regular", "dual_clip", "cispo", "rollout_is", "dppo", "importance_sampling"),
            ),
            f"{_CORRECTION}.tis_ratio_type": ("token", None),
            f"{_CORRECTION}.sequence_mask_metric": (None,),
            f"{_CORRECTION}.outlier_token_is_threshold_low": (None,),
            f"{_CORRECTION}.outlier_token_is_threshold_high": (None,),
            f"{_CORRECTION}.token_mask_is_threshold_low": (None,),
            f"{_CORRECTION}.token_mask_is_threshold_high": (None,),
        },
        _CLIPS: {
            f"{_ALGORITHM}.eps_clip_low": _from(0.01, use=0.2),
            f"{_ALGORITHM}.eps_clip_high": _from(0.01, use=0.2),
            f"{_ALGORITHM}.dppo.delta_low": _from(0.01, use=0.2),
            f"{_ALGORITHM}.dppo.delta_high": _from(0.01, use=0.2),
            f"{_ALGORITHM}.clip_ratio_c": _from(1.01, use=3.0),
            # Here a clipped ratio is a factor of its own.
            f"{_ALGORITHM}.cispo.cispo_eps_clip_low": _from(0.0, use=0.0),
            f"{_ALGORITHM}.cispo.cispo_eps_clip_high": _from(0.0, use=5.0),
        },
        _OLDER: {"trainer.update_epochs_per_batch": (1, None), "trainer.fully_async.enabled": (False, None)},
        _OTHER_MODEL: {
            f"{_ALGORITHM}.temperature": (1.0, None),
            "generator.sampling_params.temperature": (1.0, None),
            "trainer.policy.model.lora.dropout": (0.0, None),
        },
    },
    # Of the section `trainer.algorithm`.
    harmless="""
        *.use_kl_loss *.kl_loss_coef *.kl_estimator_type *.kl_ctrl.* *entropy_loss* *.gamma *.lambd
        *.grpo_norm_by_std *.zero_variance_filter* *.max_seq_len *.dppo_type *.value_* *.sapo.* *.clip_cov.*
        *.kl_cov.* *tis_ratio_clip_high *_mask_low *_mask_high""",
)

TINKER = TrainerSettings(
    trainer="tinker-cookbook",
    inexact={
        "pulls at tokens without credit, mixes turns, or wants ids of Tinker's own sampling": {
            "loss_fn": ("importance_sampling", "ppo", "cispo", None),
        },
        "may clip ratios that are 1": {"loss_fn_config": (None,)},
        _OWN_ADVANTAGES: {"kl_penalty_coef": (0.0, None)},
        _OLDER: {"async_config": (None,)},
    },
    # What a caller of `train_step` gives it, and the cookbook's own loop around that.
    harmless="""
        learning_rate num_substeps lora_rank model_name max_steps num_epochs load_checkpoint_path
        dataset_builder* recipe_name max_tokens log_path *_every evaluator_builders* renderer_name wandb_*
        session_name kl_* temperature compute_post_kl remove_constant_reward_groups rollout_* termination*
        enable_trace stream_minibatch_config* base_url *ttl_seconds num_groups_to_log""",
)

EXAMPLE_TRAINER_DEFAULTS: Mapping[str, Any] = {
    "credit_view": "turn_rows",
    "clip_eps": 0.2,
    "weight_bridge_mode": "none",
    "vllm_restart_interval": 3,
    "lora_dropout": 0.05,
}
"""Those of its `TrainingConfig`, and the view that is served to it."""

# It clips the norm of a step at 1, which is no setting: a larger `--env.score_divisor` keeps the norm below.
EXAMPLE_TRAINER = TrainerSettings(
    trainer="Atropos' example trainer",
    inexact={
        "has credit in advantages, and this trainer ignores advantages": {
            "credit_view": ("turn_rows", "prefix_rows"),
        },
        _CLIPS: {"clip_eps": _from(0.001, use=0.2)},
        _OLDER: {
            "vllm_restart_interval": Rule(
                is_exact=lambda interval, get: interval == 1 or get("weight_bridge_mode") == "shared_vllm",
                use="1, or weight_bridge_mode shared_vllm",
            ),
        },
        _OTHER_MODEL: {
            "lora_dropout": Rule(
                is_exact=lambda drop, get: drop == 0.0 or not get("weight_bridge_mode").startswith("lora"),
                use="0.0",
            ),
        },
    },
    harmless="""
        weight_bridge_mode model_name lr training_steps warmup_steps optimizer adafactor_* dtype device
        train_layer_indices lora_* batch_size gradient_accumulation_steps seq_len save_path
        checkpoint_interval vllm_* max_model_len use_wandb wandb_* trainer_rank world_size init_method
        num_inference_nodes single_copy debug_loading benchmark atropos_url""",
)


def check_example_trainer(settings: Mapping[str, Any], *, exact: Exact = "refuse") -> None:
    """Hold settings of Atropos' example trainer, those that differ from its defaults, to what is known.

    Raises:
        ConfigError: the first that would change the step, in one line that says what to use.
    """
    check_settings(EXAMPLE_TRAINER, {**EXAMPLE_TRAINER_DEFAULTS, **settings}, changed=settings, exact=exact)
