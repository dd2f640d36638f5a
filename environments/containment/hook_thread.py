"""Threads of an environment: one for a rollout's `def` hooks, others that its `async def` code starts."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context
from functools import partial
from queue import SimpleQueue
from typing import Any

from environments.containment.user_code import IN_USER_CODE, Ended, ended_call

_Call = tuple[Callable[[], Any], "asyncio.Future[Ended[Any]]"]


class HookThread:
    """One daemon thread, started at its first call: what a hook opened there (sqlite3) stays usable there."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], Any], context: Context) -> "asyncio.Future[Ended[Any]]":
        """Call it there, in a context that nobody else uses; no cancellation reaches the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="turnwise-hooks", daemon=True)
            self._thread.start()
        answer: asyncio.Future[Ended[Any]] = asyncio.get_running_loop().create_future()
        self._calls.put((partial(context.run, function), answer))
        return answer

    def close(self) -> None:
        """Let the thread end once its call has ended."""
        self._calls.put(None)

    @property
    def is_alive(self) -> bool:
        """Whether a thread was started and has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            function, answer = call
            try:
                answer.get_loop().call_soon_threadsafe(_answer, answer, ended_call(function))
            except RuntimeError:
                return  # the loop is closed: nobody waits any more
            del call, function, answer  # nothing of a call is kept until the next one


def _answer(answer: "asyncio.Future[Ended[Any]]", ended: Ended[Any]) -> None:
    if not answer.done():
        answer.set_result(ended)


def contain_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Let no `asyncio.to_thread` of an environment's code that never ends fill the pool that ours uses."""
    # Where somebody chose an executor, or asyncio made its own already, it stays.
    if getattr(loop, "_default_executor", loop) is None:
        loop.set_default_executor(_DefaultExecutor(thread_name_prefix="turnwise-pool"))


class _DefaultExecutor(ThreadPoolExecutor):
    """Asyncio's pool for our calls; for each call of an environment's a thread that no end waits for."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        if not IN_USER_CODE.get():
            return super().submit(fn, *args, **kwargs)
        future: Future[Any] = Future()
        call = partial(fn, *args, **kwargs)
        threading.Thread(target=_run, args=(future, call), name="turnwise-user", daemon=True).start()
        return future


def _run(future: "Future[Any]", call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  # for whoever waits
        future.set_exception(error)
    else:
        future.set_result(result)
