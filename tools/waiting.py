"""Waiting for work that a cancellation must not leave half done."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def to_the_end(work: Awaitable[T]) -> T:
    """The result of the work, which goes on however often the caller is cancelled meanwhile.

    A cancellation goes on once the work is done; an error of the work goes before it.
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
    """What is made; when the caller is cancelled, it is still waited for and then undone."""
    task = asyncio.ensure_future(making)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # A thread goes on: what it makes has to be taken away again.
        await to_the_end(_undone(task, undo))
        raise


async def _undone(task: "asyncio.Future[T]", undo: Callable[[T], Awaitable[None]]) -> None:
    await asyncio.wait({task})
    if not task.cancelled() and task.exception() is None:
        await undo(task.result())


async def side_by_side(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results, in order; the first error of one ends the others, and is raised once they have ended."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as broken:
        first = broken.exceptions[0]
    else:
        return [task.result() for task in tasks]
    raise first  # out here, so that nothing is written over what caused it
