"""The condensers of an environment: those that the settings name, or those of its class."""

import logging
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

_LOG = logging.getLogger(__name__)
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
_READS: Mapping[str, Sequence[str]] = {
    "trim_tool_output": ("condenser_tool_tokens",),
    "keep_last_turns": ("condenser_turns",),
    "fit_context": ("condenser_tokens",),
    "summarise": ("condenser_turns", "condenser_tokens", "condenser_summary"),
}
"""The settings that each reads."""


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
    for setting, readers in _unread(config, ()):
        raise ConfigError(f"{setting} sets nothing without --env.condenser; choose from {readers}")
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
        for name, value in _fields(condenser, ()).items():
            facts[f"condenser {number} {name}"] = stable_text(value)
    return facts


def _fields(condenser: Condenser, around: tuple[object, ...]) -> dict[str, Any]:
    """What a condenser is set to, those that it holds included; `around`: those that hold it."""
    slots = [name for cls in type(condenser).__mro__ for name in getattr(cls, "__slots__", ())]
    names = dict.fromkeys((*slots, *getattr(condenser, "__dict__", ())))
    within = (*around, condenser)
    return {name: _fact(getattr(condenser, name, None), within) for name in names if name != "name"}


def _fact(value: Any, around: tuple[object, ...]) -> Any:
    if isinstance(value, list | tuple):
        return [_fact(each, around) for each in cast("Sequence[Any]", value)]
    if isinstance(value, type) or not callable(getattr(value, "condense", None)):
        return value
    is_around = any(value is each for each in around)
    return [type(value).__qualname__, {} if is_around else _fields(value, around)]


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
    named = tuple(_NAMED[name](config) for name in names if name != _NONE)
    for setting, readers in _unread(config, names) if named else ():
        # No error: a settings file keeps what it says for another condenser.
        _LOG.warning(
            "%s sets nothing with --env.condenser %s; it is for %s", setting, ",".join(names), readers
        )
    return named


def _unread(config: AgentEnvConfig, names: Sequence[str]) -> list[tuple[str, str]]:
    """Each setting that somebody gave and none of these condensers reads, and those that would."""
    read = {setting for name in names for setting in _READS[name]}
    given = {
        setting: f"--env.{setting} {getattr(config, setting)}"
        for settings in _READS.values()
        for setting in settings
        if getattr(config, setting) != type(config).model_fields[setting].default
    }
    return [
        (text, ", ".join(name for name, settings in _READS.items() if setting in settings))
        for setting, text in given.items()
        if setting not in read
    ]
