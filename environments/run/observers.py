"""One bounded queue for what only watches a run: traces and charts never hold it."""

import logging
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Condition, Thread, current_thread
from time import monotonic

from environments.inference.endpoint import without_credentials

MOST_JOBS = 100
"""A job of a trace holds the line of its group, which may have megabytes."""
HUNG_S = 5.0
"""Of one job. Then another thread does the others, but none of the same observer until that job ends."""
END_S = 10.0
MOST_WARNINGS = 3
"""Of one observer."""
HUNG_THREAD = "turnwise-hung-observer"
"""The name of a thread that may never end."""
logger = logging.getLogger(__name__)
_Job = tuple[str, Callable[[], object]]


class Observers:
    """A queue of jobs that one thread does in order. What breaks, hangs or does not fit is dropped."""

    def __init__(self) -> None:
        self.dropped = Counter[str]()
        """Jobs that were not done, by what they were for."""
        self._changed = Condition()
        self._jobs = list[_Job]()
        self._running: tuple[str, float] | None = None
        """What the thread does, and since when."""
        self._thread: Thread | None = None
        self._hung, self._warned = set[str](), Counter[str]()

    def put(self, what: str, job: Callable[[], object]) -> bool:
        """Queue a job, from any thread, without waiting. Return False where it is dropped instead."""
        with self._changed:
            self._keep_serving()
            fits = what not in self._hung and len(self._jobs) < MOST_JOBS
            if fits:
                self._jobs.append((what, job))
                self._changed.notify_all()
            else:
                self.dropped[what] += 1
            return fits

    def end(self) -> None:
        """Wait for the jobs, for `END_S` at most, and drop those that are left."""
        until = monotonic() + END_S
        with self._changed:
            while (self._jobs or self._running) and (left_s := until - monotonic()) > 0:
                self._changed.wait(min(left_s, HUNG_S))
                self._keep_serving()
            self.dropped.update(what for what, _ in self._jobs)
            self._jobs.clear()
            if self._running is not None:
                self._give_up(self._running[0])
            self._thread = None
            self._changed.notify_all()

    @contextmanager
    def of_run(self) -> Generator[None]:
        """At the end, wait for the jobs, and log how many were dropped."""
        try:
            yield
        finally:
            self.end()
            if self.dropped:
                counts = ", ".join(f"{count} {what}" for what, count in self.dropped.items())
                logger.warning("dropped, since whoever takes them hangs or is too slow: %s", counts)

    def _keep_serving(self) -> None:
        if self._running is not None and monotonic() - self._running[1] >= HUNG_S:
            self._give_up(self._running[0])
        if self._thread is None:
            self._thread = Thread(target=self._serve, name="turnwise-observers", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # too many threads just now; the next job tries again
                self._thread = None

    def _give_up(self, what: str) -> None:
        assert self._thread is not None
        self._thread.name = HUNG_THREAD
        self._hung.add(what)
        self.dropped[what] += 1
        self._thread = self._running = None

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            what, do = job
            try:
                do()
            except BaseException as error:  # noqa: BLE001  # whatever an exporter or a client of a service raises
                self._warned[what] += 1
                if self._warned[what] <= MOST_WARNINGS:
                    text = without_credentials(f"{type(error).__name__}: {error}")
                    logger.warning("%s: %s", what, text)
            with self._changed:
                if self._thread is not current_thread():  # it hung, and no longer does
                    self._hung.discard(what)
                else:
                    self._running = None
                self._changed.notify_all()

    def _next(self) -> _Job | None:
        """Wait for the next job and return it; `None` where another thread does the jobs now."""
        with self._changed:
            while self._thread is current_thread():
                for number, (what, _) in enumerate(self._jobs):
                    if what not in self._hung:
                        self._running = what, monotonic()
                        return self._jobs.pop(number)
                self._changed.wait()
        return None
