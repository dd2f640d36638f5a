"""Which posts a trainer has for certain, by the two numbers that the trajectory API shows.

The API acknowledges a post when it is in its memory, which is gone when the API dies; it never says what a
trainer took. But batches are formed from the oldest groups first, and new ones only when all earlier
batches have been handed out (`tests/environments/serve/test_atropos_facts.py`). So a post that left the queue
is in some batch, and when the step moves on after that, its batch was handed out.

With shares of a batch, "oldest first" holds only within one registration: see `former`.
"""

from collections import deque
from collections.abc import Iterable


class Acknowledgements:
    """Follows posts from the API's queue into a batch and to the trainer."""

    def __init__(self) -> None:
        self.former = 0
        """Posts under an earlier registration that may still be in the queue."""
        self._queued: deque[int] = deque()
        self._batched: deque[tuple[int, int]] = deque()

    def add(self, posts: Iterable[int]) -> None:
        """Follow posts that the API has just got, in order."""
        self._queued.extend(posts)

    def advance(self, *, step: int, queued: int) -> list[int]:
        """Take in the API's step and its queue length, of one moment; the posts acknowledged by that.

        Args:
            step: the API's current step.
            queued: groups in its queue, of all environments.
        """
        acknowledged: list[int] = []
        while self._batched and self._batched[0][1] < step:
            acknowledged.append(self._batched.popleft()[0])
        # At most the newest `queued` of ours can still be in the queue.
        while len(self._queued) > queued:
            self._batched.append((self._queued.popleft(), step))
            self.former = max(0, self.former - 1)
        return acknowledged

    def register_anew(self) -> None:
        """Begin a new registration; the API still has what it got under the former."""
        self.former = len(self._queued)

    @property
    def queued(self) -> int:
        """Posts that may still be in the queue."""
        return len(self._queued)

    def clear(self) -> None:
        """Forget every post: the API lost what it had."""
        self.former = 0
        self._queued.clear()
        self._batched.clear()

    def __len__(self) -> int:
        """Posts that may still be lost with the API."""
        return len(self._queued) + len(self._batched)
