"""What one task opens, holds and closes: a rollout's sandbox, and an async generator of the environment's."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from typing import Any, Final

from environments.containment.user_code import (
    Abandoned,
    Ended,
    Raised,
    Returned,
    ended_await,
    leave_behind,
    value_of,
)
from environments.time_profile import timed
from tools.errors import TimeLimitExceeded
from tools.sandbox.base import Sandbox
from tools.waiting import to_the_end

_LOG = logging.getLogger(__name__)
_CLOSE_S = 30.0
"""For a sandbox to close; one that takes longer is closed while other rollouts go on."""


@asynccontextmanager
async def owned_sandbox(
    opener: Callable[[], AbstractAsyncContextManager[Sandbox]], abandoned: Abandoned, *, limit_s: float
) -> AsyncGenerator[Sandbox]:
    """A sandbox; one that does not close as it should is told in the log, and costs nothing that was scored.

    Raises:
        TimeLimitExceeded: it could not be opened in time.
        UserCodeBroke, Exception: what opening it raised.
    """
    opened: asyncio.Future[Sandbox] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()
    owner = asyncio.create_task(ended_await(_own(opener, opened, done)))
    try:
        with timed("opening a sandbox"):
            await asyncio.wait({owner, opened}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            if owner.done():
                value_of(_end_of(owner))
            raise TimeLimitExceeded(
                f"opening a sandbox took longer than {limit_s:g} s (--env.hook_timeout_s)"
            )
        yield opened.result()
    finally:
        done.set()
        if not opened.done():
            owner.cancel()
        with timed("closing a sandbox"):
            await to_the_end(asyncio.wait({owner}, timeout=_CLOSE_S))
        if not owner.done():
            _LOG.warning("a sandbox takes longer than %g s to close", _CLOSE_S)
            abandoned.add_task("the closing of a sandbox", owner)
        elif opened.done() and isinstance(ended := _end_of(owner), Raised):
            _LOG.warning("a sandbox did not close as it should", exc_info=ended.error)


async def _own(
    opener: Callable[[], AbstractAsyncContextManager[Sandbox]],
    opened: "asyncio.Future[Sandbox]",
    done: asyncio.Event,
) -> None:
    async with opener() as sandbox:
        opened.set_result(sandbox)
        await done.wait()


def _end_of(owner: "asyncio.Task[Ended[None]]") -> Ended[None]:
    return Raised(asyncio.CancelledError()) if owner.cancelled() else owner.result()


END: Final = object()
"""What a generator gives that has ended."""


class OwnedGenerator:
    """Its task, begun with the first step, ends with the generator.

    Cancel scopes and task groups belong to a task. A generator that is cancelled between two steps, as by a
    task group whose child broke, sees it at its `yield`.
    """

    def __init__(self, generator: AsyncGenerator[Any], context: Context) -> None:
        self._generator, self._context = generator, context
        self._asked: asyncio.Queue[asyncio.Future[Ended[Any]]] = asyncio.Queue()
        self._owner: asyncio.Task[Ended[Any]] | None = None
        self._is_given_up = False

    async def next(self) -> Any:
        """What it yields next, or `END`, also of one that went on when it was cancelled.

        Raises:
            Exception: what it raised, as for `HookCalls`.
        """
        loop = asyncio.get_running_loop()
        if self._owner is None:
            self._owner = loop.create_task(self._own(), context=self._context)
        if self._is_given_up:
            return END
        answer: asyncio.Future[Ended[Any]] = loop.create_future()
        self._asked.put_nowait(answer)
        try:
            await asyncio.wait({answer, self._owner}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._is_given_up = True
            self._owner.cancel()
            leave_behind(self._owner)
            await asyncio.wait({self._owner})
            raise
        if answer.done():
            return _step(answer.result())
        return _step(Raised(asyncio.CancelledError()) if self._owner.cancelled() else self._owner.result())

    async def _own(self) -> Ended[Any]:
        """Its end, once the one who asked for a step had what it gave."""
        while True:
            try:
                answer = await self._asked.get()
            except asyncio.CancelledError:
                return await ended_await(self._generator.athrow(asyncio.CancelledError()))
            ended = await ended_await(anext(self._generator, END))
            if isinstance(ended, Returned) and await _take_cancellation():
                # It cancelled its own task, and gave something all the same.
                answer.set_result(Raised(asyncio.CancelledError()))
                return await ended_await(self._generator.athrow(asyncio.CancelledError()))
            answer.set_result(ended)
            if isinstance(ended, Raised) or ended.value is END:
                return Returned(END)


async def _take_cancellation() -> bool:
    """Let a cancellation that this task was asked for arrive here; whether there was one."""
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        return False
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        task.uncancel()
    return True


def _step(ended: Ended[Any]) -> Any:
    if isinstance(ended, Raised) and isinstance(ended.error, StopAsyncIteration):
        return END
    return value_of(ended)
