"""How many rollouts go on at once, in whichever event loop they run."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Slots:
    """A bound that outlives an event loop: a notebook or a training loop may start one for every step."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._loop: asyncio.AbstractEventLoop | None = None
        self._semaphore = asyncio.Semaphore(count)

    @asynccontextmanager
    async def one(self) -> AsyncGenerator[None]:
        """Wait for a slot, and hold it."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._semaphore = loop, asyncio.Semaphore(self._count)
        async with self._semaphore:
            yield
