"""The condensers of an environment: those that the settings name, or those of its class."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from environments.config import AgentEnvConfig
from environments.data.item_json import stable_text
from environments.hooks import Hooks, writes
from environments.rollout.context import (
    Condenser,
    fit_context,
    keep_last_turns,
    name_of,
    summarise,
    trim_tool_output,
)
from tools.errors import ConfigError

_KEPT_TURNS = 8
_NONE = "none"
_NAMED: Mapping[str, Callable[[AgentEnvConfig], Condenser]] = {
    "trim_tool_output": lambda config: trim_tool_output(config.condenser_tool_tokens),
    "keep_last_turns": lambda config: keep_last_turns(config.condenser_turns or _KEPT_TURNS),
    "fit_context": lambda config: fit_context(
        config.condenser_tokens or max(1, config.max_token_length - config.max_tokens_per_turn)
    ),
    "summarise": lambda config: summarise(
        every=config.condenser_turns,
        max_tokens=config.condenser_tokens or config.max_token_length * 3 // 4,
        by=config.condenser_summary,
    ),
}


def env_condensers(config: AgentEnvConfig, own: Any, *, env: str) -> tuple[Condenser, ...]:
    """Asked in order, before each completion.

    Args:
        config: the settings, which win.
        own: what the class says: a condenser, several, or `None`.
        env: the environment's name.

    Raises:
        ConfigError: there is no condenser of that name, a setting leaves it no room or has nothing to set, or
            what the class says is none.
    """
    if config.condenser is not None:
        return _named(config.condenser, config)
    _refuse_unused_settings(config)
    several = cast("Sequence[Any]", own if isinstance(own, list | tuple) else (own,))
    given = tuple(each for each in several if each is not None)
    for each in given:
        try:
            name_of(each)
        except ConfigError as error:
            raise ConfigError(f"environment {env!r}: {error}") from None
    return given


def refuse_no_summariser(env: Hooks, condensers: Sequence[Condenser], servers: Sequence[str]) -> None:
    """Raise NoModelError where a second model is to sum up, and neither a server nor a hook plays it."""
    asks = any(isinstance(each, summarise) and each.by == "model" for each in condensers)
    if asks and "summariser" not in servers and not writes(env, "scripted_summariser"):
        env.scripted_summariser(None, ())  # the default, which says what to do


def condenser_facts(condensers: Sequence[Condenser]) -> dict[str, str]:
    """What an experiment is known by of them; the code of those that a user wrote counts apart."""
    facts: dict[str, str] = {}
    for number, condenser in enumerate(condensers, 1):
        facts[f"condenser {number}"] = stable_text([type(condenser).__qualname__, name_of(condenser)])
        for name in _fields(condenser):
            facts[f"condenser {number} {name}"] = stable_text(getattr(condenser, name, None))
    return facts


def _fields(condenser: Condenser) -> list[str]:
    slots = [name for cls in type(condenser).__mro__ for name in getattr(cls, "__slots__", ())]
    return [name for name in (*slots, *getattr(condenser, "__dict__", ())) if name != "name"]


def _named(names: Sequence[str], config: AgentEnvConfig) -> tuple[Condenser, ...]:
    for name in names:
        if name not in (*_NAMED, _NONE):
            raise ConfigError(f"no condenser {name!r:.100}; choose from {', '.join(_NAMED)}, {_NONE}")
        if names.count(name) > 1:
            raise ConfigError(f"--env.condenser names {name} {names.count(name)} times; once is enough")
    if not names:
        raise ConfigError(f"--env.condenser names nothing; choose from {', '.join(_NAMED)}, {_NONE}")
    if _NONE in names and len(names) > 1:
        raise ConfigError(
            f"--env.condenser names {_NONE} beside {len(names) - 1} others; choose one or the other"
        )
    if config.condenser_tokens is not None and config.condenser_tokens >= config.max_token_length:
        raise ConfigError(
            f"--env.condenser_tokens {config.condenser_tokens} leaves no room for a turn in a row of "
            f"--env.max_token_length {config.max_token_length}"
        )
    return tuple(_NAMED[name](config) for name in names if name != _NONE)


def _refuse_unused_settings(config: AgentEnvConfig) -> None:
    for name in ("condenser_tokens", "condenser_turns"):
        if (value := getattr(config, name)) is not None:
            raise ConfigError(
                f"--env.{name} {value} sets nothing without --env.condenser; choose from {', '.join(_NAMED)}"
            )
