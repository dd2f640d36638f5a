"""Trainers' settings that change the step Σ A ∇log π, and estimators for trainers' registries.

The settings were found by running TRL 1.16, verl 0.9.1, SkyRL 0.3.0, tinker-cookbook 0.6.1 and Atropos'
example trainer 0.4.0. `turnwise doctor trainer` measures any trainer.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Literal, cast, get_args

from environments.credit import ESTIMATORS
from environments.credit.array_credit import token_advantages
from tools.errors import ConfigError

Exact = Literal["refuse", "warn", "off"]
"""The reaction to a setting that changes the step. By default, a silently wrong gradient is an error, and
less exactness for speed or stability a warning."""
Get = Callable[[str], Any]


class InexactStepWarning(UserWarning):
    """The trainer's step may not be Σ A ∇log π."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """Settings that change the step unless they have certain values."""

    names: str
    why: str
    exact: tuple[Any, ...] | Callable[[Any, Get], bool]
    """The values that keep the step, or a predicate for them."""
    use: str = ""
    kind: Literal["break", "rollouts", "trade"] = "break"
    """`rollouts`: harmless where rollouts, rewards and scores are the trainer's own; `trade`: a warning."""


def check_settings(
    trainer: str, config: Any, *, exact: Exact | None = None, own_rollouts: bool = False
) -> None:
    """Check a trainer's config (nested mappings or objects) for its known breakers.

    Raises:
        ConfigError: if a setting is refused; the message says what to use.
    """

    def get(name: str) -> Any:
        return reduce(entry, name.split("."), config)

    for each in BREAKERS[trainer]:
        if own_rollouts and each.kind == "rollouts":
            continue
        values = each.exact
        for name in each.names.split():
            if not (values(get(name), get) if callable(values) else get(name) in values):
                use = each.use or " or ".join(
                    str(value) for value in cast("Any", values) if value is not None
                )
                line = f"{trainer}: {name}={get(name)} {each.why}; use {use or 'null'}"
                inexact(line, exact or ("warn" if each.kind == "trade" else "refuse"))


def check_grpo_config(args: Any, exact: Exact | None, *, own_rollouts: bool = False) -> None:
    accumulation = args.accelerator_config.gradient_accumulation_kwargs
    computed = {"world_size": args.world_size, "gradient_accumulation_kwargs": accumulation}
    check_settings("GRPOConfig", {**vars(args), **computed}, exact=exact, own_rollouts=own_rollouts)


def check_own_rollouts(trainer: str, config: Any, algorithm: Any) -> None:
    """Check a trainer with its own rollouts; `algorithm.turnwise.exact` is an `Exact`."""
    exact = entry(entry(algorithm, "turnwise"), "exact")
    if exact not in (None, *get_args(Exact)):
        raise ConfigError(f"algorithm.turnwise.exact is {exact!r}; give one of {get_args(Exact)}, in quotes")
    check_settings(trainer, config, exact=exact, own_rollouts=True)


def check_example_trainer(settings: Mapping[str, Any], *, exact: Exact | None = None) -> None:
    """Check a `TrainingConfig` of Atropos' example trainer, and `credit_view`."""
    check_settings("Atropos' example trainer", settings, exact=exact)


def inexact(message: str, exact: Exact) -> None:
    if exact == "refuse":
        raise ConfigError(message)
    if exact == "warn":
        warnings.warn(message, InexactStepWarning, stacklevel=2)


def entry(config: Any, name: str) -> Any:
    is_mapping = isinstance(config, Mapping)
    return cast("Mapping[str, Any]", config).get(name) if is_mapping else getattr(config, name, None)


def _at_least(least: float) -> Callable[[Any, Get], bool]:
    return lambda value, _: value is None or (isinstance(value, int | float) and value >= least)


def _divides_by_one_count(accumulation: int, get: Get) -> bool:
    if get("loss_type") == "bnpo":
        return accumulation == 1
    steps = get("steps_per_generation") or accumulation
    return get("loss_type") not in ("dapo", "cispo", "vespo") or steps % accumulation == 0


def _clips_no_ratio_of_1(above: float | None, get: Get) -> bool:
    """Whether a ratio of 1 stays unclipped; in `cispo` the clipped ratio is a factor and must not be 0."""
    return above is None or (above > 0.0 if get("loss_type") == "cispo" else above >= 0.0)


