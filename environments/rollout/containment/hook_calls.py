"""Calls of an environment's own code, `def` or `async def`, within a time limit.

The outcome of a call is a value, so that a `SystemExit` ends neither a task nor the loop.
"""

import asyncio
import inspect
import logging
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Executor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self

from environments.rewards.verification_time import CLOCK, HookClock
from environments.rollout.containment.hook_threads import HookThreads, OwnThread
from environments.trajectory import JudgeCall
from tools.errors import ConfigError, RewardError, TimeLimitExceeded, UserCodeBroke
from tools.sandbox.base import Sandbox
from tools.time_profile import Profiler, TimeProfile, copy_profile, inherit_profile, measure, profiled
from tools.waiting import to_the_end

END: Final = object()
_CANCEL_S = 5.0
"""Wait for cancelled code; then it is abandoned."""
_KILL_S = 5.0
"""Extra time if a sandbox is ending a command with the same limit as its caller."""
_CLOSE_S = 30.0
"""Wait for a sandbox to close; then it closes while other rollouts continue."""
_POLL_S = 0.1

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class InFlight:
    item_id: str
    epoch: int = 0
    sibling: int
    started: float = field(default_factory=monotonic)
    doing: str = "starting"


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightNow:
    count: int = 0
    doing: Counter[str] = field(default_factory=Counter[str])
    oldest: str | None = None
    oldest_s: float = 0.0


Watch = Callable[[InFlight], AbstractContextManager[object]]
"""Entered while a rollout is in flight."""


@dataclass(frozen=True, slots=True)
class Ended:
    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        if self.error is None:
            return self.value
        if isinstance(self.error, StopIteration | StopAsyncIteration) or not isinstance(
            self.error, Exception
        ):
            raise UserCodeBroke from self.error
        raise self.error


def run_contained(function: Callable[[], Any]) -> Ended:
    process = os.getpid()
    try:
        return Ended(function())
    except BaseException as error:  # noqa: BLE001  # handed on
        return Ended(error=error)
    finally:
        _end_fork_of(process)


async def await_contained(awaitable: Awaitable[Any]) -> Ended:
    process = os.getpid()
    try:
        return Ended(await awaitable)
    except BaseException as error:  # noqa: BLE001  # handed on
        # Python's error for a `StopIteration` in a coroutine lacks the place where it was raised.
        return Ended(error=error.__cause__ if isinstance(error.__cause__, StopIteration) else error)
    finally:
        _end_fork_of(process)


def end_of(task: "asyncio.Task[Ended]") -> Ended:
    return Ended(error=asyncio.CancelledError()) if task.cancelled() else task.result()


def _end_fork_of(process: int) -> None:
    if os.getpid() != process:  # the child of a fork in the code
        os._exit(1)


@dataclass(slots=True, kw_only=True)
class UserCode:
    threads: Executor
    in_flight: InFlight
    is_given_up: bool = False
    """Whether the rollout is over but left code that swallows cancellations; the next cancellation ends
    it."""


IN_USER_CODE: ContextVar[UserCode | None] = ContextVar("turnwise_in_user_code", default=None)
"""Set in the context of hooks, tools and policies, which their tasks inherit."""


class CodeExit(Exception):
    """`SystemExit` or `KeyboardInterrupt` in a task that an environment's code created."""


class ContainedCoroutine(Coroutine[Any, Any, Any]):
    """A coroutine of an environment's code; its exit becomes an error.

    Asyncio lets `SystemExit` of any task leave the loop, and `asyncio.run` waits for tasks that swallow their
    cancellation; such a task can be given up.
    """

    def __init__(self, coro: Any, code: UserCode) -> None:
        self._coro, self.code = coro, code

    def send(self, value: Any) -> Any:
        return _convert_exit(self._coro.send, value)

    def throw(self, *error: Any) -> Any:
        if self.code.is_given_up and isinstance(error[0], asyncio.CancelledError):
            raise error[0]
        return _convert_exit(self._coro.throw, *error)

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Any:
        return self._coro.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coro, name)  # `cr_frame` and others, for code that inspects tasks


def _convert_exit(step: Callable[..., Any], *args: Any) -> Any:
    try:
        return step(*args)
    except (SystemExit, KeyboardInterrupt) as error:
        raise CodeExit(f"{type(error).__name__} in a task of its own") from error


