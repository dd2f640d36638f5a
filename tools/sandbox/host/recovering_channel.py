"""Requests to a supervisor that is replaced when the agent ended it.

Agent and supervisor are one user, so the agent can kill or stop what it runs under. That is its own doing:
the command gets a result, as for any other kill, and it never costs the rollout: an agent must not be able to
take a bad one out of its group. A lost or frozen container does cost it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from tools.errors import SandboxUnavailable
from tools.sandbox.host.channel import Channel
from tools.sandbox.inside.messages import FILE_REQUESTS, Done, Reply, Request

_LOG = logging.getLogger(__name__)
_KILLED = 137
_MESSAGE = b"every process of the sandbox was killed\n"


class RecoveringChannel:
    """A channel that outlives its supervisor; `supervise` kills what is left and starts the next one."""

    def __init__(self, channel: Channel, supervise: Callable[[], Awaitable[Channel]]) -> None:
        self._channel = channel
        self._supervise = supervise
        self._turn = asyncio.Lock()
        self._closed = False

    async def request(self, request: Request) -> Reply:
        """Send a request and wait for its answer; others wait for their turn.

        Raises:
            SandboxUnavailable: the sandbox is closed, its container is gone or does not answer.
        """
        async with self._turn:
            if self._channel.broken:
                await self._replace()
            started = time.monotonic()
            try:
                return await self._channel.request(request)
            except SandboxUnavailable:
                await self._replace()
            if isinstance(request, FILE_REQUESTS):
                # These can be done again; a command cannot.
                return await self._channel.request(request)
            return _killed(time.monotonic() - started, request.timeout_s)

    def close(self, reason: str) -> None:
        """Fail the running request and every later one."""
        self._closed = True
        self._channel.close(reason)

    async def _replace(self) -> None:
        if self._closed:
            raise SandboxUnavailable("the sandbox is closed")
        if self._channel.reason:
            _LOG.warning("a supervisor broke and is replaced: %s", self._channel.reason)
        self._channel.close("the supervisor is replaced")
        self._channel = await self._supervise()
        if self._closed:
            self.close("the sandbox is closed")


def _killed(spent_s: float, timeout_s: float) -> Done:
    return Done(
        exit_code=_KILLED,
        stdout=b"",
        stderr=_MESSAGE,
        stdout_total=0,
        stderr_total=len(_MESSAGE),
        timed_out=spent_s >= timeout_s,
        oom_killed=False,
        shell_restarted=True,
        duration_s=spent_s,
    )
