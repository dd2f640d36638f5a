"""Which settings of a trainer leave Σ A ∇log π as it is: rules over their values."""

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


def refuse_inexact(rules: Iterable[Rule], settings: Settings) -> None:
    """Hold settings to rules.

    Raises:
        ConfigError: the first that would change the step, in one line that says what to use.
    """
    for rule in rules:
        if rule.wrong(settings):
            raise ConfigError(f"{rule.setting}={settings[rule.setting]!r}: {rule.why}; {rule.instead}")