ESTIMATOR = "turnwise"
TRL_LOSSES = ("dapo", "dr_grpo", "bnpo", "cispo", "luspo", "vespo")
"""Losses that divide a sum over tokens by one number per step."""
Rollouts, Trade = partial(Breaker, kind="rollouts"), partial(Breaker, kind="trade")
_OFF = (False, None)
# Rounding: trainers compute the two sides of a ratio of 1 separately.
_MORE_THAN_0, _MORE_THAN_1 = _at_least(1e-9), _at_least(1.0 + 1e-9)
_ADVANTAGES = "changes what are advantages already"
_SCORES = "takes sums of advantages for scores, or of the turns' rewards"
_LENGTH = "divides each session by its own length"
_PARTS = "divides parts of a step by the part's own tokens or length"
_WEIGHS = "weighs tokens by their session or their batch, or drops some"
_CLIPS = "clips ratios of 1, so that tokens of one sign, or all, train nothing"
_NO_EFFECT = "has no effect: Turnwise samples at temperature 1"
_OTHER_MODEL = "makes the loss that of another model than the one that sampled"
_STEP = "each token's advantage stays exact, the step does not"
# Measured by `pytest -k test_a_trade_costs_what_the_warning_says`, with the trainers' own losses.
_OLDER = (
    f"trains on samples of older weights: {_STEP} (clipped at 0.2, where log ratios are 0.1 on average: "
    f"cosine 0.97, norm ratio 0.99)"
)
_RATIOS = (
    f"weighs or drops tokens by ratios of sessions: {_STEP} (weighed, where log ratios are 0.1 on average"
)
_OTHER_ENGINE = (
    f"samples in an engine that rounds otherwise, which vllm_importance_sampling_mode weighs: {_STEP} "
    f"(by session, where log ratios are 0.02 on average: cosine 0.99, norm ratio 1.16)"
)
_ACTOR, _VERL_RATIOS = "actor_rollout_ref.actor.", f"{_RATIOS}: cosine 0.70, norm ratio 1.28)"
_ALGORITHM, _SKYRL_RATIOS = "trainer.algorithm.", f"{_RATIOS}: cosine 0.64, norm ratio 2.94)"


def _within(section: str, names: str) -> str:
    return " ".join(section + name for name in names.split())


