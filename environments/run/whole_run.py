"""A run in an event loop of its own: no code of the environment's ends it, and signals end it in order.

The first signal asks for an orderly end, the second one ends the process at once.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from environments.rollout.containment.hook_calls import ContainedCoroutine
from tools.errors import RunError

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_CANCEL_S = 5.0
"""For tasks that an environment's code left behind to end when they are cancelled."""


def run_whole(main: Coroutine[Any, Any, T]) -> T:
    """What `asyncio.run` gives, but a callback that exits or stops the loop ends nothing.

    Raises RunError if code of the environment cancelled all of it.
    """
    with asyncio.Runner() as runner:
        work = runner.get_loop().create_task(main)
        try:
            while not work.done():
                _go_on(runner, work)
            return work.result()
        except asyncio.CancelledError:
            raise RunError(
                "the run was cancelled by code that nobody asked to; what is finished is kept"
            ) from None
        finally:
            runner.run(_end_of_others())


def _go_on(runner: asyncio.Runner, work: "asyncio.Task[Any]") -> None:
    """Run until the work is done, or until a callback breaks out of the loop."""
    try:
        runner.run(_end_of(work))
    except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
        # Without a handler `asyncio.Runner` makes one of a second ^C.
        has_no_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        interrupted = isinstance(error, KeyboardInterrupt) and has_no_handler
        if interrupted or work.done() or runner.get_loop().is_closed():
            raise
        _LOG.warning("a callback tried to end the event loop: %s: %s", type(error).__name__, error)


async def _end_of(work: "asyncio.Task[Any]") -> None:
    try:
        await asyncio.wait({work})
    except asyncio.CancelledError:  # ^C, which `asyncio.Runner` makes a cancellation of
        work.cancel()
        await asyncio.wait({work})
        raise


async def _end_of_others() -> None:
    """Cancel what is left; those that go on all the same are left alone."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        _, left = await asyncio.wait(others, timeout=_CANCEL_S)
        for task in left:
            _LOG.warning("a task goes on although it was cancelled, and is not waited for: %r", task)
            if isinstance(coro := task.get_coro(), ContainedCoroutine):
                coro.code.is_given_up = True  # so that the end of the loop, which cancels it again, ends it


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Schedulers send the last two before a job's time is over; they would end the process without a word."""


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
