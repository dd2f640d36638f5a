"""What a renderer is: the one place that knows how a model's chat format writes messages as token ids."""

from collections.abc import Collection, Sequence
from typing import Protocol

from environments.trajectory import Message
from tools.calls import ToolSpec


class CannotExtendError(Exception):
    """A format cannot go on from what was sampled; the text is the cause, in a few words that are counted."""


class Renderer(Protocol):
    """Renders the conversations of one model. Text of a message never becomes a control token."""

    @property
    def name(self) -> str:
        """The chat format, for example `qwen3`."""
        ...

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Every id that ends an assistant turn; the server has to stop at each of them."""
        ...

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """The whole conversation, up to where the next assistant message begins."""
        ...

    def extend(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[int, ...]:
        """Return what follows a sampled turn, up to where the next assistant message begins.

        `sampled` may lack a stop token; `messages` are tool results and replies.

        Raises:
            CannotExtendError: the format has no way to go on, or would drop what was sampled.
        """
        ...

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Message:
        """The assistant message that sampled ids hold; its calls carry status and span."""
        ...


def first_stop(ids: Sequence[int], stop_ids: Collection[int]) -> int | None:
    """The index of the first id that ends a turn; `None`: the turn was cut."""
    stops = frozenset(stop_ids)
    return None if stops.isdisjoint(ids) else list(map(stops.__contains__, ids)).index(True)
