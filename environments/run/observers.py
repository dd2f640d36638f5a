"""One bounded queue for what only watches a run: traces, charts and all that is shown never hold it."""

import logging
import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from select import select
from threading import Condition, RLock, Thread, current_thread
from time import monotonic
from typing import Any

from rich.console import Console

from environments.inference.endpoint import without_credentials
from environments.run.console_streams import HUNG, OutlivedText, lead_nowhere

MOST_JOBS = 100
"""A job of a trace holds the line of its group, which may have megabytes."""
MOST_CHARS = 1 << 20
"""Text of a stream that waits to be written."""
HUNG_S = 5.0
"""Of one job. Then another thread does the others, but none of the same observer until that job ends."""
END_S = 10.0
MOST_WARNINGS = 3
"""Of one observer."""
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
            self._hung.update(what for what, _ in self._jobs)
            self._jobs.clear()
            if self._running is not None:
                self._give_up(self._running[0])
            self._thread = None
            self._changed.notify_all()

    @contextmanager
    def of_run(self, console: Console) -> Generator[None]:
        """While entered, writing to the console, stdout and stderr is a job. Then log what was dropped."""
        texts = list[tuple[Any, str, ObservedText]]()
        for owner, name in ((sys, "stdout"), (sys, "stderr"), (console, "file")):
            file = getattr(owner, name)
            if not isinstance(file, ObservedText):  # by this run, or by one around it
                texts.append((owner, name, ObservedText(f"lines of {name}", file, self)))
                setattr(owner, name, texts[-1][2])
        try:
            yield
        finally:
            self.end()
            for owner, name, text in texts:
                # What is written from now on does not wait in the queue.
                if self._hung and isinstance(text.file, OutlivedText):
                    descriptor = text.file.fileno()
                    if not select([], [descriptor], [], 0)[1]:
                        lead_nowhere(descriptor)
                if getattr(owner, name) is text:
                    setattr(owner, name, text.file)
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
        self._thread.name = HUNG
        self._hung.add(what)
        self.dropped[what] += 1
        self._thread = self._running = None

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            what, do = job
            try:
                do()
            except BaseException as error:  # noqa: BLE001  # whatever an exporter, a client of a service or a file raises
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
        """The next job, once there is one; `None`: another thread does them."""
        with self._changed:
            while self._thread is current_thread():
                for number, (what, _) in enumerate(self._jobs):
                    if what not in self._hung:
                        self._running = what, monotonic()
                        return self._jobs.pop(number)
                self._changed.wait()
        return None


class ObservedText:
    """A text file that is written by a job. No class of `io`, which would answer what only the file knows."""

    def __init__(self, what: str, file: Any, observers: Observers) -> None:
        self.what, self.file = what, file
        self._observers = observers
        self._one_at_a_time = RLock()
        self._text = list[str]()
        self._chars = 0

    def write(self, text: str) -> int:
        """Take text, as long as it fits."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # click finds out so
            raise TypeError(f"text is written here, not {type(text).__name__}")
        with self._one_at_a_time:
            if self._text and self._chars > MOST_CHARS:
                self._observers.dropped[self.what] += 1
            elif self._text or self._observers.put(self.what, self._write):
                self._text.append(text)
                self._chars += len(text)
        return len(text)

    def flush(self) -> None:
        """Do nothing: it is flushed after it is written."""

    def _write(self) -> None:
        with self._one_at_a_time:
            text, self._text, self._chars = "".join(self._text), [], 0
        self.file.write(text)
        self.file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)
