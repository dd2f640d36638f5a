"""What an environment's code can do wrong: each kind by name, to run in a hook, a tool or a policy."""

import asyncio
import contextlib
import functools
import sys
import threading
import time

from tools.errors import ConfigError, SandboxUnavailable

SHARED = {}
"""One thing that all rollouts wait for, as a client of a judge may have it."""


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class ExitsWhenPrinted(Exception):
    def __str__(self):
        sys.exit(0)


class Liar(type):
    @property
    def __name__(cls):
        raise SystemExit(0)


class NamedByALiar(Exception, metaclass=Liar):
    pass


def raising(error):
    """A pair of functions, `async def` and `def`, that raise what `error` makes."""

    async def hook(*_):
        raise error()

    def plain(*_):
        raise error()

    return hook, plain


RAISED = {
    "an error": lambda: ZeroDivisionError("mine"),
    "SystemExit": lambda: SystemExit(0),
    "SystemExit with text": lambda: SystemExit("bye"),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "BaseException": lambda: BaseException("base"),
    "a group with an exit": lambda: BaseExceptionGroup("many", [SystemExit(0), KeyboardInterrupt()]),
    "a group of errors": lambda: ExceptionGroup("many", [ValueError(), ConfigError("deep")]),
    "TimeoutError": TimeoutError,
    "MemoryError": MemoryError,
    "no text": Unprintable,
    "text that exits": ExitsWhenPrinted,
    "a class without a name": NamedByALiar,
    "a usage error of ours": lambda: ConfigError("for one item"),
    "a sandbox error of ours": lambda: SandboxUnavailable("not really"),
    "a long text": lambda: ValueError("x" * 50_000_000),
    "no UTF-8": lambda: OSError("no file \udcff"),
}


async def cancel_own_task(*_):
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


async def cancel_own_task_and_return(*_):
    asyncio.current_task().cancel()
    return 1.0


async def await_a_shared_task_that_was_cancelled(*_):
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task


async def leave_a_timeout_open(*_):
    asyncio.get_running_loop().call_later(0.01, asyncio.current_task().cancel)
    await asyncio.Event().wait()


async def exit_in_a_task(*_):
    async def child():
        sys.exit(0)

    await asyncio.create_task(child())


async def exit_in_gather(*_):
    async def child():
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    await asyncio.gather(child(), asyncio.sleep(1))


async def exit_in_a_task_group(*_):
    async def child():
        await asyncio.sleep(0)
        sys.exit(0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(child())


async def exit_in_wait_for(*_):
    async def child():
        await asyncio.sleep(0)
        sys.exit(0)

    await asyncio.wait_for(child(), 5)


async def exit_in_an_async_generator(*_):
    async def values():
        yield 1.0
        sys.exit(0)

    async for _ in values():
        pass


async def hang(*_):
    await asyncio.Event().wait()


async def hang_and_swallow_cancellation(*_):
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


async def hang_in_its_clean_up(*_):
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.Event().wait()


async def spin_at_awaits(*_):
    while True:  # noqa: ASYNC110  # what it does wrong
        await asyncio.sleep(0)


async def never_ending_task_of_its_own(*_):
    await asyncio.shield(asyncio.ensure_future(asyncio.Event().wait()))


def block_on_a_thread(*_):
    time.sleep(30)


def wait_for_a_lock(*_):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def recurse(*_):
    recurse()


async def recurse_async(*_):
    await recurse_async()


def give_a_generator(*_):
    yield 1.0


async def give_an_async_generator(*_):
    yield 1.0


def give_an_awaitable_that_exits(*_):
    async def later():
        sys.exit(0)

    return later()


class ExitingCall:
    async def __call__(self, *_):
        sys.exit(0)


KINDS = {
    **{f"async raises {name}": raising(error)[0] for name, error in RAISED.items()},
    **{f"def raises {name}": raising(error)[1] for name, error in RAISED.items()},
    "cancels its own task": cancel_own_task,
    "cancels its own task and returns": cancel_own_task_and_return,
    "awaits a cancelled task": await_a_shared_task_that_was_cancelled,
    "is cancelled by a timer": leave_a_timeout_open,
    "exits in a task": exit_in_a_task,
    "exits in gather": exit_in_gather,
    "exits in a task group": exit_in_a_task_group,
    "exits in wait_for": exit_in_wait_for,
    "exits in an async generator": exit_in_an_async_generator,
    "recurses for ever": recurse,
    "recurses for ever, async": recurse_async,
    "gives a generator": give_a_generator,
    "gives an async generator": give_an_async_generator,
    "gives an awaitable that exits": give_an_awaitable_that_exits,
    "is an object whose call exits": ExitingCall(),
    "is a partial that exits": functools.partial(sys.exit, 0),
}
"""What breaks at once."""


def breaks(kind, spot):
    """Whether the kind is wrong in that place, as nearly all are in all."""
    if "yield" in spot:
        # There it is a value that nobody asks what it is.
        return not kind.startswith("gives")
    return not (spot == "prepare" and kind in {"gives a generator", "gives an async generator"})


async def block_a_thread_of_asyncio(*_):
    await asyncio.to_thread(time.sleep, 300)


HANGS = {
    "blocks a thread of asyncio's": block_a_thread_of_asyncio,
    "hangs": hang,
    "hangs and swallows cancellation": hang_and_swallow_cancellation,
    "hangs in its clean-up": hang_in_its_clean_up,
    "spins at awaits": spin_at_awaits,
    "waits for a task that is shielded": never_ending_task_of_its_own,
    "blocks in def": block_on_a_thread,
    "waits for a lock in def": wait_for_a_lock,
}
"""What would never end."""
