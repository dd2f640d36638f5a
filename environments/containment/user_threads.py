"""Threads that an environment's `async def` code asks asyncio for: none of them is in the way of ours."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from environments.containment.child_tasks import IN_USER_CODE


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
