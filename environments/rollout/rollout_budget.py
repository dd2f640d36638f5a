"""What one rollout may spend: as the settings say, or less where its item does."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from pydantic import ConfigDict, ValidationError, create_model

from environments.config import AgentEnvConfig
from tools.errors import ConfigError

_BUDGET = (
    "max_turns", "max_tokens_per_turn", "token_budget", "rollout_timeout_s", "tool_timeout_s",
    "tool_output_chars", "max_token_length",
)  # fmt: skip
"""The settings that an item may have smaller."""
_Limits = create_model(
    "Limits",
    __config__=ConfigDict(strict=True, allow_inf_nan=False),
    **cast("Any", {
        name: (field.annotation, field)
        for name, field in AgentEnvConfig.model_fields.items()
        if name in _BUDGET
    }),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one rollout may spend."""

    max_turns: int
    """Acts; turns of kind `summary` are not counted."""
    max_tokens_per_turn: int
    token_budget: int
    """Tokens sampled in all turns together."""
    max_row_tokens: int
    """A completion that would make its row longer than this is discarded and ends the rollout; one that was
    cut so that its row ends there is kept, and ends it, too."""
    timeout_s: float
    """Wall clock, tool time included."""
    tool_timeout_s: float
    tool_output_chars: int

    def max_prompt_tokens(self, window: int | None) -> int:
        """The longest prompt that leaves room for a turn, or for half of the whole where that is less.

        Args:
            window: tokens that the model takes; `None`: unknown.
        """
        room = self.max_row_tokens if window is None else min(self.max_row_tokens, window)
        return room - min(self.max_tokens_per_turn, room // 2)


def budget_of(config: AgentEnvConfig, limits: Any = MappingProxyType({}), *, env: str = "") -> Budget:
    """What one rollout may spend: of setting and limit the smaller one.

    Args:
        config: the settings.
        limits: those of its item, by the settings' names, as the environment gave them.
        env: the environment's name.

    Raises:
        ConfigError: the limits are no mapping, or have a name or a value that is none.
    """
    spent = {name: min(getattr(config, name), limit) for name, limit in _checked_limits(limits, env).items()}
    smaller = config.model_copy(update=spent)
    return Budget(
        max_turns=smaller.max_turns,
        max_tokens_per_turn=smaller.max_tokens_per_turn,
        token_budget=smaller.token_budget,
        max_row_tokens=smaller.max_token_length,
        timeout_s=smaller.rollout_timeout_s,
        tool_timeout_s=smaller.tool_timeout_s,
        tool_output_chars=smaller.tool_output_chars,
    )


def _checked_limits(limits: Any, env: str) -> Mapping[str, float]:
    where = f"environment {env!r}: limits_for gave"
    if not isinstance(limits, Mapping):
        raise ConfigError(f'{where} {limits!r:.100}; give a mapping such as {{"max_turns": 6}}')
    given = dict(cast("Mapping[Any, Any]", limits))
    if unknown := [name for name in given if name not in _BUDGET]:
        raise ConfigError(f"{where} a limit {unknown[0]!r:.100}; choose from {', '.join(_BUDGET)}")
    try:
        checked = _Limits.model_validate(given)
    except ValidationError as error:
        wrong = error.errors()[0]
        name = wrong["loc"][0]
        raise ConfigError(f"{where} {name} {given[name]!r:.100}: {wrong['msg']}") from None
    return {name: getattr(checked, name) for name in given}
