"""The token row that a rollout's next completion may extend, and its ids as JSON, kept as they grow."""

from collections.abc import Iterator, Sequence
from typing import overload

import orjson


class OpenRow:
    """What the model saw and sampled last. It grows only at its end, and only between two requests."""

    def __init__(self) -> None:
        """An empty row."""
        self.messages = 0
        """How many of the messages that the model sees it holds: those before, and the turn it ends with."""
        self.sampled_start = 0
        """Where the ids of its last turn begin."""
        self._ids: list[int] = []
        self._json = bytearray()
        self._written = 0

    @property
    def token_ids(self) -> Sequence[int]:
        """All ids, not copied: read them before the next turn."""
        return _ReadOnly(self._ids)

    def extend(self, unsampled: Sequence[int], sampled: Sequence[int], *, messages: int) -> None:
        """Add what a model saw after the row, and what it sampled then.

        Args:
            unsampled: the ids of new messages.
            sampled: the ids of a turn.
            messages: what the row holds from now on, the turn's own message included.
        """
        self._ids.extend(unsampled)
        self.sampled_start = len(self._ids)
        self._ids.extend(sampled)
        self.messages = messages

    def rest_of(self, prompt_ids: Sequence[int]) -> tuple[int, ...] | None:
        """What of a whole prompt follows the row; `None`: the prompt does not begin with it."""
        end = len(self._ids)
        # Most prompts that do not go on differ in their length or before their end already.
        if len(prompt_ids) < end or (end and prompt_ids[end - 1] != self._ids[-1]):
            return None
        return tuple(prompt_ids[end:]) if list(prompt_ids[:end]) == self._ids else None

    def json(self) -> bytes:
        """The ids as they stand in a JSON list, without its brackets: only what is new is written."""
        new = self._ids[self._written :]
        if new:
            if self._json:
                self._json += b","
            self._json += orjson.dumps(new)[1:-1]
            self._written = len(self._ids)
        return bytes(self._json)


class _ReadOnly(Sequence[int]):
    """Ids as a policy sees them: what it builds of them does not change the row."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._ids[index]

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)
