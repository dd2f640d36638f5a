"""A bounded queue for each that only watches a run, such as traces and charts: they never hold it."""

import logging
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Condition, Thread

from environments.policy.inference.endpoint import without_credentials

MOST_JOBS = 100
"""Most jobs that wait for one observer. A trace job holds its group's line, which may have megabytes."""
END_S = 10.0
MOST_WARNINGS = 3
"""Of one observer."""
HUNG_THREAD = "turnwise-hung-observer"
"""The name of a thread that may never end."""
logger = logging.getLogger(__name__)
Job = Callable[[], object]


class Observers:
    """Does jobs on a thread for each observer. A job that does not fit into its queue is dropped."""

    def __init__(self) -> None:
        self.dropped, self._left = Counter[str](), Counter[str]()
        """Jobs that were not done, and those that are to be done or run, by observer."""
        self._changed = Condition()
        self._serving = dict[str, tuple[SimpleQueue[Job | None], Thread]]()

    def put(self, what: str, job: Job) -> bool:
        """Queue a job of the observer `what`, without waiting. Return False where it is dropped instead."""
        with self._changed:
            try:
                fits = self._left[what] < MOST_JOBS
                if fits and what not in self._serving:
                    jobs = SimpleQueue[Job | None]()
                    thread = Thread(target=self._serve, args=(what, jobs), daemon=True)
                    thread.start()
                    self._serving[what] = jobs, thread
            except RuntimeError:  # too many threads just now; the next job tries again
                fits = False
            if fits:
                self._left[what] += 1
                self._serving[what][0].put(job)
            else:
                self.dropped[what] += 1
            return fits

    def end(self) -> None:
        """Wait for the jobs, for `END_S` at most; those that are left then count as dropped."""
        with self._changed:
            self._changed.wait_for(lambda: not self._left.total(), END_S)
            self.dropped.update(+self._left)
            for what, (jobs, thread) in self._serving.items():
                jobs.put(None)
                if self._left[what]:
                    thread.name = HUNG_THREAD
            self._serving.clear()

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

    def _serve(self, what: str, jobs: "SimpleQueue[Job | None]") -> None:
        warned = 0
        while (job := jobs.get()) is not None:
            try:
                job()
            except BaseException as error:  # noqa: BLE001  # whatever an exporter or a client of a service raises
                warned += 1
                if warned <= MOST_WARNINGS:
                    text = without_credentials(f"{type(error).__name__}: {error}")
                    logger.warning("%s: %s", what, text)
            with self._changed:
                self._left[what] -= 1
                self._changed.notify_all()
