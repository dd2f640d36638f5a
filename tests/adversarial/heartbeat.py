"""How long the event loop was held: CPU time of its thread between two ticks."""

import asyncio
import time
from contextlib import asynccontextmanager


class Heartbeat:
    def __init__(self):
        self.longest_s = 0.0

    async def beat(self):
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest_s = max(self.longest_s, now - last)
            last = now


@asynccontextmanager
async def heartbeat():
    heart = Heartbeat()
    beating = asyncio.create_task(heart.beat())
    await asyncio.sleep(0)
    yield heart
    await asyncio.sleep(0)
    beating.cancel()
