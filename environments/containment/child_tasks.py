"""Tasks that an environment's code makes: `sys.exit` in one of them ends that task, not the event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from inspect import iscoroutine
from typing import Any

IN_USER_CODE: ContextVar[bool] = ContextVar("turnwise_in_user_code", default=False)
"""Set in the context of hooks, tools and policies, which the tasks that they make inherit."""


class CodeExit(Exception):  # named like the `SystemExit` that it stands for
    """`SystemExit` or `KeyboardInterrupt` in a task that an environment's code made."""


def contain_exits(loop: asyncio.AbstractEventLoop) -> None:
    """Let no task that an environment's code makes end the loop; other tasks stay as they are."""
    factory: Any = loop.get_task_factory()
    if not isinstance(factory, _TaskFactory):
        loop.set_task_factory(_TaskFactory(factory or _new_task))


class _TaskFactory:
    """Asyncio lets `SystemExit` of any task leave the loop, before whoever awaits the task can catch it."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        contained = _Contained(coro) if IN_USER_CODE.get() and iscoroutine(coro) else coro
        return self._make(loop, contained, **options)


def _new_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> "asyncio.Task[Any]":
    return asyncio.Task(coro, loop=loop, **options)


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine whose `SystemExit` and `KeyboardInterrupt` come out as an ordinary error."""

    def __init__(self, coro: Any) -> None:
        self._coro = coro

    def send(self, value: Any) -> Any:
        return _contained(self._coro.send, value)

    def throw(self, *error: Any) -> Any:
        return _contained(self._coro.throw, *error)

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Any:
        return self._coro.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coro, name)  # `cr_frame` and its like, for who looks at tasks


def _contained(step: Callable[..., Any], *args: Any) -> Any:
    try:
        return step(*args)
    except (SystemExit, KeyboardInterrupt) as error:
        raise CodeExit(f"{type(error).__name__} in a task of its own") from error
