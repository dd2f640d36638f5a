"""Python's garbage collector during a run: a full pass visits all that is in flight while the loop waits."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

_EVERY_S = 60.0
_NEVER = 1 << 30


@asynccontextmanager
async def rare_full_collections() -> AsyncGenerator[None]:
    """Full passes once a minute, and not whenever a quarter more objects are alive.

    With 4,000 rollouts in flight one takes 0.4 s, and together they took 40 % of the CPU. What dies young is
    collected as ever. Where the collector is off, it stays off.
    """
    young, middle, old = gc.get_threshold()
    if not gc.isenabled() or old == _NEVER:  # another open environment sees to it
        yield
        return
    gc.set_threshold(young, middle, _NEVER)
    passes = asyncio.create_task(_now_and_then())
    try:
        yield
    finally:
        passes.cancel()
        gc.set_threshold(young, middle, old)


async def _now_and_then() -> None:
    while True:
        await asyncio.sleep(_EVERY_S)
        gc.collect()
