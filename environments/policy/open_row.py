"""The token row that a rollout's next completion may extend, and its ids as JSON, kept as they grow."""

from array import array
from collections.abc import Sequence

import orjson

from environments.trajectory import CompactNumbers, compact_ids


class OpenRow:
    """What the model saw and sampled last. It grows only at its end, and only between two requests."""

    def __init__(self) -> None:
        """An empty row."""
        self.messages = 0
        """How many of the messages that the model sees it holds: those before, and the turn it ends with."""
        self.sampled_start = 0
        """Where the ids of its last turn begin."""
        self._ids = array("i")
        self._json = bytearray()
        self._written = 0

    @property
    def token_ids(self) -> Sequence[int]:
        """All ids, not copied: read them before the next turn."""
        return CompactNumbers(self._ids)

    def extend(self, unsampled: Sequence[int], sampled: Sequence[int], *, messages: int) -> None:
        """Add what a model saw after the row, and what it sampled then.

        Args:
            unsampled: the ids of new messages.
            sampled: the ids of a turn.
            messages: what the row holds from now on, the turn's own message included.
        """
        self._ids.extend(array("i", unsampled))  # twice as fast as one id after the other
        self.sampled_start = len(self._ids)
        self._ids.extend(array("i", sampled))
        self.messages = messages

    def rest_of(self, prompt_ids: Sequence[int]) -> tuple[int, ...] | None:
        """What of a whole prompt follows the row; `None`: the prompt does not begin with it."""
        end = len(self._ids)
        # Most prompts that do not go on differ in their length or before their end already.
        if len(prompt_ids) < end or (end and prompt_ids[end - 1] != self._ids[-1]):
            return None
        try:
            goes_on = compact_ids(prompt_ids[:end]) == self.token_ids
        except (TypeError, ValueError):  # they are checked later
            return None
        return tuple(prompt_ids[end:]) if goes_on else None

    def json(self) -> bytes:
        """The ids as they stand in a JSON list, without its brackets: only what is new is written."""
        new = self._ids[self._written :]
        if new:
            if self._json:
                self._json += b","
            self._json += orjson.dumps(new.tolist())[1:-1]
            self._written = len(self._ids)
        return bytes(self._json)
