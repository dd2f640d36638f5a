"""Settings of trainers: those known to change the step Σ A ∇log π, and those known to leave it as it is.

Found by running TRL 1.16, verl 0.9.1, SkyRL 0.3.0, tinker-cookbook 0.6.1 and Atropos' example trainer 0.4.0.
Any other setting warns by its name where it is set away from its default.
"""

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from fnmatch import fnmatchcase
from functools import reduce
from typing import Any, Literal, cast, get_args

from tools.errors import ConfigError

ESTIMATOR = "turnwise"
"""The name of the advantage estimator that the adapters to verl and SkyRL register."""

Exact = Literal["refuse", "warn", "off"]
"""Whether a setting that changes the step is an error, a warning, or neither. Where `None` is given, it is an
error if the setting breaks the gradient without a sign of it, and a warning if it is a known trade."""

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

Table = Mapping[str, Mapping[str, Values | Rule]]
"""What other values than these do, and settings by their dotted names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """What is known about the settings of one trainer."""

    trainer: str
    """As messages call it."""
    inexact: Table
    """Settings that break the gradient without a sign of it."""
    trades: Table
    """Settings that give up a part of the exact step for something: speed, or stability."""
    harmless: str
    """Patterns of names, with blanks between them: no part of the step, or terms that the trainer adds."""


def check_settings(
    known: TrainerSettings,
    config: Any,
    *,
    changed: Iterable[str] = (),
    exact: Exact | None = None,
    skipped: Collection[str] = (),
) -> None:
    """Hold a trainer's config, nested mappings or objects, to what is known about its settings.

    Args:
        known: the trainer's table.
        config: the trainer's.
        changed: names that are set away from their defaults; those that nothing is known about warn.
        exact: see `Exact`.
        skipped: names that do not matter here.

    Raises:
        ConfigError: the first setting that is refused, in one line that says what to use.
    """

    def get(name: str) -> Any:
        return reduce(entry, name.split("."), config)

    listed, found = set(skipped), set(skipped)
    tables: tuple[tuple[Exact, Table], ...] = (("refuse", known.inexact), ("warn", known.trades))
    for default, table in tables:
        for why, settings in table.items():
            listed |= settings.keys()
            for name, allowed in settings.items():
                rule = allowed if isinstance(allowed, Rule) else _one_of(allowed)
                if name not in found and not rule.is_exact(get(name), get):
                    found.add(name)
                    inexact(f"{known.trainer}: {name}={get(name)} {why}; use {rule.use}", exact or default)
    unknown = [
        f"{name}={get(name)}"
        for name in changed
        if name not in listed and not any(fnmatchcase(name, each) for each in known.harmless.split())
    ]
    if unknown:
        inexact(
            f"{known.trainer}: what {', '.join(unknown)} does to the step was never tried; "
            f"`turnwise doctor trainer` finds out",
            "off" if exact == "off" else "warn",
        )


def check_grpo_config(args: Any, exact: Exact | None, *, skipped: Collection[str] = ()) -> None:
    """Hold TRL's `GRPOConfig` to what is known about its settings, see `check_settings`."""
    settings = {each.name: getattr(args, each.name) for each in fields(args)}
    defaults = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(args)
    }
    changed = [name for name, value in settings.items() if value != defaults[name]]
    settings["world_size"] = args.world_size
    settings["gradient_accumulation_kwargs"] = args.accelerator_config.gradient_accumulation_kwargs
    check_settings(TRL, settings, changed=changed, exact=exact, skipped=skipped)


def inexact(message: str, exact: Exact) -> None:
    """Refuse with a `ConfigError`, or warn, or neither."""
    if exact == "refuse":
        raise ConfigError(message)
    if exact == "warn":
        warnings.warn(message, InexactStepWarning, stacklevel=2)


