"""The host's end of a sandbox: one request at a time, and a clear error once the other end is gone."""

import asyncio
import socket

from tools.errors import SandboxUnavailable
from tools.sandbox.inside import frames

_GRACE_S = 15.0
"""What the supervisor may take beyond a command's own time before it counts as dead."""


class Channel:
    """Requests to one supervisor."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._turn = asyncio.Lock()
        self._broken: str | None = None

    @classmethod
    async def over(cls, sock: socket.socket) -> "Channel":
        """A channel that owns this connected socket from now on."""
        sock.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 22)
        return cls(reader, writer)

    async def request(self, frame: bytes, timeout_s: float) -> tuple[bytes, list[bytes]]:
        """Send a request and wait for its answer; others wait for their turn.

        When the caller is cancelled the command is killed before the cancellation goes on.

        Raises:
            SandboxUnavailable: the sandbox is closed, died or does not answer.
        """
        async with self._turn:
            self._check()
            self._writer.write(frame)
            answer = asyncio.ensure_future(self._answer())
            try:
                await asyncio.wait({answer}, timeout=timeout_s + _GRACE_S)
            except asyncio.CancelledError:
                self._writer.write(frames.pack(frames.CANCEL))
                await self._settle(answer)
                raise
            if not answer.done():
                await self._settle(answer, wait_s=0)
                raise SandboxUnavailable("the sandbox does not answer")
            return answer.result()

    @property
    def broken(self) -> bool:
        """Whether the next request would fail without being sent."""
        return self._broken is not None or self._reader.at_eof()

    def close(self, reason: str) -> None:
        """Fail the running request and every later one."""
        self._broken = self._broken or reason
        self._writer.transport.abort()

    def _check(self) -> None:
        if self._broken is None and self._reader.at_eof():
            self._broken = "the sandbox died"
        if self._broken is not None:
            raise SandboxUnavailable(self._broken)

    async def _answer(self) -> tuple[bytes, list[bytes]]:
        try:
            await self._writer.drain()
            header = await self._reader.readexactly(frames.HEADER_BYTES)
            body = await self._reader.readexactly(int.from_bytes(header, "big"))
        except (asyncio.IncompleteReadError, OSError) as error:
            self._broken = self._broken or "the sandbox died"
            raise SandboxUnavailable(self._broken) from error
        return frames.unpack(body)

    async def _settle(
        self, answer: "asyncio.Future[tuple[bytes, list[bytes]]]", wait_s: float = _GRACE_S
    ) -> None:
        try:
            await asyncio.wait({answer}, timeout=wait_s)
        finally:
            if not answer.done():
                # Its answer would be taken for that of the next request.
                answer.cancel()
                self.close("the sandbox does not answer")
            elif not answer.cancelled():
                answer.exception()
