"""Waits that survive cancellation, for work that must not be left half done."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def to_the_end(work: Awaitable[T]) -> T:
    """Wait for the work despite cancellations.

    Re-raise CancelledError after the work completes; an exception from the work takes precedence.
    """
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    result = task.result()
    if cancelled:
        raise asyncio.CancelledError
    return result


async def or_undo(making: Awaitable[T], undo: Callable[[T], Awaitable[None]]) -> T:
    """Return the result of `making`; on cancellation wait for it and undo it."""
    task = asyncio.ensure_future(making)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # A thread cannot be cancelled, so its result must be undone.
        await to_the_end(undo_result(task, undo))
        raise


async def undo_result(task: "asyncio.Future[T]", undo: Callable[[T], Awaitable[None]]) -> None:
    await asyncio.wait({task})
    if not task.cancelled() and task.exception() is None:
        await undo(task.result())


async def side_by_side(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results in order. The first error cancels the others and is raised after they end."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as broken:
        first = broken.exceptions[0]
    else:
        return [task.result() for task in tasks]
    raise first  # outside of `except`, to keep the error's own context
