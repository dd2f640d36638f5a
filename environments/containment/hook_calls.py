"""Calls of an environment's own code: `def` or `async def`, within a limit, and nothing of it breaks out."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import Context, copy_context
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

from environments.containment.hook_thread import HookThread, contain_threads
from environments.containment.owned import END, OwnedGenerator, owned_sandbox
from environments.containment.user_code import (
    IN_USER_CODE,
    Abandoned,
    Ended,
    InFlight,
    Raised,
    contain_exits,
    ended_await,
    value_of,
)
from environments.time_profile import Profiler, TimeProfile, handed_on, handed_to, profiled, timed
from environments.trajectory import JudgeCall
from tools.errors import ConfigError, TimeLimitExceeded
from tools.sandbox.base import Sandbox

_CANCEL_S = 5.0
"""For code to end after it was cancelled; what goes on is abandoned."""
_KILL_S = 5.0
"""For a sandbox to end a command that reached its own limit while its caller reached this one."""


class HookCalls:
    """The calls of one rollout, or of an environment's setup: one after the other, or one in another.

    `async def` runs in a task of its own, `def` on a thread that all calls share. Code that is over its limit
    is cancelled, and abandoned when it goes on. What it raises comes out as an `Exception`, whatever it is.
    """

    def __init__(
        self,
        in_flight: InFlight,
        abandoned: Abandoned,
        *,
        hook_timeout_s: float,
        is_profiled: bool = False,
    ) -> None:
        self._in_flight = in_flight
        self._abandoned = abandoned
        self._hook_timeout_s = hook_timeout_s
        self._thread = HookThread()
        self._left: list[HookThread] = []
        self._running: list[str] = []
        self._profiler = Profiler() if is_profiled else None
        self._profiled = profiled(self._profiler)
        self._is_over = False
        self.asked: dict[str, list[JudgeCall]] = {}
        """What its hooks asked second models so far, by their role."""
        # One for all calls, so that what `prepare` sets is there for the rewards.
        self._context = copy_context()
        self._context.run(IN_USER_CODE.set, True)

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        contain_exits(loop)
        contain_threads(loop)
        self._profiled.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._profiled.__exit__(kind, error, trace)
        for thread in (*self._left, self._thread):
            thread.close()

    def sandbox(
        self, opener: Callable[[], AbstractAsyncContextManager[Sandbox]]
    ) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox for the rollout, see `owned_sandbox`."""
        self._in_flight.doing = "opening a sandbox"
        return owned_sandbox(opener, self._abandoned, limit_s=self._hook_timeout_s)

    @property
    def profile(self) -> TimeProfile | None:
        """Where the time went so far; `None` where nobody asked."""
        return None if self._profiler is None else self._profiler.profile()

    @property
    def doing(self) -> str:
        """What was called last, for people: `score_turn`, `tool terminal, turn 3`."""
        return self._in_flight.doing

    async def hook(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """What a hook gives.

        Raises:
            TimeLimitExceeded: it took longer than `hook_timeout_s`.
            UserCodeBroke: it raised what is no `Exception`.
            Exception: what it raised.
        """
        given = await self.run(
            partial(function, *args), doing=name, limit_s=self._hook_timeout_s, setting="hook_timeout_s"
        )
        return finished(given, name)

    async def run(
        self,
        function: Callable[[], Any],
        *,
        doing: str,
        limit_s: float | None = None,
        setting: str = "",
        busy: Callable[[], bool] = bool,
        is_parallel: bool = False,
    ) -> Any:
        """What a function of the environment's gives.

        Args:
            function: `def`, `async def`, or anything else that gives a value or an awaitable.
            doing: what it is, for people: its name in a profile, and behind a comma which of those it is. It
                stands behind a `: ` where the hook named before it waits for it.
            limit_s: wall clock; `None`: no limit.
            setting: where the limit comes from, if it can be set.
            busy: whether the sandbox is just ending a command for it, which is waited for.
            is_parallel: whether others run beside it, so that it gets context variables of its own.

        Raises:
            TimeLimitExceeded, UserCodeBroke, Exception: as for `hook`.
            ConfigError: the rollout is over.
        """
        if self._is_over:
            raise ConfigError(f"{doing} is called after its rollout was over; use ctx while it goes on")
        ends = None if limit_s is None else asyncio.get_running_loop().time() + limit_s
        limit = doing if limit_s is None else f"{doing} took longer than {limit_s:.3g} s"
        limit = f"{limit} (--env.{setting})" if setting else limit
        with self._doing(doing), timed(doing.rpartition(": ")[2].partition(", ")[0]):
            given = function() if _is_async(function) else await self._in_thread(function, ends, limit)
            if inspect.isawaitable(given):
                context = handed_to(self._context.copy()) if is_parallel else self._context
                given = await self._in_task(given, ends, limit, busy, context)
        return given

    @contextmanager
    def _doing(self, doing: str) -> Generator[None]:
        """Shown while it runs; then what it ran in or beside, if that goes on."""
        self._running.append(doing)
        self._in_flight.doing = doing
        try:
            yield
        finally:
            self._running.remove(doing)
            if self._running:
                self._in_flight.doing = self._running[-1]

    def owned(self, generator: Iterator[Any] | AsyncGenerator[Any, Any]) -> Callable[[], Awaitable[Any]]:
        """What gives the next value of a generator, or `END`: always in the same task, or on this thread."""
        if isinstance(generator, AsyncGenerator):
            return OwnedGenerator(generator, self._context).next
        return partial(self._on, self._thread, partial(next, generator, END), None, "a generator")

    async def _in_thread(self, function: Callable[[], Any], ends: float | None, limit: str) -> Any:
        thread = self._thread
        try:
            return await self._on(thread, function, ends, limit)
        except TimeLimitExceeded as error:
            if error.still_running and thread is self._thread:
                self._thread = HookThread()
            raise

    async def _on(
        self, thread: HookThread, function: Callable[[], Any], ends: float | None, limit: str
    ) -> Any:
        # With a copy of the variables, as `asyncio.to_thread` does it: a task may be using the others.
        answer = thread.call(function, handed_to(self._context.copy()))
        try:
            await asyncio.wait({answer}, timeout=_seconds_to(ends))
        finally:
            if not answer.done() and thread not in self._left:
                # It ends with the rollout: what it opened can only be closed there.
                self._left.append(thread)
                self._abandoned.add(limit, lambda: not answer.done())
        if not answer.done():
            raise TimeLimitExceeded(f"{limit}; its thread goes on", still_running=True)
        return value_of(answer.result())

    async def _in_task(
        self,
        awaitable: Awaitable[Any],
        ends: float | None,
        limit: str,
        busy: Callable[[], bool],
        context: Context,
    ) -> Any:
        task = asyncio.get_running_loop().create_task(handed_on(ended_await(awaitable)), context=context)
        try:
            await asyncio.wait({task}, timeout=_seconds_to(ends))
            if not task.done() and busy():
                await asyncio.wait({task}, timeout=_KILL_S)
            in_time = task.done()
        finally:
            await self._stop(task, limit)
        if not in_time and task.done():
            raise TimeLimitExceeded(limit)
        if not in_time:
            raise TimeLimitExceeded(f"{limit}; it goes on although it was cancelled", still_running=True)
        # A task that cancelled itself ends as cancelled, whatever it returned.
        return value_of(Raised(asyncio.CancelledError()) if task.cancelled() else task.result())

    async def _stop(self, task: "asyncio.Task[Ended[Any]]", limit: str) -> None:
        if task.done():
            return
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=_CANCEL_S)
        finally:
            if not task.done():
                self._abandoned.add_task(limit, task)


def finished(given: Any, doing: str) -> Any:
    """What a hook gave, of which nothing is left to be run.

    Raises:
        ConfigError: it gave a generator, or a call that was not awaited.
    """
    if inspect.isgenerator(given) or inspect.isasyncgen(given):
        raise ConfigError(f"{doing} is a generator; return what it gives, with no `yield`")
    if inspect.iscoroutine(given):
        given.close()
        raise ConfigError(f"{doing} gave a call that nobody awaited, {given.__qualname__}; write `await`")
    return given


def _is_async(function: Any) -> bool:
    """Whether calling it runs nothing yet: a coroutine function, also as a partial or as an object's call."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    call: Any = getattr(cast("type[Any]", type(function)), "__call__", None)  # noqa: B004  # what it is, not whether
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _seconds_to(ends: float | None) -> float | None:
    return None if ends is None else max(0.0, ends - asyncio.get_running_loop().time())
