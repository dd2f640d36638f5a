"""What tools can access of their rollout: the base class of states, and the context."""

from collections.abc import MutableMapping
from typing import Any, Protocol


class State:
    """Base class of a rollout's state, as returned by `prepare`, so that tools can take it as a parameter."""


class ToolContext(Protocol):
    """The rollout of a tool call, for parameters annotated with this type."""

    @property
    def item(self) -> Any:
        """The rollout's own copy of its item."""
        ...

    @property
    def state(self) -> Any:
        """The state that `prepare` returned."""
        ...

    @property
    def seed(self) -> int:
        """The seed of this rollout."""
        ...

    @property
    def group_seed(self) -> int:
        """The seed that all siblings share."""
        ...

    @property
    def metrics(self) -> MutableMapping[str, float]:
        """Numbers for the record and the summary."""
        ...

    def end(self, reason: str) -> None:
        """End the rollout after this turn; the first reason counts."""
        ...
