"""A rollout as a record has it, for its reward hooks: what only a live one has is refused, and remembered."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from environments.reward_context import RolloutContext
from tools.errors import ConfigError

_LIVE = frozenset({"sandbox", "fresh_sandbox", "state", "verify"})


class LiveAccess:
    """What the hooks asked for that a record does not have; an environment that asks cannot be rescored."""

    def __init__(self, env: str) -> None:
        """Nothing yet."""
        self._env = env
        self.refusal: str | None = None
        """Why, for people."""

    def refuse(self, hook: str, attribute: str) -> NoReturn:
        """Raise ConfigError, and remember the first: whoever asks may catch it."""
        reason = (
            f"environment {self._env!r} cannot be rescored: {hook} uses ctx.{attribute}, which a rollout has "
            f"and its record has not"
        )
        self.refusal = self.refusal or reason
        raise ConfigError(reason)

    def check(self) -> None:
        """Raise ConfigError when anything was refused."""
        if self.refusal is not None:
            raise ConfigError(self.refusal)


@dataclass(slots=True, kw_only=True, repr=False, eq=False)
class RecordedContext(RolloutContext):
    """Its `sandbox`, `state` and `verify` are not there."""

    refuse: Callable[[str], NoReturn]
    """Takes the name of what is not there."""

    def __getattribute__(self, name: str) -> Any:
        """What is there."""
        if name in _LIVE:
            object.__getattribute__(self, "refuse")(name.replace("fresh_sandbox", "verify"))
        return object.__getattribute__(self, name)

    def __repr__(self) -> str:
        """Not every field: some are not there."""
        return f"RecordedContext(env={self.env!r}, item_id={self.item_id!r}, seed={self.seed})"
