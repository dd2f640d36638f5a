"""What `serve` starts next; while every group fails it goes slowly, and spends no item."""

from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic

from environments.data.tasks import GroupTask
from environments.run.group_note import GroupNote, Streak

OPEN_AFTER = 4
"""Failed groups in a row after which it opens: groups start one by one, with a pause before each."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0

Entry = tuple[int, GroupTask]
"""A task with its number in the plan."""


class CircuitBreaker:
    """Hands out tasks. One that failed is deferred until a group works again.

    Then it counts as failed, if the streak was short; after a streak long enough to open the breaker, which
    was not its own fault, it is tried once more. What is deferred at the end is left to the next `serve`.
    """

    def __init__(
        self,
        entries: Iterator[Entry],
        say: Callable[[str], None],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Hand out tasks.

        Args:
            entries: in order and without end.
            say: shows a line to the user.
            clock: in seconds.
        """
        self._entries = entries
        self._say = say
        self._clock = clock
        self._streak = Streak()
        self._deferred: list[Entry] = []
        self._retries: deque[Entry] = deque()
        self._retried: set[int] = set()
        self._probes: set[int] = set()
        """Numbers of those that run and started while every group failed."""
        self._pause_s = FIRST_PAUSE_S
        self._next_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether every group fails."""
        return self._streak.length >= OPEN_AFTER

    @property
    def may_start(self) -> bool:
        """Whether a group may start now."""
        return not self.is_open or self._clock() >= self._next_at

    @property
    def has_retries(self) -> bool:
        """Whether the next task is one that was tried before."""
        return bool(self._retries)

    def take(self) -> Entry | None:
        """The next task to roll out, if there is one; while every group fails, the next one has to wait."""
        entry = self._retries.popleft() if self._retries else next(self._entries, None)
        if entry is None:
            return None
        if self.is_open:
            self._probes.add(entry[0])
            self._pause(min(2 * self._pause_s, LONGEST_PAUSE_S))
        return entry

    def finish(self, entry: Entry, note: GroupNote) -> list[int]:
        """Take note of how a task ended; the numbers of the deferred ones that now count as failed."""
        was_open, is_probe = self.is_open, entry[0] in self._probes
        self._probes.discard(entry[0])
        if was_open and note.loss is None and not is_probe:
            return []  # it began before everything failed, and says nothing about now
        self._streak.add(note)
        if self._streak.length:
            self._deferred.append(entry)
            if self.is_open and not was_open:
                self._pause(FIRST_PAUSE_S)
            return []
        deferred, self._deferred = self._deferred, []
        retries = [each for each in deferred if was_open and each[0] not in self._retried]
        numbers = {number for number, _ in retries}
        failed = [number for number, _ in deferred if number not in numbers]
        self._retries.extend(retries)
        self._retried.update(numbers)
        self._retried.difference_update(failed, entry[:1])
        if was_open:
            self._say(f"a group has worked; {len(retries)} items that failed meanwhile are tried once more")
        return failed

    def _pause(self, seconds: float) -> None:
        self._pause_s = seconds
        self._next_at = self._clock() + seconds
        self._say(f"{self._streak}; the next one starts in {seconds:g} s; no item is spent")
