"""Code that is not ours: what is in flight, how a call ended, and what it left running.

How it ended is a value, so that `SystemExit` ends no task and no loop.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from inspect import iscoroutine
from time import monotonic
from typing import Any, Generic, TypeVar

from tools.errors import RunError, UserCodeBroke

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Returned(Generic[T]):
    """What it gave."""

    value: T


@dataclass(frozen=True, slots=True)
class Raised:
    """What it raised instead."""

    error: BaseException


Ended = Returned[T] | Raised


def ended_call(function: Callable[[], T]) -> Ended[T]:
    """Call it now."""
    process = os.getpid()
    try:
        return Returned(function())
    except BaseException as error:  # noqa: BLE001  # handed on
        return Raised(error)
    finally:
        _end_fork_of(process)


async def ended_await(awaitable: Awaitable[T]) -> Ended[T]:
    """Await it now."""
    process = os.getpid()
    try:
        return Returned(await awaitable)
    except BaseException as error:  # noqa: BLE001  # handed on
        # What Python makes of a `StopIteration` in a coroutine does not say where it was raised.
        return Raised(error.__cause__ if isinstance(error.__cause__, StopIteration) else error)
    finally:
        _end_fork_of(process)


def value_of(ended: Ended[Any]) -> Any:
    """What it gave.

    Raises:
        Exception: what it raised.
        UserCodeBroke: it raised what would be taken for a sign of our own: of a cancellation, an exit, an
            iterator's end.
    """
    if isinstance(ended, Returned):
        return ended.value
    if isinstance(ended.error, Exception) and not isinstance(ended.error, StopIteration | StopAsyncIteration):
        raise ended.error
    raise UserCodeBroke from ended.error


def _end_fork_of(process: int) -> None:
    """End a process that the code forked and that came back from it: one has this run, and its files."""
    if os.getpid() != process:
        os._exit(1)


MOST = 32
"""Abandoned calls that may still run; each one keeps a thread or a connection."""


class Abandoned:
    """The calls of one environment that did not end when they were told to."""

    def __init__(self) -> None:
        self._still_running: list[Callable[[], bool]] = []
        self._last = ""

    def add(self, what: str, still_running: Callable[[], bool]) -> None:
        """Note a call that goes on."""
        self._still_running.append(still_running)
        self._last = what

    def add_task(self, what: str, task: "asyncio.Task[object]") -> None:
        """Note a task that goes on when it is cancelled; the end of the loop will not wait for it either."""
        self.add(what, lambda: not task.done())
        leave_behind(task)

    @property
    def count(self) -> int:
        """How many still run."""
        self._still_running = [still_running for still_running in self._still_running if still_running()]
        return len(self._still_running)

    def refuse_more(self, env: str) -> None:
        """Raise RunError when more than `MOST` still run."""
        if (count := self.count) > MOST:
            raise RunError(
                f"environment {env!r}: {count} calls of its code still run beyond their limit, the last one "
                f"{self._last}; give what they wait for a timeout of its own"
            )


def leave_behind(task: "asyncio.Task[Any]") -> None:
    """Let the loop end without a task that may go on although it was cancelled."""
    # `asyncio.run` cancels and awaits every task that asyncio knows of: this one would keep it for ever.
    asyncio._unregister_task(task)  # pyright: ignore[reportPrivateUsage]  # documented for who extends asyncio
    task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]  # who left it tells


@dataclass(slots=True, kw_only=True)
class InFlight:
    """Which rollout it is, since when, and what it waits for."""

    item_id: str
    sibling: int
    started: float = field(default_factory=monotonic)
    """`time.monotonic` when it got its slot."""
    doing: str = "starting"
    """`prepare`, `model, turn 3`, `tool terminal, turn 3`, `compute_reward`, …"""


Watch = Callable[[InFlight], AbstractContextManager[object]]
"""Entered for as long as a rollout is in flight."""


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
