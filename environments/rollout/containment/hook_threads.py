"""Daemon threads for the `def` code of an environment; the process can end without waiting for them."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Any

from tools.errors import RunError

MOST_PINNED = 256
"""Rollouts with their own thread; others wait to start."""
_MOST_SHARED = 256
_SPARE = 16
"""Threads left to others if the system refuses more."""
_IDLE_S = 10.0
MOST_ABANDONED = 32
"""Calls that may still run beyond their limit; each one keeps a thread or a connection."""

_LOG = logging.getLogger(__name__)


class ThreadCall(Future[Any]):
    def __init__(self, function: Callable[[], Any], give_up: "Callable[[ThreadCall], None]") -> None:
        super().__init__()
        self._function, self._give_up = function, give_up
        self._began: float | None = None
        self.is_given_up = False
        self.what = "a call of asyncio.to_thread"

    def cancel(self) -> bool:
        is_cancelled = super().cancel()
        if self.running() and not self.is_given_up:
            self._give_up(self)
        return is_cancelled

    def run(self) -> None:
        if not self.set_running_or_notify_cancel():
            return
        self._began = monotonic()
        try:
            result = self._function()
        except StopIteration:  # which no future takes
            self.set_exception(RuntimeError("a call on a thread raised StopIteration"))
        except BaseException as error:  # noqa: BLE001  # for the one that waits
            self.set_exception(error)
        else:
            self.set_result(result)

    def seconds_left(self, limit_s: float | None) -> float | None:
        if limit_s is None or self._began is None:
            return limit_s
        return max(0.0, self._began + limit_s - monotonic())


class HookThreads(Executor):
    """The threads of one environment: shared ones, and those pinned by rollouts.

    A call waits while all threads are busy. A thread that hangs is replaced and counted.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls = deque[ThreadCall]()
        self._idle = self._shared = self._pinned = 0
        self._most = _MOST_SHARED + MOST_PINNED
        self._abandoned: list[tuple[str, Callable[[], bool]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ThreadCall:
        call = ThreadCall(partial(fn, *args, **kwargs), self._replace)
        with self._changed:
            self._calls.append(call)
            self._serve()
        return call

    def own_thread(self) -> "OwnThread | None":
        thread = OwnThread(self)
        with self._changed:
            if not self._start_thread(thread.work, "turnwise-hooks"):
                return None
            self._pinned += 1
        return thread

    def unpin(self) -> None:
        with self._changed:
            self._pinned -= 1
            self._serve()

    def abandon(self, what: str, still_running: Callable[[], bool]) -> None:
        self._abandoned.append((what, still_running))

    @property
    def abandoned(self) -> int:
        self._abandoned = [call for call in self._abandoned if call[1]()]
        return len(self._abandoned)

    def refuse_more(self, env: str) -> None:
        if (count := self.abandoned) > MOST_ABANDONED:
            raise RunError(
                f"environment {env!r}: {count} calls of its code still run beyond their limit, the last one "
                f"{self._abandoned[-1][0]}; give what they wait for a timeout of its own"
            )

    # Called with the lock held.

    def _serve(self) -> None:
        if self._idle >= len(self._calls):
            self._changed.notify()
        elif self._shared < _MOST_SHARED and self._start_thread(self._work, "turnwise-pool"):
            self._shared += 1

    def _start_thread(self, work: Callable[[], None], name: str) -> bool:
        threads = self._shared + self._pinned
        if threads >= self._most:
            return False
        try:
            threading.Thread(target=work, name=name, daemon=True).start()
        except RuntimeError as error:
            if threads == 0:
                raise RunError("the system gives no thread for `def` hooks (ulimit -u)") from error
            self._most = max(1, threads - _SPARE)
            _LOG.warning("the system gives no more threads (ulimit -u): `def` hooks use %d", self._most)
            return False
        return True

    # Run by each thread.

    def _work(self) -> None:
        while (call := self._next()) is not None:
            call.run()
            if call.is_given_up:
                return
            del call  # it must not live on until the next call

    def _next(self) -> ThreadCall | None:
        with self._changed:
            if self._shared + self._pinned <= self._most or self._shared == 1:
                self._idle += 1
                self._changed.wait_for(lambda: self._calls, _IDLE_S)
                self._idle -= 1
                if self._calls:
                    return self._calls.popleft()
            self._shared -= 1
            return None

    def _replace(self, call: ThreadCall) -> None:
        with self._changed:
            call.is_given_up = True
            self.abandon(call.what, call.running)
            self._shared -= 1
            self._serve()


class OwnThread:
    """The thread of one rollout: what one hook opened there (sqlite3), another can use and close."""

    def __init__(self, threads: HookThreads) -> None:
        self._threads = threads
        self._calls = SimpleQueue[ThreadCall | None]()

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> ThreadCall:
        call = ThreadCall(partial(fn, *args), self._abandon)
        self._calls.put(call)
        return call

    def close(self) -> None:
        self._calls.put(None)
        self._threads.unpin()

    def work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            del call

    def _abandon(self, call: ThreadCall) -> None:
        call.is_given_up = True
        self._threads.abandon(call.what, call.running)
