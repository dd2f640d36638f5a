"""What an environment's code can do wrong: each kind by name, to run in a hook, a tool or a policy."""

import asyncio
import contextlib
import functools
import sys
import time

from tools.errors import ConfigError, SandboxUnavailable


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
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "StopIteration": StopIteration,
    "BaseException": lambda: BaseException("base"),
    "a group with an exit": lambda: BaseExceptionGroup("many", [SystemExit(0), KeyboardInterrupt()]),
    "MemoryError": MemoryError,
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


async def exit_in_a_task(*_):
    async def child():
        sys.exit(0)

    await asyncio.create_task(child())


async def exit_in_gather(*_):
    async def child():
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    await asyncio.gather(child(), asyncio.sleep(1))


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


def recurse(*_):
    recurse()


def give_a_generator(*_):
    yield 1.0


async def give_an_async_generator(*_):
    yield 1.0


KINDS = {
    **{f"async raises {name}": raising(error)[0] for name, error in RAISED.items()},
    **{f"def raises {name}": raising(error)[1] for name, error in RAISED.items()},
    "cancels its own task": cancel_own_task,
    "cancels its own task and returns": cancel_own_task_and_return,
    "exits in a task": exit_in_a_task,
    "exits in gather": exit_in_gather,
    "recurses for ever": recurse,
    "gives a generator": give_a_generator,
    "gives an async generator": give_an_async_generator,
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
}
"""What would never end."""
