"""What a tool may know of the rollout that it is called in: the base of states, and the context."""

from collections.abc import MutableMapping
from typing import Any, Protocol


class State:
    """Base class of what `prepare` gives as a rollout's state, where tools are to take it as a parameter."""


class ToolContext(Protocol):
    """A rollout, as tools see it: they get it where they annotate a parameter with this."""

    @property
    def item(self) -> Any:
        """The item of the rollout, its own copy."""
        ...

    @property
    def state(self) -> Any:
        """What `prepare` gave."""
        ...

    @property
    def seed(self) -> int:
        """Of this rollout."""
        ...

    @property
    def group_seed(self) -> int:
        """Equal among siblings."""
        ...

    @property
    def metrics(self) -> MutableMapping[str, float]:
        """Numbers worth seeing in the record and the summary."""
        ...

    def end(self, reason: str) -> None:
        """End the rollout after this turn; the first reason wins."""
        ...