def rollout_at(loop: asyncio.AbstractEventLoop) -> InFlight | None:
    """Return the rollout that runs in the event loop now, or None; callable from any thread."""
    task = asyncio.current_task(loop)
    coro = None if task is None else task.get_coro()
    return coro.code.in_flight if isinstance(coro, ContainedCoroutine) else None


def contain(loop: asyncio.AbstractEventLoop) -> None:
    make: Any = loop.get_task_factory() or asyncio.Task
    if not _is_ours(make, _make_task):
        loop.set_task_factory(partial(_make_task, make))
    if not _is_ours(loop.run_in_executor, _run_in_executor):
        # Blocked calls of an environment would fill the default pool.
        run = partial(_run_in_executor, loop.run_in_executor)
        loop.run_in_executor = run  # pyright: ignore[reportAttributeAccessIssue]


def _is_ours(function: Any, ours: Callable[..., Any]) -> bool:
    return getattr(function, "func", None) is ours


def _make_task(make: Callable[..., Any], loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
    code = IN_USER_CODE.get()
    if code is not None and inspect.iscoroutine(coro):
        coro = ContainedCoroutine(coro, code)
    return make(coro, loop=loop, **options) if make is asyncio.Task else make(loop, coro, **options)


def _run_in_executor(run: Callable[..., Any], executor: Any, *call: Any) -> Any:
    code = IN_USER_CODE.get()
    return run(code.threads if executor is None and code is not None else executor, *call)


class HookCalls:
    """The calls of one rollout, or of an environment's setup, one after the other or nested.

    `async def` runs in its own task, `def` on a thread. Code beyond its limit is cancelled, and abandoned if
    it continues.
    """

    def __init__(
        self,
        in_flight: InFlight,
        threads: HookThreads,
        *,
        hook_timeout_s: float,
        own_thread: bool = False,
        is_profiled: bool = False,
    ) -> None:
        self._in_flight = in_flight
        self._threads = threads
        self._hook_timeout_s = hook_timeout_s
        self._has_own_thread = own_thread
        self._own_thread: OwnThread | None = None
        self._running: list[str] = []
        self._profiler = Profiler() if is_profiled else None
        self._profiled = profiled(self._profiler)
        self._is_over = self._has_abandoned = False
        self.asked: dict[str, list[JudgeCall]] = {}
        self._code = UserCode(threads=threads, in_flight=in_flight)
        # One for all calls: rewards see the context variables that `prepare` sets.
        self._context = copy_context()
        self._context.run(IN_USER_CODE.set, self._code)

    def __enter__(self) -> Self:
        contain(asyncio.get_running_loop())
        self._profiled.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._code.is_given_up = self._has_abandoned
        self._profiled.__exit__(kind, error, trace)
        if self._own_thread is not None:
            self._own_thread.close()

    @property
    def profile(self) -> TimeProfile | None:
        return None if self._profiler is None else self._profiler.profile()

    @property
    def hook_name(self) -> str:
        return self._in_flight.doing.partition(":")[0]

    async def hook(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Return a hook's result.

        Raises:
            TimeLimitExceeded: if it took longer than `hook_timeout_s`.
            UserCodeBroke: if it raised something other than an `Exception`.
        """
        try:
            given = await self.run(
                partial(function, *args), doing=name, limit_s=self._hook_timeout_s, setting="hook_timeout_s"
            )
        except RewardError as error:
            if name not in str(error):  # from helpers of rewards, which know neither item nor hook
                error.args = (f"item {self._in_flight.item_id!r}: {name}: {error}",)
            raise
        return require_finished(given, name)

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
        """Return the result of a function of the environment.

        Args:
            function: returns a value or an awaitable.
            doing: text for people: a name in the profile, then a comma and details.
            limit_s: wall clock, without a `def`'s wait for a thread and without `ctx.verify`.
            setting: of the limit.
            busy: whether the sandbox is ending a command of the function, which is then awaited.
            is_parallel: whether other calls run concurrently, so that it needs its own context variables.

        Raises:
            TimeLimitExceeded, UserCodeBroke, Exception: if `hook` would raise it.
            ConfigError: if the rollout is over.
        """
        if self._is_over:
            raise ConfigError(f"{doing} is called after its rollout was over; use ctx while it goes on")
        limit = doing if limit_s is None else f"{doing} took longer than {limit_s:.3g} s"
        limit = f"{limit} (--env.{setting})" if setting else limit
        with self._doing(doing):
            if inspect.iscoroutinefunction(function):
                given, left_s = function(), limit_s
            else:
                thread = await self._pin_thread() if self._has_own_thread else self._threads
                try:
                    given, left_s = await self._on(thread, function, limit_s, limit)
                except TimeLimitExceeded:
                    # The thread hangs: only generators opened on it still wait for it.
                    self._has_own_thread = False
                    raise
            if inspect.isawaitable(given):
                context = self._own_context() if is_parallel else self._context
                given = await self._in_task(given, left_s, limit, busy=busy, context=context)
        return given

    async def beside(self, function: Callable[[], Any], *, doing: str) -> Any:
        if inspect.iscoroutinefunction(function):
            return require_finished(await self.run(function, doing=doing, is_parallel=True), doing)
        thread = await self._new_thread()
        try:
            with self._doing(doing):
                return require_finished((await self._on(thread, function, None, doing))[0], doing)
        finally:
            thread.close()

    @contextmanager
    def _doing(self, doing: str) -> Generator[None]:
        self._running.append(doing)
        self._in_flight.doing = doing
        try:
            if self._profiler is None:
                yield
            else:
                with measure(doing.rpartition(": ")[2].partition(", ")[0]):
                    yield
        finally:
            self._running.remove(doing)
            if self._running:
                self._in_flight.doing = self._running[-1]

    def _own_context(self) -> Context:
        context = self._context.copy()
        return context if self._profiler is None else copy_profile(context)

    async def _pin_thread(self) -> OwnThread:
        if self._own_thread is None:
            self._own_thread = await self._new_thread()
        return self._own_thread

    async def _new_thread(self) -> OwnThread:
        thread = self._threads.own_thread()
        while thread is None:
            await asyncio.sleep(_POLL_S)  # until a rollout that has one is over
            thread = self._threads.own_thread()
        return thread

    async def _on(
        self, thread: HookThreads | OwnThread, function: Callable[[], Any], limit_s: float | None, limit: str
    ) -> tuple[Any, float | None]:
        context = self._own_context()
        call = thread.submit(run_contained, partial(context.run, function))
        call.what = limit
        answer = asyncio.wrap_future(call)
        try:
            while not call.done() and (left_s := call.seconds_left(limit_s)) != 0.0:
                await asyncio.wait({answer}, timeout=left_s)
        finally:
            if not call.done():
                call.cancel()
                answer.cancel()
        if call.cancelled() or not call.done():
            raise TimeLimitExceeded(f"{limit}; its thread goes on", still_running=True)
        return call.result().result(), call.seconds_left(limit_s)

    async def _in_task(
        self,
        awaitable: Awaitable[Any],
        limit_s: float | None,
        limit: str,
        *,
        busy: Callable[[], bool] = bool,
        context: Context | None = None,
        cancel_s: float | None = None,
    ) -> Any:
        clock = HookClock()
        work = _run_on_clock(clock, awaitable)
        work = work if self._profiler is None else inherit_profile(work)
        task = self._new_task(work, context or copy_context())
        try:
            left_s = limit_s
            while not task.done() and (left_s is None or left_s > 0):
                # The clock stands still during a verification.
                is_short = left_s is not None and left_s < _POLL_S
                wait_s = _POLL_S if is_short and clock.is_stopped else left_s
                await asyncio.wait({task}, timeout=wait_s)
                left_s = None if limit_s is None or task.done() else limit_s - clock.spent_s()
            if not task.done() and busy():
                await asyncio.wait({task}, timeout=_KILL_S)
            in_time = task.done()
        finally:
            await self._stop(task, limit, _CANCEL_S if cancel_s is None else cancel_s)
        if in_time:
            return end_of(task).result()
        if task.done():
            raise TimeLimitExceeded(limit)
        raise TimeLimitExceeded(f"{limit}; it goes on although it was cancelled", still_running=True)

    def _new_task(self, coro: Any, context: Context) -> "asyncio.Task[Ended]":
        loop = asyncio.get_running_loop()
        return loop.create_task(ContainedCoroutine(coro, self._code), context=context)

    async def _stop(self, task: "asyncio.Task[Ended]", limit: str, cancel_s: float) -> None:
        if task.done():
            return
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=cancel_s)
        finally:
            if not task.done():
                self._has_abandoned = True
                self._threads.abandon(limit, lambda: not task.done())

    # Resources that belong to one task or thread.

    def step_generator(
        self, generator: Iterator[Any] | AsyncGenerator[Any, Any]
    ) -> Callable[[], Awaitable[Any]]:
        """Return a function for the next value of a generator that yields once, or `END`."""
        if isinstance(generator, AsyncGenerator):
            return _OwnedGenerator(generator, partial(self._new_task, context=self._context)).next

        async def following() -> Any:
            step = partial(next, generator, END)
            return (await self._on(await self._pin_thread(), step, None, "a generator"))[0]

        return following

    @asynccontextmanager
    async def sandbox(
        self, opener: Callable[[], AbstractAsyncContextManager[Sandbox]]
    ) -> AsyncGenerator[Sandbox]:
        """Open a sandbox; an error while it closes is logged and does not affect the scores."""

        async def opened() -> AsyncGenerator[Sandbox]:
            async with opener() as sandbox:
                yield sandbox

        # With our own context: files that backends open are not the environment's.
        owner = _OwnedGenerator(opened(), partial(self._new_task, context=copy_context()))
        limit_s = self._hook_timeout_s
        limit = f"opening a sandbox took longer than {limit_s:g} s (--env.hook_timeout_s)"
        with self._doing("opening a sandbox"):
            sandbox = await self._in_task(owner.next(), limit_s, limit, cancel_s=_CLOSE_S)
        try:
            yield sandbox
        finally:
            limit = f"closing a sandbox took longer than {_CLOSE_S:g} s"
            with measure("closing a sandbox"):
                try:
                    await to_the_end(self._in_task(owner.next(), _CLOSE_S, limit))
                except Exception as error:  # noqa: BLE001  # logged: what was scored stays
                    _LOG.warning("a sandbox did not close as it should", exc_info=error.__cause__ or error)


async def _run_on_clock(clock: HookClock, awaitable: Awaitable[Any]) -> Ended:
    token = CLOCK.set(clock)
    try:
        return await await_contained(awaitable)
    finally:
        with suppress(ValueError):  # an abandoned one may be collected in another context
            CLOCK.reset(token)


class _OwnedGenerator:
    """An async generator that runs in one task, since cancel scopes and task groups belong to a task.

    A cancellation at the `yield`, such as by a failing task group, is raised there.
    """

    def __init__(
        self, generator: AsyncGenerator[Any], new_task: Callable[[Any], "asyncio.Task[Ended]"]
    ) -> None:
        self._generator, self._new_task = generator, new_task
        self._yielded: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._goes_on = asyncio.Event()
        self._task: asyncio.Task[Ended] | None = None
        self._is_given_up = False

    async def next(self) -> Any:
        if self._is_given_up:
            return END
        awaited: set[asyncio.Future[Any]]
        if self._task is None:
            self._task = self._new_task(await_contained(self._run()))
            awaited = {self._task, self._yielded}
        else:
            self._goes_on.set()
            awaited = {self._task}
        try:
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._is_given_up = True
            self._task.cancel()
            await asyncio.wait({self._task})
            raise
        if not self._task.done():
            return self._yielded.result()
        ended = end_of(self._task)
        return END if isinstance(ended.error, StopAsyncIteration) else ended.result()

    async def _run(self) -> Any:
        state = await anext(self._generator, END)
        if state is END:
            return END
        task = asyncio.current_task()
        try:
            if task is not None and task.cancelling():
                await asyncio.sleep(0)  # let a cancellation by its own code arrive
            self._yielded.set_result(state)
            await self._goes_on.wait()
        except asyncio.CancelledError as error:
            return await self._generator.athrow(error)
        return await anext(self._generator, END)


def require_finished(given: Any, doing: str) -> Any:
    if inspect.isgenerator(given) or inspect.isasyncgen(given):
        raise ConfigError(f"{doing} is a generator; return what it gives, such as a list, with no `yield`")
    if inspect.iscoroutine(given):
        given.close()
        raise ConfigError(f"{doing} gave a call that nobody awaited, {given.__qualname__}; write `await`")
    return given
