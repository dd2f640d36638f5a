"""What `serve` starts next; while every group fails it goes slowly, and spends no item."""

from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic

from environments.data.tasks import GroupTask
from environments.run.streak import Streak
from environments.trajectory import CreditedGroup

BRAKE_AFTER = 4
"""Failed groups in a row after which groups start one by one, with a pause before each."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0

Entry = tuple[int, GroupTask]
"""A task with its number in the plan."""


class Brake:
    """Hands out tasks. One that failed is held back until a group works again.

    Then it counts as failed, if the streak was short; after a streak long enough to brake, which was not
    its own fault, it is tried once more. What is still held at the end is left to the next `serve`.
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
        self._held: list[Entry] = []
        self._again: deque[Entry] = deque()
        self._tried_again: set[int] = set()
        self._probes: set[int] = set()
        """Numbers of those that run and started while every group failed."""
        self._pause_s = FIRST_PAUSE_S
        self._next_at = 0.0

    @property
    def on(self) -> bool:
        """Whether every group fails."""
        return self._streak.length >= BRAKE_AFTER

    def lets_start(self) -> bool:
        """Whether a group may start now. While every group fails, a yes makes the next one wait."""
        if self.on:
            if self._clock() < self._next_at:
                return False
            self._pause(min(2 * self._pause_s, LONGEST_PAUSE_S))
        return True

    def take(self) -> Entry:
        """The next task to roll out."""
        entry = self._again.popleft() if self._again else next(self._entries)
        if self.on:
            self._probes.add(entry[0])
        return entry

    def ended(self, entry: Entry, credited: CreditedGroup) -> list[int]:
        """Take note of how a task ended; the numbers of those held back that now count as failed."""
        was_on, is_probe = self.on, entry[0] in self._probes
        self._probes.discard(entry[0])
        if was_on and credited.group.trajectories and not is_probe:
            return []  # it began before everything failed, and says nothing about now
        self._streak.add(credited.group, credited.reason)
        if self._streak.length:
            self._held.append(entry)
            if self.on and not was_on:
                self._pause(FIRST_PAUSE_S)
            return []
        held, self._held = self._held, []
        again = [each for each in held if was_on and each[0] not in self._tried_again]
        numbers = {number for number, _ in again}
        failed = [number for number, _ in held if number not in numbers]
        self._again.extend(again)
        self._tried_again.update(numbers)
        self._tried_again.difference_update(failed, entry[:1])
        if was_on:
            self._say(f"a group has worked; {len(again)} items that failed meanwhile are tried once more")
        return failed

    def _pause(self, seconds: float) -> None:
        self._pause_s = seconds
        self._next_at = self._clock() + seconds
        self._say(f"{self._streak}; the next one starts in {seconds:g} s; no item is spent")
