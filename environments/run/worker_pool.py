"""Many groups at once, in the order of their items, until they are done or a signal says stop."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from environments.run.stop_signals import StopSignals
from environments.run.stopped import StoppedError
from tools.waiting import to_the_end

HEAD_START_S = 2.0
"""Short beside any model's rollout; without a model a group is done in less."""
Key = TypeVar("Key")
Result = TypeVar("Result")


class LostWorkerError(StoppedError):
    """A worker was cancelled, or work is left, although nobody asked for an end."""


async def run_groups(
    keys: Iterable[Key],
    run_group: Callable[[Key], Awaitable[Result]],
    on_done: Callable[[Key, Result], Awaitable[None]],
    *,
    max_in_flight: int,
    begin: Callable[[Iterator[Key]], Awaitable[Iterable[Key]]] | None = None,
    ready: Callable[[], Awaitable[object]] | None = None,
) -> int:
    """Run a group for every key and hand each result over as it ends.

    Groups start in the order of the keys, at most `max_in_flight` of them at once; `keys` is read
    only as far as groups start, so it may be endless. The first SIGINT or SIGTERM starts no new group
    and cancels those in flight, while an `on_done` that has begun is waited for: what was finished is
    kept. The second signal ends the process at once.

    Args:
        keys: what to run.
        run_group: runs one.
        on_done: takes a result.
        max_in_flight: groups at once.
        begin: goes alone, takes the first keys, and gives back those to run before the others. The first of
            them has the machine to itself for `HEAD_START_S`, so that there is soon something to see.
        ready: waited for before a key is taken, where keys are only found as groups end.

    Returns:
        0, or 128 + the signal's number, as a shell reports it.

    Raises:
        LostWorkerError: not every key was run to its end, and no signal asked for that.
        Exception: the first that `run_group` or `on_done` raised; the other groups are cancelled.
    """

    async def work() -> None:
        left = iter(keys)
        begun = deque(() if begin is None else await begin(left))
        head_start = bool(begun)

        async def next_key() -> Key | None:
            if not begun and ready is not None:
                await ready()
            return begun.popleft() if begun else next(left, None)

        await _pool(next_key, run_group, on_done, max_in_flight, head_start=head_start)

    pool = asyncio.ensure_future(work())
    with StopSignals(pool.cancel) as signals:
        try:
            await pool
        except asyncio.CancelledError:
            if signals.received is None:
                raise
    return signals.exit_code


def groups_at_once(max_rollouts: int, group_size: int) -> int:
    """Groups in flight that keep `max_rollouts` rollouts busy."""
    # One more than fits, so that the slots of a straggling group are used by the next.
    return max_rollouts // group_size + 1


def refuse_stray_cancellation() -> None:
    """Raise LostWorkerError from a task that met a cancellation which nobody asked of it."""
    task = asyncio.current_task()
    if task is not None and task.cancelling() == 0:
        raise LostWorkerError("a group was cancelled by code that nobody asked to")


async def _pool(
    next_key: Callable[[], Awaitable[Key | None]],
    run_group: Callable[[Key], Awaitable[Result]],
    on_done: Callable[[Key, Result], Awaitable[None]],
    max_in_flight: int,
    *,
    head_start: bool = False,
) -> None:
    some_done = asyncio.Event()

    async def later_worker() -> None:
        if head_start:
            with suppress(TimeoutError):
                await asyncio.wait_for(some_done.wait(), HEAD_START_S)
        await worker()

    async def worker() -> None:
        while (key := await next_key()) is not None:
            try:
                result = await run_group(key)
                await to_the_end(on_done(key, result))
                some_done.set()
            except asyncio.CancelledError:
                refuse_stray_cancellation()
                raise

    try:
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(worker())]
            workers += [group.create_task(later_worker()) for _ in range(max_in_flight - 1)]
    except BaseExceptionGroup as errors:
        # One error is what people can act on: the others followed from it.
        raise errors.exceptions[0] from None
    # A task group takes a cancelled child for one that is done.
    if any(worker.cancelled() for worker in workers) or await next_key() is not None:
        raise LostWorkerError("work is left, and nobody works on it")
