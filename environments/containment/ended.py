"""How a call of code that is not ours ended, as a value: as one, `SystemExit` ends no task and no loop."""

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tools.errors import UserCodeBroke

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
