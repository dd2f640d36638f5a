"""Groups that fail one after another: something is broken that is not the items' fault."""

import textwrap

from environments.run.group_note import GroupNote
from environments.run.stopped import StoppedError

_REASON_CHARS = 300


class FailedInARowError(StoppedError):
    """So many groups failed one after another that going on would only spend time and items."""


class Streak:
    """Groups in a row, in the order in which they ended, of which nothing can be compared."""

    def __init__(self, most: int = 0) -> None:
        """Count them; `most` is how many are too many, 0: none are."""
        self.length = 0
        self._most = most
        self._last = ""

    def add(self, note: GroupNote) -> None:
        """Take the next group in.

        Raises:
            FailedInARowError: these are too many.
        """
        if note.lacks_image:
            return  # of this item alone
        if note.loss is None:
            self.length = 0
            return
        self.length += 1
        self._last = textwrap.shorten(note.loss, _REASON_CHARS)
        if 0 < self._most <= self.length:
            raise FailedInARowError(f"{self}; --env.max_failed_groups 0 goes on all the same")

    def __str__(self) -> str:
        return f"{self.length} groups in a row were lost whole, the last one because of {self._last}"
