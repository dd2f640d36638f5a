"""The condensers of an environment: those that the settings name, or those of its class."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from environments.config import AgentEnvConfig
from environments.rollout.context import (
    Condenser,
    fit_context,
    keep_last_turns,
    summarise,
    trim_tool_output,
)
from tools.errors import ConfigError

_KEPT_TURNS = 8
_NAMED: Mapping[str, Callable[[AgentEnvConfig], Condenser]] = {
    "trim_tool_output": lambda config: trim_tool_output(config.condenser_tool_tokens),
    "keep_last_turns": lambda config: keep_last_turns(config.condenser_turns or _KEPT_TURNS),
    "fit_context": lambda config: fit_context(_tokens(config)),
    "summarise": lambda config: summarise(
        every=config.condenser_turns, max_tokens=_tokens(config), by=config.condenser_summary
    ),
}


def env_condensers(config: AgentEnvConfig, own: Any, *, env: str) -> tuple[Condenser, ...]:
    """Asked in order, before each completion.

    Args:
        config: the settings, which win.
        own: what the class says: a condenser, several, or `None`.
        env: the environment's name.

    Raises:
        ConfigError: there is no condenser of that name, or what the class says is none.
    """
    if config.condenser is not None:
        return tuple(_named(name, config) for name in config.condenser if name != "none")
    several = cast("Sequence[Any]", own if isinstance(own, list | tuple) else (own,))
    given = tuple(each for each in several if each is not None)
    for each in given:
        if not isinstance(getattr(each, "name", None), str) or not callable(getattr(each, "condense", None)):
            raise ConfigError(
                f"environment {env!r}: condenser is {each!r:.100}; a condenser has a `name`, and "
                f"`async def condense(self, history, asking)`"
            )
    return given


def _named(name: str, config: AgentEnvConfig) -> Condenser:
    if name not in _NAMED:
        raise ConfigError(f"no condenser {name!r:.100}; choose from {', '.join(_NAMED)}, none")
    return _NAMED[name](config)


def _tokens(config: AgentEnvConfig) -> int:
    if config.condenser_tokens is not None and config.condenser_tokens >= config.max_token_length:
        raise ConfigError(
            f"--env.condenser_tokens {config.condenser_tokens} leaves no room for a turn in a row of "
            f"--env.max_token_length {config.max_token_length}"
        )
    tokens = config.condenser_tokens or config.max_token_length - config.max_tokens_per_turn
    if tokens < 1:
        raise ConfigError(
            f"--env.max_tokens_per_turn {config.max_tokens_per_turn} leaves no prompt in a row of "
            f"--env.max_token_length {config.max_token_length}; choose --env.condenser_tokens"
        )
    return tokens
