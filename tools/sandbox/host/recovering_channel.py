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
from tools.sandbox.inside import frames

_LOG = logging.getLogger(__name__)
_KILLED = b"137"
_MESSAGE = b"every process of the sandbox was killed\n"


class RecoveringChannel:
    """A channel that outlives its supervisor; `supervise` kills what is left and starts the next one."""

    def __init__(self, channel: Channel, supervise: Callable[[], Awaitable[Channel]]) -> None:
        self._channel = channel
        self._supervise = supervise
        self._turn = asyncio.Lock()
        self._closed = False

    async def request(self, frame: bytes, timeout_s: float) -> tuple[bytes, list[bytes]]:
        """Send a request and wait for its answer; others wait for their turn.

        Raises:
            SandboxUnavailable: the sandbox is closed, its container is gone or does not answer.
        """
        async with self._turn:
            if self._channel.broken:
                await self._replace()
            started = time.monotonic()
            try:
                return await self._channel.request(frame, timeout_s)
            except SandboxUnavailable:
                await self._replace()
            kind = frame[frames.HEADER_BYTES : frames.HEADER_BYTES + 1]
            if kind in frames.FILE_KINDS:
                # These can be done again; a command cannot.
                return await self._channel.request(frame, timeout_s)
            return frames.DONE, _killed(time.monotonic() - started, timeout_s)

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


def _killed(spent_s: float, timeout_s: float) -> list[bytes]:
    flags = frames.RESTARTED + (frames.TIMED_OUT if spent_s >= timeout_s else b"")
    size, spent = b"%d" % len(_MESSAGE), b"%d" % int(spent_s * 1e6)
    return [_KILLED, b"0", size, flags, spent, b"", _MESSAGE]
