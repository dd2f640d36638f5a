"""Turnwise's estimators as trainers' registries call them: rewards per token in, advantages per token out."""

from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any

from environments.array_credit import token_advantages
from environments.credit import ESTIMATORS
from tools.errors import ConfigError

UNSUPPORTED = frozenset({"gigpo", "mt_grpo", "turn_gae"})
"""What these compare is in no tensor there: states, outcomes apart from turn rewards, a critic's values."""


def registry_estimators(taken: Container[str]) -> dict[str, Callable[..., tuple[Any, Any]]]:
    """Every estimator that needs rewards alone, by its name, or `turnwise_NAME` where that is `taken`."""
    names = [name for name in ESTIMATORS if name not in UNSUPPORTED]
    return {f"turnwise_{name}" if name in taken else name: partial(_estimate, name) for name in names}


def turn_slices(mask: Sequence[Any]) -> list[slice]:
    """The turns of a row: its runs of 1."""
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
        if (value := getattr(config, name, 1.0)) != 1.0:
            raise ConfigError(
                f"algorithm.{name} is {value:g}, which discounts per token, and {estimator} credits turns; "
                f"set it to 1.0 (the discount per turn is algorithm.turnwise.gamma)"
            )
    if getattr(config, "use_kl_in_reward", False) and token_level_rewards.isnan().any():
        raise ConfigError(
            f"algorithm.use_kl_in_reward adds to turns that were not scored, which {estimator} would take "
            f"for scores; set it to False (actor.use_kl_loss leaves rewards as they are)"
        )
    if getattr(getattr(config, "rollout_correction", None), "rollout_rs", None):
        raise ConfigError(
            f"algorithm.rollout_correction.rollout_rs takes tokens out of the mask, where {estimator} finds "
            f"turns; set it to null"
        )
    params = dict(getattr(config, "turnwise", None) or {})
    # A row that is masked whole trains nothing, and is compared with nothing.
    rewards = token_level_rewards.masked_fill(~response_mask.bool().any(dim=-1, keepdim=True), 0.0)
    advantages = token_advantages(rewards, response_mask, index, estimator=estimator, **params)
    return advantages, advantages