BREAKERS: Mapping[str, tuple[Breaker, ...]] = {
    "GRPOConfig": (
        Breaker("loss_type", _LENGTH, TRL_LOSSES),
        Breaker("importance_sampling_level", _LENGTH, ("token",)),
        Breaker("gradient_accumulation_steps", _PARTS, _divides_by_one_count,
                "loss_type dr_grpo, or dapo with steps_per_generation left out"),
        Breaker("world_size", _PARTS, lambda count, get: count == 1 or get("loss_type") != "bnpo",
                "1, or loss_type dapo"),
        Breaker("gradient_accumulation_kwargs", "changes gradient_accumulation_steps behind TRL",
                lambda given, _: "num_steps" not in (given or ()), "gradient_accumulation_steps"),
        Breaker("mask_truncated_completions", _WEIGHS, (False,)),
        Breaker("top_entropy_quantile", _WEIGHS, (1.0,)),
        Breaker("off_policy_mask_threshold", _WEIGHS, (None,)),
        Breaker("epsilon", _CLIPS, _at_least(0.0), "0.2"),
        Breaker("epsilon_high", _CLIPS, _clips_no_ratio_of_1, "more than 0"),
        Breaker("delta", _CLIPS, lambda delta, _: (delta or 2.0) > 1.0, "more than 1"),
        Breaker("neftune_noise_alpha", _OTHER_MODEL, (None, 0)),
        Rollouts("scale_rewards", "divides advantages by a deviation", ("none", False)),
        Rollouts("temperature", _OTHER_MODEL, (1.0,)),
        Rollouts("eval_strategy eval_on_start", "compares rollouts of evaluation items", ("no", False)),
        Rollouts("top_p repetition_penalty", _NO_EFFECT, (1.0,)),
        Rollouts("top_k use_transformers_continuous_batching", _NO_EFFECT, (0, False, None)),
        Rollouts("generation_kwargs chat_template_kwargs", _NO_EFFECT, (None, {})),
        Rollouts("min_p cache_implementation vllm_structured_outputs_regex", _NO_EFFECT, (None,)),
        Trade("num_iterations", _OLDER, (1,)),
        Trade("steps_per_generation", _OLDER,
              lambda steps, get: not get("gradient_accumulation_steps") % (steps or 1),
              "gradient_accumulation_steps, which it is where it is left out"),
        Trade("use_vllm", _OTHER_ENGINE, (False,)),
    ),
    "verl": (
        Rollouts("algorithm.adv_estimator", _ADVANTAGES, (ESTIMATOR,)),
        Rollouts("algorithm.use_kl_in_reward", _ADVANTAGES, _OFF),
        Rollouts("trainer.val_before_train", _SCORES, (False,)),
        Rollouts("trainer.test_freq", _SCORES, (-1, 0)),
        Rollouts("actor_rollout_ref.rollout.temperature", _OTHER_MODEL, (1.0, None)),
        Breaker("reward.reward_model.enable", "overwrites what stands on the tokens", _OFF),
        Breaker("algorithm.filter_groups.enable", _SCORES, _OFF),
        Breaker(f"{_ACTOR}loss_agg_mode", _PARTS, ("token-mean", "token-sum", "seq-mean-token-sum")),
        Breaker(f"{_ACTOR}policy_loss.loss_mode", _WEIGHS,
                ("vanilla", "gpg", "cispo", "dppo_tv", "dppo_kl", "bypass_mode", None)),
        Breaker("distillation.enabled", _WEIGHS, _OFF),
        Breaker(_within(_ACTOR, "clip_ratio clip_ratio_low clip_ratio_high"), _CLIPS, _MORE_THAN_0, "0.2"),
        Breaker(f"{_ACTOR}clip_ratio_c", _CLIPS, _MORE_THAN_1, "3.0"),
        Trade(f"{_ACTOR}ppo_epochs", _OLDER, (1, None)),
        Trade("trainer.v1.trainer_mode", _OLDER, ("sync", None)),
        Trade("algorithm.rollout_correction.rollout_is", _VERL_RATIOS, ("token", None)),
        Trade("algorithm.rollout_correction.rollout_is_batch_normalize", _VERL_RATIOS, _OFF),
        Trade("algorithm.rollout_correction.rollout_rs", _VERL_RATIOS, (None,)),
    ),
    "SkyRL": (
        Rollouts(f"{_ALGORITHM}advantage_estimator", _ADVANTAGES, (ESTIMATOR,)),
        Rollouts(f"{_ALGORITHM}use_kl_in_reward", _ADVANTAGES, _OFF),
        Rollouts("trainer.eval_interval", _SCORES, (-1, 0)),
        Rollouts(f"{_ALGORITHM}temperature generator.sampling_params.temperature", _OTHER_MODEL, (1.0, None)),
        Breaker(f"{_ALGORITHM}advantage_batch_normalize generator.step_wise_trajectories", _ADVANTAGES, _OFF),
        Breaker(f"{_ALGORITHM}dynamic_sampling.type", _SCORES, (None,)),
        Breaker("trainer.fully_async.sample_full_batch", _SCORES, _OFF),
        Breaker(f"{_ALGORITHM}loss_reduction", _PARTS, ("token_mean", "seq_mean_token_sum_norm")),
        Breaker(f"{_ALGORITHM}policy_loss_type", _WEIGHS,
                ("regular", "dual_clip", "cispo", "rollout_is", "dppo", "importance_sampling")),
        Breaker(_within(_ALGORITHM, "eps_clip_low eps_clip_high dppo.delta_low dppo.delta_high"),
                _CLIPS, _MORE_THAN_0, "0.2"),
        Breaker(f"{_ALGORITHM}clip_ratio_c", _CLIPS, _MORE_THAN_1, "3.0"),
        # In cispo the clipped ratio is a factor.
        Breaker(_within(f"{_ALGORITHM}cispo.cispo_eps_clip_", "low high"), _CLIPS, _at_least(0.0), "5.0"),
        Breaker("trainer.policy.model.lora.dropout", _OTHER_MODEL, (0.0, None)),
        Trade("trainer.update_epochs_per_batch", _OLDER, (1, None)),
        Trade("trainer.fully_async.enabled", _OLDER, _OFF),
        Trade(f"{_ALGORITHM}off_policy_correction.tis_ratio_type", _SKYRL_RATIOS, ("token", None)),
        Trade(_within(f"{_ALGORITHM}off_policy_correction.",
                      "sequence_mask_metric outlier_token_is_threshold_low outlier_token_is_threshold_high "
                      "token_mask_is_threshold_low token_mask_is_threshold_high"), _SKYRL_RATIOS, (None,)),
    ),
    "tinker-cookbook": (
        Breaker("loss_fn", "pulls at tokens without credit, mixes turns, or wants Tinker's own sampling",
                ("importance_sampling", "ppo", "cispo", None)),
        Breaker("kl_penalty_coef", _ADVANTAGES, (0.0, None)),
        Trade("loss_fn_config", f"may clip ratios that are 1: {_STEP}", (None,)),
        Trade("async_config", _OLDER, (None,)),
    ),
    "Atropos' example trainer": (
        Breaker("credit_view", "has credit that it ignores", ("turn_rows", "prefix_rows", None)),
        # It always clips the norm of a step at 1; `--env.score_divisor` keeps the norm below.
        Breaker("clip_eps", _CLIPS, _MORE_THAN_0, "0.2"),
        Breaker("lora_dropout", _OTHER_MODEL,
                lambda drop, get: drop == 0.0 or "lora" not in str(get("weight_bridge_mode")), "0.0"),
        Trade("vllm_restart_interval", _OLDER,
              lambda interval, get: interval == 1 or get("weight_bridge_mode") == "shared_vllm",
              "1, or weight_bridge_mode shared_vllm"),
    ),
}  # fmt: skip


