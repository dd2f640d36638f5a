"""Turnwise's estimators as trainers' registries call them: rewards per token in, advantages per token out."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from environments.credit import ESTIMATORS
from environments.credit.array_credit import token_advantages
from environments.trainers.settings import entry
from tools.errors import ConfigError

UNSUPPORTED = frozenset({"gigpo", "mt_grpo", "turn_gae"})
"""What these compare is in no tensor there: states, outcomes apart from turn rewards, a critic's values."""


def registry_estimators(registry: Mapping[str, Any]) -> dict[str, Callable[..., tuple[Any, Any]]]:
    """Every estimator that needs rewards alone, by its name, or `turnwise_NAME` where that is another's."""
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
    """Advantages and returns, `[row, token]`, which are the same; `config.turnwise` has the parameters.

    Raises:
        ConfigError: the trainer's config discounts per token, or changes the mask or unscored turns.
        CreditError: rewards, masks or parameters are not possible.
    """
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
    params.pop("exact", None)  # of the settings, see `check_own_rollouts`
    if "estimator" in params:
        raise ConfigError(f"algorithm.turnwise.estimator: leave it out, the trainer asked for {estimator}")
    # A row that is masked whole trains nothing, and is compared with nothing.
    rewards = token_level_rewards.masked_fill(~response_mask.bool().any(dim=-1, keepdim=True), 0.0)
    advantages = token_advantages(rewards, response_mask, index, estimator=estimator, **params)
    return advantages, advantages
