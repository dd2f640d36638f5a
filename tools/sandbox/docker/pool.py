"""Containers made ahead of use: stocked while several sandboxes are open, never used twice."""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

_LOG = logging.getLogger(__name__)
_FIRST_CREATES = 2
MOST_CREATES = max(4, 2 * (os.cpu_count() or 1))
"""Creates at once, over all pools: more only make each other slower."""
_MOST_WARM = 8

T = TypeVar("T")


class Ramp:
    """How many creates may run at once: few at first, one more after a success, half after a failure."""

    def __init__(self, most: int = MOST_CREATES) -> None:
        self._most = most
        self._allowed = min(_FIRST_CREATES, most)
        self._running = 0
        self._changed = threading.Condition()

    @contextmanager
    def slot(self) -> Generator[None]:
        """Wait for a turn, and hold it for one create."""
        with self._changed:
            self._changed.wait_for(lambda: self._running < self._allowed)
            self._running += 1
        worked = False
        try:
            yield
            worked = True
        finally:
            with self._changed:
                self._running -= 1
                self._allowed = min(self._allowed + 1, self._most) if worked else max(1, self._allowed // 2)
                self._changed.notify_all()


class Pool(Generic[T]):
    """Ready ones of one kind. Its methods are called in threads.

    One is kept ready for every two that are open, up to a few: a single sandbox costs nothing extra, and
    when the last one closes the stock is emptied.
    """

    def __init__(
        self,
        make: Callable[[], T],
        *,
        drop: Callable[[T], None],
        alive: Callable[[T], bool],
        creators: ThreadPoolExecutor,
        most: int = _MOST_WARM,
    ) -> None:
        self._make = make
        self._drop = drop
        self._alive = alive
        self._creators = creators
        self._most = most
        self._open = 0
        self._ready: deque[T] = deque()
        self._coming: set[Future[None]] = set()
        self._changed = threading.Condition()

    @property
    def full(self) -> bool:
        """Whether as many are ready as it keeps now."""
        with self._changed:
            return len(self._ready) >= self._wanted()

    def enter(self) -> None:
        """One more is going to be open; does not block."""
        with self._changed:
            self._open += 1

    def pop(self) -> T | None:
        """One that was made ahead and still answers, or `None`."""
        while True:
            with self._changed:
                found = self._ready.popleft() if self._ready else None
            if found is None or self._alive(found):
                self._stock()
                return found
            self._drop(found)

    def leave(self) -> None:
        """One fewer is open; the last one waits until nothing of the stock is left."""
        with self._changed:
            self._open -= 1
            if self._open:
                return
            for future in list(self._coming):
                future.cancel()
            # Whoever opens meanwhile may have what is ready.
            self._changed.wait_for(lambda: not self._coming or self._open > 0)
            unused = [] if self._open else list(self._ready)
            if unused:
                self._ready.clear()
        for one in unused:
            self._drop(one)

    def _stock(self) -> None:
        with self._changed:
            for _ in range(self._wanted() - len(self._ready) - len(self._coming)):
                future = self._creators.submit(self._add)
                self._coming.add(future)
                future.add_done_callback(self._arrived)

    def _wanted(self) -> int:
        return min(self._open // 2, self._most)

    def _add(self) -> None:
        with self._changed:
            if not self._open:
                return
        made = self._make()
        with self._changed:
            if self._open:
                self._ready.append(made)
                return
        self._drop(made)

    def _arrived(self, future: "Future[None]") -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            # Nobody waits for it: whoever needs one makes it, and sees the error then.
            _LOG.info("no container could be made ahead: %s", error)
        with self._changed:
            self._coming.discard(future)
            self._changed.notify_all()