# --- estimators in trainers' registries ----------------------------------------------------------------


def turnwise_advantages(token_level_rewards: Any, response_mask: Any, **_: Any) -> tuple[Any, Any]:
    """Return advantages and returns, `[row, token]`: the token-level rewards of trained tokens."""
    advantages = token_level_rewards * response_mask
    return advantages, advantages


UNSUPPORTED = frozenset({"gigpo", "mt_grpo", "turn_gae"})
"""Estimators that need more than rewards per token."""


def registry_estimators(registry: Mapping[str, Any]) -> dict[str, Callable[..., tuple[Any, Any]]]:
    """Return estimators by name, or `turnwise_NAME` if another has the name."""
    modules = {name: getattr(each, "func", each).__module__ for name, each in registry.items()}
    taken = {name for name, module in modules.items() if not module.startswith("environments.trainers.")}
    names = [name for name in ESTIMATORS if name not in UNSUPPORTED]
    return {f"turnwise_{name}" if name in taken else name: partial(_estimate, name) for name in names}


def turn_slices(mask: Sequence[Any]) -> list[slice]:
    padded = [False, *map(bool, mask), False]
    edges = [token for token in range(len(mask) + 1) if padded[token] != padded[token + 1]]
    return [slice(*run) for run in zip(edges[::2], edges[1::2], strict=True)]


def _estimate(
    estimator: str, token_level_rewards: Any, response_mask: Any, index: Any, config: Any = None, **_: Any
) -> tuple[Any, Any]:
    """Return equal advantages and returns, `[row, token]`; `config.turnwise` has the parameters."""
    for name in ("gamma", "lam", "lambd"):
        if (value := entry(config, name)) not in (None, 1.0):
            raise ConfigError(
                f"algorithm.{name} is {value:g}, which discounts per token, and {estimator} credits turns; "
                f"set it to 1.0 (the discount per turn is algorithm.turnwise.gamma)"
            )
    if entry(config, "use_kl_in_reward") and token_level_rewards.isnan().any():
        raise ConfigError(
            "algorithm.use_kl_in_reward adds to turns that were not scored: use actor.use_kl_loss"
        )
    if entry(entry(config, "rollout_correction"), "rollout_rs"):
        raise ConfigError("rollout_correction.rollout_rs takes tokens out of the mask: set it to null")
    params: dict[str, Any] = dict(entry(config, "turnwise") or {})
    params.pop("exact", None)  # see `check_own_rollouts`
    if "estimator" in params:
        raise ConfigError(f"algorithm.turnwise.estimator: leave it out, the trainer asked for {estimator}")
    # A fully masked row is neither trained nor compared with.
    rewards = token_level_rewards.masked_fill(~response_mask.bool().any(dim=-1, keepdim=True), 0.0)
    advantages = token_advantages(rewards, response_mask, index, estimator=estimator, **params)
    return advantages, advantages
