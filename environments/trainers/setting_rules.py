"""Rules over the settings of a trainer, where what is exact depends on several of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tools.errors import ConfigError

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What must not be, as `wrong` finds in the settings, and what to do instead."""

    setting: str
    wrong: Callable[[Settings], bool]
    why: str
    instead: str


def refuse_broken(rules: Iterable[Rule], settings: Settings, shown: str = "{}") -> None:
    """Hold settings to rules.

    Args:
        rules: in the order in which they are told.
        settings: by name.
        shown: how a setting and its value are shown, `GRPOConfig({})`.

    Raises:
        ConfigError: the first that would change the step, in one line that says what to use.
    """
    for rule in rules:
        if rule.wrong(settings):
            setting = shown.format(f"{rule.setting}={settings.get(rule.setting)!r}")
            raise ConfigError(f"{setting}: {rule.why}; {rule.instead}")
