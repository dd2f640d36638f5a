"""Many groups at once, in the order of their items, until they are done or a signal says stop."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

from environments.run.stop_signals import StopSignals
from tools.waiting import to_the_end

Key = TypeVar("Key")
Result = TypeVar("Result")


async def run_groups(
    keys: Iterable[Key],
    run_group: Callable[[Key], Awaitable[Result]],
    on_done: Callable[[Key, Result], Awaitable[None]],
    *,
    max_in_flight: int,
) -> int:
    """Run a group for every key and hand each result over as it ends.

    Groups start in the order of the keys, at most `max_in_flight` of them at once; `keys` is read
    only as far as groups start, so it may be endless. The first SIGINT or SIGTERM starts no new group
    and cancels those in flight, while an `on_done` that has begun is waited for: what was finished is
    kept. The second signal ends the process at once.

    Returns:
        0, or 128 + the signal's number, as a shell reports it.

    Raises:
        Exception: the first that `run_group` or `on_done` raised; the other groups are cancelled.
    """
    pool = asyncio.ensure_future(_pool(iter(keys), run_group, on_done, max_in_flight))
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


async def _pool(
    keys: Iterator[Key],
    run_group: Callable[[Key], Awaitable[Result]],
    on_done: Callable[[Key, Result], Awaitable[None]],
    max_in_flight: int,
) -> None:
    async def worker() -> None:
        for key in keys:
            result = await run_group(key)
            await to_the_end(on_done(key, result))

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(max_in_flight):
                workers.create_task(worker())
    except BaseExceptionGroup as group:
        # One error is what people can act on: the others followed from it.
        raise group.exceptions[0] from None