def changed_names(config: Any, defaults: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of the values, in nested mappings or dataclasses, that differ from those of `defaults`."""
    for name in _names(config):
        value, default = entry(config, name), entry(defaults, name)
        if _names(value):
            yield from changed_names(value, default, f"{prefix}{name}.")
        elif value != default:
            yield f"{prefix}{name}"


def entry(config: Any, name: str) -> Any:
    """What a mapping or an object has by that name, or `None`."""
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


_SOME = 1e-9


def _ranges(uses: Mapping[str, float], width: float) -> dict[str, Rule]:
    """Ranges of ratios around 1, or bounds above it, that are at least so wide."""
    return {name: _from(width + float(use > 1.0), use) for name, use in uses.items()}


def _shares_no_count(accumulation: int, get: Get) -> bool:
    """Whether the parts of one optimiser step are not each divided by their own count of tokens."""
    if get("loss_type") == "bnpo":
        return accumulation == 1
    steps = get("steps_per_generation") or accumulation
    return get("loss_type") not in ("dapo", "cispo", "vespo") or steps % accumulation == 0


def _clips_no_ratio_of_1(above: float | None, get: Get) -> bool:
    """`cispo` takes the clipped ratio for a factor, which must not be 0."""
    return above is None or (above > 0.0 if get("loss_type") == "cispo" else above >= 0.0)


_OWN_ADVANTAGES = "changes what are advantages already"
_FOR_SCORES = "takes sums of advantages for scores, or of the turns' rewards"
_OVERWRITES = "overwrites what stands on the tokens"
_WEIGHS = "weighs tokens by their session or their batch, or drops some"
_CLIPS_ONE = "clips ratios of 1, so that tokens of one sign, or all, train nothing"
_STEP = "each token's advantage stays exact, the step does not"
_CLIPS = f"clips ratios that are 1 but for rounding: {_STEP}"
# Measured by `pytest -k test_a_trade_costs_what_the_warning_says`, with the trainers' own losses.
_OLDER = (
    f"trains on samples of older weights: {_STEP} (clipped at 0.2, where log ratios are 0.1 on average: "
    f"cosine 0.97, norm ratio 0.99)"
)
_RATIOS = (
    f"weighs or drops tokens by ratios of sessions: {_STEP} (weighed, where log ratios are 0.1 on average: "
)
_OTHER_ENGINE = (
    f"samples in an engine that rounds otherwise, which vllm_importance_sampling_mode weighs: {_STEP} "
    f"(by session, where log ratios are 0.02 on average: cosine 0.99, norm ratio 1.16)"
)
OF_ROLLOUTS = "has no effect: Turnwise samples at temperature 1"
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
        "has this loss divide each part of a step by the part's own tokens": {
            "gradient_accumulation_steps": Rule(
                is_exact=_shares_no_count,
                use="loss_type dr_grpo, or dapo with steps_per_generation left out",
            ),
            "world_size": Rule(
                is_exact=lambda processes, get: processes == 1 or get("loss_type") != "bnpo",
                use="1, or loss_type dapo",
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
        OF_ROLLOUTS: {
            "top_p": (1.0,),
            "top_k": (0, None),
            "min_p": (None,),
            "repetition_penalty": (1.0,),
            "generation_kwargs": (None, {}),
            "chat_template_kwargs": (None, {}),
            "cache_implementation": (None,),
            "use_transformers_continuous_batching": (False,),
            "vllm_structured_outputs_regex": (None,),
        },
    },
    trades={
        _OLDER: {
            "num_iterations": (1,),
            "steps_per_generation": Rule(
                is_exact=lambda steps, get: not get("gradient_accumulation_steps") % (steps or 1),
                use="gradient_accumulation_steps, which it is where it is left out",
            ),
        },
        _OTHER_ENGINE: {"use_vllm": (False,)},
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
_VERL_RANGES = {
    **{f"{_ACTOR}.{name}": 0.2 for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high")},
    f"{_ACTOR}.clip_ratio_c": 3.0,
}

VERL = TrainerSettings(
    trainer="verl",
    inexact={
        _OWN_ADVANTAGES: {
            "algorithm.adv_estimator": (ESTIMATOR,),
            "algorithm.use_kl_in_reward": (False, None),
        },
        _OVERWRITES: {"reward.reward_model.enable": (False, None)},
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
            "distillation.enabled": (False, None),
        },
        _CLIPS_ONE: _ranges(_VERL_RANGES, _SOME),
        _OTHER_MODEL: {"actor_rollout_ref.rollout.temperature": (1.0, None)},
    },
    trades={
        _CLIPS: _ranges(_VERL_RANGES, 0.01),
        _OLDER: {f"{_ACTOR}.ppo_epochs": (1, None), "trainer.v1.trainer_mode": ("sync", None)},
        f"{_RATIOS}cosine 0.70, norm ratio 1.28)": {
            f"{_ROLLOUT_CORRECTION}.rollout_is": ("token", None),
            f"{_ROLLOUT_CORRECTION}.rollout_is_batch_normalize": (False, None),
            f"{_ROLLOUT_CORRECTION}.rollout_rs": (None,),
        },
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
_SKYRL_RANGES = {
    **{f"{_ALGORITHM}.{name}": 0.2 for name in ("eps_clip_low", "eps_clip_high")},
    **{f"{_ALGORITHM}.dppo.{name}": 0.2 for name in ("delta_low", "delta_high")},
    f"{_ALGORITHM}.clip_ratio_c": 3.0,
}

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
            "trainer.fully_async.sample_full_batch": (False, None),
            "trainer.eval_interval": (-1, 0),
        },
        "divides a part of the batch by the length of that part": {
            f"{_ALGORITHM}.loss_reduction": ("token_mean", "seq_mean_token_sum_norm"),
        },
        _WEIGHS: {
            f"{_ALGORITHM}.policy_loss_type": (
                *("regular", "dual_clip", "cispo", "rollout_is", "dppo", "importance_sampling"),
            ),
        },
        _CLIPS_ONE: {
            **_ranges(_SKYRL_RANGES, _SOME),
            # Here a clipped ratio is a factor of its own.
            f"{_ALGORITHM}.cispo.cispo_eps_clip_low": _from(0.0, use=0.0),
            f"{_ALGORITHM}.cispo.cispo_eps_clip_high": _from(0.0, use=5.0),
        },
        _OTHER_MODEL: {
            f"{_ALGORITHM}.temperature": (1.0, None),
            "generator.sampling_params.temperature": (1.0, None),
            "trainer.policy.model.lora.dropout": (0.0, None),
        },
    },
    trades={
        _CLIPS: _ranges(_SKYRL_RANGES, 0.01),
        _OLDER: {"trainer.update_epochs_per_batch": (1, None), "trainer.fully_async.enabled": (False, None)},
        f"{_RATIOS}cosine 0.64, norm ratio 2.94)": {
            f"{_CORRECTION}.tis_ratio_type": ("token", None),
            f"{_CORRECTION}.sequence_mask_metric": (None,),
            f"{_CORRECTION}.outlier_token_is_threshold_low": (None,),
            f"{_CORRECTION}.outlier_token_is_threshold_high": (None,),
            f"{_CORRECTION}.token_mask_is_threshold_low": (None,),
            f"{_CORRECTION}.token_mask_is_threshold_high": (None,),
        },
    },
    # Of the section `trainer.algorithm`.
    harmless="""
        *.use_kl_loss *.kl_loss_coef *.kl_estimator_type *.kl_ctrl.* *entropy_loss* *.gamma *.lambd
        *.grpo_norm_by_std *.zero_variance_filter* *.max_seq_len *.dppo_type *.value_* *.sapo.* *.clip_cov.*
        *.kl_cov.* *tis_ratio_clip_high *_mask_low *_mask_high""",
)

OWN_ROLLOUTS = TRL.inexact[OF_ROLLOUTS].keys() | {
    *("scale_rewards", "temperature", "eval_strategy", "eval_on_start"),
    *("algorithm.adv_estimator", "algorithm.use_kl_in_reward", "actor_rollout_ref.rollout.temperature"),
    *("trainer.val_before_train", "trainer.test_freq", "trainer.eval_interval"),
    *(f"{_ALGORITHM}.{name}" for name in ("advantage_estimator", "use_kl_in_reward", "temperature")),
    "generator.sampling_params.temperature",
}
"""Settings about rollouts, rewards and scores, which break no step where these are the trainer's own."""


def check_own_rollouts(known: TrainerSettings, config: Any, algorithm: Any) -> None:
    """Hold a trainer with rollouts of its own to the table; `algorithm.turnwise.exact` is an `Exact`.

    Raises:
        ConfigError: a setting is refused, in one line that says what to use.
    """
    exact = entry(entry(algorithm, "turnwise"), "exact")
    if exact not in (None, *get_args(Exact)):
        raise ConfigError(f"algorithm.turnwise.exact is {exact!r}; give one of {get_args(Exact)}, in quotes")
    check_settings(known, config, exact=exact, skipped=OWN_ROLLOUTS)


TINKER = TrainerSettings(
    trainer="tinker-cookbook",
    inexact={
        "pulls at tokens without credit, mixes turns, or wants ids of Tinker's own sampling": {
            "loss_fn": ("importance_sampling", "ppo", "cispo", None),
        },
        _OWN_ADVANTAGES: {"kl_penalty_coef": (0.0, None)},
    },
    trades={
        f"may clip ratios that are 1: {_STEP}": {"loss_fn_config": (None,)},
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
        _CLIPS_ONE: {"clip_eps": _from(_SOME, use=0.2)},
        _OTHER_MODEL: {
            "lora_dropout": Rule(
                is_exact=lambda drop, get: drop == 0.0 or not get("weight_bridge_mode").startswith("lora"),
                use="0.0",
            ),
        },
    },
    trades={
        _CLIPS: {"clip_eps": _from(0.001, use=0.2)},
        _OLDER: {
            "vllm_restart_interval": Rule(
                is_exact=lambda interval, get: interval == 1 or get("weight_bridge_mode") == "shared_vllm",
                use="1, or weight_bridge_mode shared_vllm",
            ),
        },
    },
    harmless="""
        weight_bridge_mode model_name lr training_steps warmup_steps optimizer adafactor_* dtype device
        train_layer_indices lora_* batch_size gradient_accumulation_steps seq_len save_path
        checkpoint_interval vllm_* max_model_len use_wandb wandb_* trainer_rank world_size init_method
        num_inference_nodes single_copy debug_loading benchmark atropos_url""",
)


def check_example_trainer(settings: Mapping[str, Any], *, exact: Exact | None = None) -> None:
    """Hold settings of Atropos' example trainer, those that differ from its defaults, to what is known.

    Raises:
        ConfigError: the first that is refused, in one line that says what to use.
    """
    check_settings(EXAMPLE_TRAINER, {**EXAMPLE_TRAINER_DEFAULTS, **settings}, changed=settings, exact=exact)
