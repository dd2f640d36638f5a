"""An async generator whose steps run in one task: what it entered is left where it was entered."""

import asyncio
from collections.abc import AsyncGenerator
from contextvars import Context
from typing import Any, Final

from environments.containment.abandoned import leave_behind
from environments.containment.ended import Ended, Raised, Returned, ended_await, value_of

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
