"""Thousands of replies at once: a few go on in each iteration of the event loop, so that none holds it."""

import asyncio
from collections import deque


class Pace:
    """Callers in the order they came, so many in each iteration of one event loop."""

    def __init__(self, per_iteration: int) -> None:
        self._per_iteration = per_iteration
        self._left = per_iteration
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def step(self) -> None:
        """Go on now where few did in this iteration, and else in a later one."""
        if self._left == self._per_iteration:
            self._loop.call_soon(self._next_iteration)
        if self._left > 0:
            self._left -= 1
            return
        turn = self._loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next_iteration(self) -> None:
        self._left = self._per_iteration
        while self._waiting and self._left > 0:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled
                turn.set_result(None)
                self._left -= 1
        if self._left < self._per_iteration:
            self._loop.call_soon(self._next_iteration)
