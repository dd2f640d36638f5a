"""Whether the model server can be used, and the wait until it can again."""

import asyncio
from collections.abc import Awaitable, Callable

from tools.errors import ConfigError

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 15.0


class ModelWatch:
    """Asks only when somebody has reason to: a server that answers is left alone."""

    def __init__(
        self, probe: Callable[[], Awaitable[None]], stop: asyncio.Event, say: Callable[[str], None]
    ) -> None:
        """Watch a server.

        Args:
            probe: raises ConfigError while the server cannot be used; buys no completion.
            stop: ends every wait.
            say: shows a line to the user.
        """
        self.up = True
        """What the last answer was."""
        self._probe = probe
        self._stop = stop
        self._say = say
        self._one_at_a_time = asyncio.Lock()

    async def answers(self) -> bool:
        """Ask the server now."""
        try:
            await self._probe()
        except ConfigError as error:
            if self.up:
                self._say(f"{error}; no item is started until it is back")
            self.up = False
        else:
            if not self.up:
                self._say("the model server is back")
            self.up = True
        return self.up

    async def back(self) -> bool:
        """Wait until the server answers; false when it is time to stop instead."""
        wait_s = _FIRST_WAIT_S
        async with self._one_at_a_time:
            while not await self.answers():
                try:
                    async with asyncio.timeout(wait_s):
                        await self._stop.wait()
                except TimeoutError:
                    wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                else:
                    return False
        return True
