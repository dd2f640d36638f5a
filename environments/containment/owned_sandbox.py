"""A rollout's sandbox, opened, held and closed by one task: nothing that breaks elsewhere leaves it open."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from environments.containment.abandoned import Abandoned
from environments.containment.ended import Ended, Raised, ended_await, value_of
from environments.time_profile import timed
from tools.errors import TimeLimitExceeded
from tools.sandbox.base import Sandbox
from tools.waiting import to_the_end

_LOG = logging.getLogger(__name__)
_CLOSE_S = 30.0
"""For a sandbox to close; one that takes longer is closed while other rollouts go on."""


@asynccontextmanager
async def owned_sandbox(
    opener: Callable[[], AbstractAsyncContextManager[Sandbox]], abandoned: Abandoned, *, limit_s: float
) -> AsyncGenerator[Sandbox]:
    """A sandbox; one that does not close as it should is told in the log, and costs nothing that was scored.

    Raises:
        TimeLimitExceeded: it could not be opened in time.
        UserCodeBroke, Exception: what opening it raised.
    """
    opened: asyncio.Future[Sandbox] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()
    owner = asyncio.create_task(ended_await(_own(opener, opened, done)))
    try:
        with timed("opening a sandbox"):
            await asyncio.wait({owner, opened}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            if owner.done():
                value_of(_end_of(owner))
            raise TimeLimitExceeded(
                f"opening a sandbox took longer than {limit_s:g} s (--env.hook_timeout_s)"
            )
        yield opened.result()
    finally:
        done.set()
        if not opened.done():
            owner.cancel()
        with timed("closing a sandbox"):
            await to_the_end(asyncio.wait({owner}, timeout=_CLOSE_S))
        if not owner.done():
            _LOG.warning("a sandbox takes longer than %g s to close", _CLOSE_S)
            abandoned.add_task("the closing of a sandbox", owner)
        elif opened.done() and isinstance(ended := _end_of(owner), Raised):
            _LOG.warning("a sandbox did not close as it should", exc_info=ended.error)


async def _own(
    opener: Callable[[], AbstractAsyncContextManager[Sandbox]],
    opened: "asyncio.Future[Sandbox]",
    done: asyncio.Event,
) -> None:
    async with opener() as sandbox:
        opened.set_result(sandbox)
        await done.wait()


def _end_of(owner: "asyncio.Task[Ended[None]]") -> Ended[None]:
    return Raised(asyncio.CancelledError()) if owner.cancelled() else owner.result()
