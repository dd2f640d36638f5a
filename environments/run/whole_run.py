"""A run in an event loop of its own, which no code of the environment's ends early or keeps from its end."""

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from environments.containment.user_code import Abandoned
from tools.errors import RunError

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_CANCEL_S = 5.0
"""For tasks that an environment's code left behind to end when they are cancelled."""


def run_whole(main: Coroutine[Any, Any, T]) -> T:
    """What `asyncio.run` gives, but a callback that exits or stops the loop ends nothing.

    Raises:
        RunError: code that nobody asked to cancelled all of it.
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
        # Where nobody handles it, `asyncio.Runner` makes one of a second ^C.
        interrupted = isinstance(error, KeyboardInterrupt) and _handles_no_interrupt()
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
            Abandoned().add_task("", task)


def _handles_no_interrupt() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler
