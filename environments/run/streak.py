"""Groups that fail one after another: something is broken that is not the items' fault."""

import textwrap

from environments.run.stopped import StoppedError
from environments.trajectory import TrajectoryGroup

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

    def add(self, group: TrajectoryGroup, reason: str | None = None) -> None:
        """Take the next group in; `reason` tells why it failed when no rollout of it can.

        Raises:
            FailedInARowError: these are too many.
        """
        if group.failures and all(failure.error_class == "ImageUnavailable" for failure in group.failures):
            return  # of this item alone
        if not group.is_lost:
            self.length = 0
            return
        self.length += 1
        last = group.error or (
            group.failures[-1].error if group.failures else reason or "no rollout was started"
        )
        self._last = textwrap.shorten(last, _REASON_CHARS)
        if 0 < self._most <= self.length:
            raise FailedInARowError(f"{self}; --env.max_failed_groups 0 goes on all the same")

    def __str__(self) -> str:
        return f"{self.length} groups in a row were lost whole, the last one because of {self._last}"
