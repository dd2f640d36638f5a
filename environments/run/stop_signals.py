"""SIGINT and SIGTERM: the first asks for an orderly end, the second ends the process at once."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """While entered, the first signal calls `stop` in the event loop that runs."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self.received: int | None = None
        """The number of the first signal."""
        self._stop = stop

    @property
    def exit_code(self) -> int:
        """0, or 128 + the signal's number, as a shell reports it."""
        return 0 if self.received is None else 128 + self.received

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        for number in STOP_SIGNALS:
            # Not the loop's own handlers: those wait while an environment's code blocks the loop.
            signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: object) -> None:
        self.received = number
        # Back to the default, so that a second signal kills without a word from us.
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        self._loop.call_soon_threadsafe(self._stop)


async def until_stopped(work: Coroutine[Any, Any, T]) -> tuple[T | None, int]:
    """What some work gives, and 0; or nothing, and the exit code of the signal that cancelled it."""
    task = asyncio.create_task(work)
    with StopSignals(task.cancel) as signals:
        try:
            return await task, 0
        except asyncio.CancelledError:
            if signals.received is None:
                raise
            return None, signals.exit_code
