"""Settings of verl, SkyRL and tinker-cookbook with which a step is Σ A ∇log π, and the refusal of all others.

Found in verl 0.9.1, SkyRL 0.3.0 and tinker-cookbook 0.6.1; each value is tried on the trainer's own code by
the adapters' tests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

from tools.errors import ConfigError

ESTIMATOR = "turnwise"
"""The name of the advantage estimator that the adapters register."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSetting:
    """A setting of a trainer, and the values that leave advantages as they are."""

    name: str
    """Where it stands in the trainer's config, with dots."""
    exact: tuple[Any, ...]
    """The first is what a refusal says to use; `None` among them: it may be missing."""
    why: str
    """What any other value does."""
    least: float | None = None
    """Every number from here on is exact, too."""

    def allows(self, value: Any) -> bool:
        """Whether advantages stay as they are."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value in self.exact or (self.least is not None and is_number and value >= self.least)


def _clips(*names: str, use: float = 0.2, least: float = 0.01) -> tuple[ExactSetting, ...]:
    """Ranges in which a ratio stays as it is; trainers compute it twice, so that it is 1 but for rounding."""
    why = "clips ratios that are 1 but for rounding"
    return tuple(ExactSetting(name=name, exact=(use, None), why=why, least=least) for name in names)


_EVALUATES = "takes sums of advantages for scores; `turnwise evaluate` does not"
_PASSES = "takes steps in which ratios are no longer 1, and are clipped"
_TEMPERATURE = "makes the loss that of another distribution than Turnwise samples from, at 1"

VERL = (
    ExactSetting(
        name="algorithm.adv_estimator",
        exact=(ESTIMATOR,),
        why="makes advantages of its own from what are advantages already",
    ),
    ExactSetting(
        name="algorithm.use_kl_in_reward",
        exact=(False, None),
        why="takes a penalty off the advantages; a KL term belongs in the loss (actor.use_kl_loss)",
    ),
    ExactSetting(
        name="algorithm.filter_groups.enable",
        exact=(False, None),
        why="drops groups by the sums of their advantages, which say nothing about them",
    ),
    ExactSetting(
        name="algorithm.rollout_correction.rollout_is_batch_normalize",
        exact=(False, None),
        why="divides the weights of tokens by their mean over a batch",
    ),
    ExactSetting(
        name="reward.reward_model.enable",
        exact=(False, None),
        why="writes its scores over the advantages",
    ),
    ExactSetting(
        name="actor_rollout_ref.actor.loss_agg_mode",
        exact=("token-mean", "token-sum", "seq-mean-token-sum"),
        why="divides sessions by their own length, or by that of the longest of their micro-batch",
    ),
    ExactSetting(
        name="actor_rollout_ref.actor.policy_loss.loss_mode",
        exact=("vanilla", "gpg", "cispo", "dppo_tv", "dppo_kl", "bypass_mode", None),
        why="weighs tokens by their session, or leaves some out",
    ),
    *_clips(
        "actor_rollout_ref.actor.clip_ratio",
        "actor_rollout_ref.actor.clip_ratio_low",
        "actor_rollout_ref.actor.clip_ratio_high",
    ),
    *_clips("actor_rollout_ref.actor.clip_ratio_c", use=3.0, least=1.01),
    ExactSetting(name="actor_rollout_ref.actor.ppo_epochs", exact=(1, None), why=_PASSES),
    ExactSetting(name="actor_rollout_ref.rollout.temperature", exact=(1.0, None), why=_TEMPERATURE),
    ExactSetting(
        name="algorithm.rollout_correction.rollout_is",
        exact=("token", None),
        why="gives all tokens of a session the product of their ratios",
    ),
    ExactSetting(
        name="algorithm.rollout_correction.rollout_rs", exact=(None,), why="drops tokens or sessions"
    ),
    ExactSetting(name="distillation.enabled", exact=(False, None), why="may leave the policy's own loss out"),
    ExactSetting(
        name="trainer.v1.trainer_mode", exact=("sync", None), why="trains on what older weights sampled"
    ),
    ExactSetting(name="trainer.val_before_train", exact=(False,), why=_EVALUATES),
    ExactSetting(name="trainer.test_freq", exact=(-1, 0), why=_EVALUATES),
)

SKYRL = (
    ExactSetting(
        name="trainer.algorithm.advantage_estimator",
        exact=(ESTIMATOR,),
        why="makes advantages of its own from what are advantages already",
    ),
    ExactSetting(
        name="trainer.algorithm.advantage_batch_normalize",
        exact=(False, None),
        why="centres and scales the advantages of a batch",
    ),
    ExactSetting(
        name="trainer.algorithm.use_kl_in_reward",
        exact=(False, None),
        why="takes a penalty off the advantages; a KL term belongs in the loss (use_kl_loss)",
    ),
    ExactSetting(
        name="trainer.algorithm.dynamic_sampling.type",
        exact=(None,),
        why="drops or doubles groups by the sums of their advantages, which say nothing about them",
    ),
    ExactSetting(
        name="trainer.algorithm.loss_reduction",
        exact=("token_mean", "seq_mean_token_sum_norm"),
        why="divides a part of the batch by the length of that part",
    ),
    ExactSetting(
        name="trainer.algorithm.policy_loss_type",
        exact=("regular", "dual_clip", "cispo", "rollout_is", "dppo", "importance_sampling"),
        why="weighs tokens by their session, leaves some out, or reads no advantages",
    ),
    *_clips(
        "trainer.algorithm.eps_clip_low",
        "trainer.algorithm.eps_clip_high",
        "trainer.algorithm.dppo.delta_low",
        "trainer.algorithm.dppo.delta_high",
    ),
    *_clips("trainer.algorithm.clip_ratio_c", use=3.0, least=1.01),
    # Here a clipped ratio is a factor of its own.
    *_clips("trainer.algorithm.cispo.cispo_eps_clip_low", use=0.0, least=0.0),
    *_clips("trainer.algorithm.cispo.cispo_eps_clip_high", use=5.0, least=0.0),
    ExactSetting(
        name="trainer.algorithm.off_policy_correction.tis_ratio_type",
        exact=("token", None),
        why="gives all tokens of a session the product of their ratios",
    ),
    *(
        ExactSetting(
            name=f"trainer.algorithm.off_policy_correction.{name}",
            exact=(None,),
            why="drops tokens or sessions",
        )
        for name in (
            "sequence_mask_metric",
            "outlier_token_is_threshold_low",
            "outlier_token_is_threshold_high",
            "token_mask_is_threshold_low",
            "token_mask_is_threshold_high",
        )
    ),
    ExactSetting(name="trainer.update_epochs_per_batch", exact=(1, None), why=_PASSES),
    ExactSetting(name="trainer.algorithm.temperature", exact=(1.0, None), why=_TEMPERATURE),
    ExactSetting(name="generator.sampling_params.temperature", exact=(1.0, None), why=_TEMPERATURE),
    ExactSetting(
        name="trainer.policy.model.lora.dropout",
        exact=(0.0, None),
        why="makes the loss that of another network than the one that sampled",
    ),
    ExactSetting(
        name="trainer.fully_async.enabled", exact=(False, None), why="trains on what older weights sampled"
    ),
    ExactSetting(
        name="generator.step_wise_trajectories",
        exact=(False, None),
        why="gives the advantage of a session's last step to all of its steps",
    ),
    ExactSetting(name="trainer.eval_interval", exact=(-1, 0), why=_EVALUATES),
)

TINKER = (
    ExactSetting(
        name="loss_fn",
        exact=("importance_sampling", "ppo", "cispo", None),
        why="pulls at tokens without credit (dro), mixes turns (gspo), or wants ids of Tinker's own sampling",
    ),
    ExactSetting(name="loss_fn_config", exact=(None,), why="may clip ratios that are 1"),
    ExactSetting(name="kl_penalty_coef", exact=(0.0, None), why="is added to the advantages before the loss"),
    ExactSetting(name="async_config", exact=(None,), why="trains on older weights, with a loss of its own"),
)


def refuse_inexact(config: Any, settings: Sequence[ExactSetting]) -> None:
    """Hold a trainer's config, of mappings or of objects, to `settings`.

    Raises:
        ConfigError: the first setting that would change the step, in one line that says what to use.
    """
    for setting in settings:
        value = value_of(config, setting.name)
        if not setting.allows(value):
            use = " or ".join(str(each) for each in setting.exact if each is not None) or "null"
            raise ConfigError(f"{setting.name}={value} {setting.why}; use {use}")


def value_of(config: Any, name: str) -> Any:
    """The value at a dotted name; `None` where there is none."""
    return reduce(_entry, name.split("."), config)


def _entry(config: Any, name: str) -> Any:
    if isinstance(config, Mapping):
        return cast("Mapping[str, Any]", config).get(name)
    return getattr(config, name, None)
