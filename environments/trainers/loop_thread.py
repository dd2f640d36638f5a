"""An event loop in a thread of its own, for trainers that call from code which is not async."""

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from threading import Thread
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

Value = TypeVar("Value")
Result = TypeVar("Result")


class OpenInThread(Generic[Value]):
    """A value that is open while this is: `with OpenInThread(env) as opened: opened.run(…)`."""

    def __init__(self, opening: AbstractAsyncContextManager[Value]) -> None:
        """Open and close `opening` in the thread's loop."""
        self._opening = opening
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="turnwise-loop", daemon=True)
        self.value: Value
        """What the context manager gave."""

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`, which is cancelled when the wait for it is interrupted."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.value = self.run(self._opening.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.run(_rest_cancelled())
            self.run(self._opening.__aexit__(kind, error, trace))
        finally:
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _rest_cancelled() -> None:
    """Every other task is over: an interrupted wait leaves what it waited for."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
