"""Code that is not ours: what is in flight, how a call of it ended, and the tasks and threads that it makes.

How a call ended is a value, so that `SystemExit` ends no task and no loop.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from inspect import iscoroutine
from time import monotonic
from typing import Any

from tools.errors import UserCodeBroke


@dataclass(slots=True, kw_only=True)
class InFlight:
    """Which rollout it is, since when, and what it waits for."""

    item_id: str
    epoch: int = 0
    sibling: int
    started: float = field(default_factory=monotonic)
    """`time.monotonic` when it got its slot."""
    doing: str = "starting"
    """`prepare`, `model, turn 3`, `tool terminal, turn 3`, `compute_reward`, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightNow:
    """The rollouts in flight of one process, at one moment."""

    count: int = 0
    doing: Counter[str] = field(default_factory=Counter[str])
    """How many wait for what."""
    oldest: str | None = None
    """The one in flight for longest, in words."""
    oldest_s: float = 0.0


Watch = Callable[[InFlight], AbstractContextManager[object]]
"""Entered for as long as a rollout is in flight."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call ended: with a value, or with what it raised."""

    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        """Returns the value, or raises the error.

        Raises:
            UserCodeBroke: from what would be taken for a sign of our own: a cancellation, an exit, the end of
                an iterator.
        """
        if self.error is None:
            return self.value
        if isinstance(self.error, StopIteration | StopAsyncIteration) or not isinstance(
            self.error, Exception
        ):
            raise UserCodeBroke from self.error
        raise self.error


def ended_call(function: Callable[[], Any]) -> Ended:
    """Calls a function now."""
    process = os.getpid()
    try:
        return Ended(function())
    except BaseException as error:  # noqa: BLE001  # handed on
        return Ended(error=error)
    finally:
        _end_fork_of(process)


async def ended_await(awaitable: Awaitable[Any]) -> Ended:
    """Awaits it now."""
    process = os.getpid()
    try:
        return Ended(await awaitable)
    except BaseException as error:  # noqa: BLE001  # handed on
        # Python's error for a `StopIteration` in a coroutine lacks the place where it was raised.
        return Ended(error=error.__cause__ if isinstance(error.__cause__, StopIteration) else error)
    finally:
        _end_fork_of(process)


def end_of(task: "asyncio.Task[Ended]") -> Ended:
    """How a task that is done ended; one that cancelled itself ends as cancelled, whatever it returned."""
    return Ended(error=asyncio.CancelledError()) if task.cancelled() else task.result()


def _end_fork_of(process: int) -> None:
    if os.getpid() != process:  # the code forked, and the child came back: one process has this run
        os._exit(1)


@dataclass(slots=True, kw_only=True)
class UserCode:
    """The code of one rollout, as the tasks know it that it makes."""

    threads: Executor
    """Runs its blocking calls."""
    in_flight: InFlight
    """The rollout."""
    is_given_up: bool = False
    """Whether the rollout is over and left code that swallows cancellations: the next one ends it."""


IN_USER_CODE: ContextVar[UserCode | None] = ContextVar("turnwise_in_user_code", default=None)
"""Set in the context of hooks, tools and policies, which the tasks that they make inherit."""


class CodeExit(Exception):  # named like the `SystemExit` that it stands for
    """`SystemExit` or `KeyboardInterrupt` in a task that an environment's code made."""


class ContainedCoroutine(Coroutine[Any, Any, Any]):
    """A coroutine of an environment's code: its exit is an error, and in the end nothing waits for it.

    Asyncio lets `SystemExit` of any task leave the loop before the one that awaits the task can catch it, and
    `asyncio.run` waits for tasks that swallow their cancellation.
    """

    def __init__(self, coro: Any, code: UserCode) -> None:
        self._coro, self.code = coro, code

    def send(self, value: Any) -> Any:
        """As that of the coroutine."""
        return _contained(self._coro.send, value)

    def throw(self, *error: Any) -> Any:
        """As that of the coroutine, unless it is given up."""
        if self.code.is_given_up and isinstance(error[0], asyncio.CancelledError):
            raise error[0]
        return _contained(self._coro.throw, *error)

    def close(self) -> None:
        """As that of the coroutine."""
        self._coro.close()

    def __await__(self) -> Any:
        return self._coro.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coro, name)  # `cr_frame` and its like, for what looks at tasks


def _contained(step: Callable[..., Any], *args: Any) -> Any:
    try:
        return step(*args)
    except (SystemExit, KeyboardInterrupt) as error:
        raise CodeExit(f"{type(error).__name__} in a task of its own") from error


def rollout_at(loop: asyncio.AbstractEventLoop) -> InFlight | None:
    """The rollout whose code runs in the event loop now, which any thread may ask; `None`: no rollout's."""
    task = asyncio.current_task(loop)
    coro = None if task is None else task.get_coro()
    return coro.code.in_flight if isinstance(coro, ContainedCoroutine) else None


def contain(loop: asyncio.AbstractEventLoop) -> None:
    """Contains the tasks and the threads that an environment's code makes; all others stay as they are."""
    make: Any = loop.get_task_factory() or asyncio.Task
    if not _is_ours(make, _make_task):
        loop.set_task_factory(partial(_make_task, make))
    if not _is_ours(loop.run_in_executor, _run_in_executor):
        # A pool that blocked calls of an environment have filled would be there for nothing else.
        run = partial(_run_in_executor, loop.run_in_executor)
        loop.run_in_executor = run  # pyright: ignore[reportAttributeAccessIssue]


def _is_ours(function: Any, ours: Callable[..., Any]) -> bool:
    return getattr(function, "func", None) is ours


def _make_task(make: Callable[..., Any], loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
    code = IN_USER_CODE.get()
    if code is not None and iscoroutine(coro):
        coro = ContainedCoroutine(coro, code)
    return make(coro, loop=loop, **options) if make is asyncio.Task else make(loop, coro, **options)


def _run_in_executor(run: Callable[..., Any], executor: Any, *call: Any) -> Any:
    code = IN_USER_CODE.get()
    return run(code.threads if executor is None and code is not None else executor, *call)
