"""Short commands in a sandbox's shell without anybody between: see `inside.line` for the other end.

A command goes into a file that the supervisor has made, the shell is told to run it, and tells us the status
itself: two processes less to wake than by way of the supervisor. After a moment the supervisor takes the
command over, with everything that needs somebody inside: its time limit, its output, its end. So a time limit
holds from the moment on that our event loop has come to that.
"""

import asyncio
import os
import resource
import socket
import time
from dataclasses import dataclass

from tools.sandbox.channel import Answer, Channel
from tools.sandbox.inside import frames, rights, status
from tools.sandbox.inside.capture import Capture, result
from tools.sandbox.inside.memory import kills

_MOMENT_S = 0.005
"""Longer commands do not feel who runs them."""
_COMMAND_BYTES = 1 << 16
_MESSAGE_BYTES = 1 << 12
_MOST_FDS = 6


@dataclass(slots=True, kw_only=True)
class _Shell:
    """Our ends of a running shell."""

    input_fd: int
    status_fd: int
    oom_fd: int | None

    def close(self) -> None:
        for fd in (self.input_fd, self.status_fd, *([] if self.oom_fd is None else [self.oom_fd])):
            os.close(fd)


@dataclass(slots=True, kw_only=True)
class _Offer:
    """What the next command needs."""

    requests: int
    nonce: bytes
    trigger: bytes
    out_fd: int
    err_fd: int
    command_fd: int

    def close(self) -> None:
        for fd in (self.out_fd, self.err_fd, self.command_fd):
            os.close(fd)


@dataclass(slots=True, kw_only=True)
class _Begun:
    """A command that runs."""

    offer: _Offer
    shell: _Shell
    at: float
    """Of the clock that also counts the ages of processes."""
    started: float
    timeout_s: float
    oom: int
    told: "asyncio.Future[int | None]"
    """Its exit code, or nothing when it has to be taken over."""
    seen: bytes = b""
    """What was read of its status."""

    def read_status(self) -> None:
        """Take the exit code, if that is what came."""
        if self.told.done():
            return
        try:
            self.seen = os.read(self.shell.status_fd, status.MOST_BYTES)
        except BlockingIOError:
            return
        self.settle(status.find(self.seen, self.offer.nonce))

    def settle(self, code: int | None) -> None:
        """End the wait for an exit code."""
        if not self.told.done():
            self.told.set_result(code)


class Line:
    """Our end of what a supervisor offers."""

    def __init__(self, sock: socket.socket) -> None:
        """Take offers from this socket, which is ours from now on."""
        sock.setblocking(False)
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._requests = 0
        self._offer: _Offer | None = None
        self._shell: _Shell | None = None
        self._begun: _Begun | None = None
        self._loop.add_reader(sock.fileno(), self._receive)

    def close(self) -> None:
        """Give everything back; a command that runs has to be taken over."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        self.finish()
        self._forget(shell_too=True)

    @property
    def lent(self) -> bool:
        """Whether there is an offer for the next request."""
        return self._offer is not None and self._offer.requests == self._requests

    def asked(self) -> None:
        """A request goes to the supervisor: what it has offered is no longer good."""
        self._requests += 1

    def begin(self, command: bytes, timeout_s: float) -> _Begun | None:
        """Start a command in the shell; `None` when it has to go another way, and nothing has started."""
        offer, shell = self._offer, self._shell
        if offer is None or shell is None or not self.lent:
            return None
        if len(command) > _COMMAND_BYTES or timeout_s <= _MOMENT_S:
            return None
        begun = _Begun(
            offer=offer,
            shell=shell,
            at=time.clock_gettime(time.CLOCK_BOOTTIME),
            started=time.monotonic(),
            timeout_s=timeout_s,
            oom=_kills(shell),
            told=self._loop.create_future(),
        )
        try:
            if os.write(offer.command_fd, command + b"\n") <= len(command):
                return None
            os.write(shell.input_fd, offer.trigger)
        except OSError:
            return None  # no room, or the shell is gone: the supervisor will tell
        self._begun = begun
        return begun

    async def result(self, begun: _Begun, cap: int) -> Answer | None:
        """What came of a command; `None` when it is not over after a moment, or has to be looked into."""
        self._loop.add_reader(begun.shell.status_fd, begun.read_status)
        moment = self._loop.call_later(_MOMENT_S, begun.settle, None)
        try:
            code = await begun.told
        finally:
            moment.cancel()
        spent = time.monotonic() - begun.started
        # A status that came too late is none, and without descriptors of its own nothing can be read.
        if code is None or spent >= begun.timeout_s or self._begun is not begun:
            return None
        out, err = Capture(begun.offer.out_fd, cap), Capture(begun.offer.err_fd, cap)
        out.drain()
        err.drain()
        flags = frames.OOM_KILLED if _kills(begun.shell) > begun.oom else b""
        return frames.DONE, result(code, flags, spent, out, err)

    def finish(self) -> None:
        """Have nothing to do any more with the command that was begun, before somebody else has."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.settle(None)
            self._loop.remove_reader(begun.shell.status_fd)
            self._forget(shell_too=False)

    def _receive(self) -> None:
        try:
            message, fds, whole = rights.receive(self._socket, _MESSAGE_BYTES, _MOST_FDS)
        except BlockingIOError:
            return
        except OSError:
            message, fds, whole = b"", [], False
        if message and whole and not _too_many(fds) and (self._offer is not None or len(fds) > 1):
            self._take(frames.unpack(message[frames.HEADER_BYTES :])[1], fds)
            return
        # The supervisor is gone, or descriptors are scarce: all goes the other way from now on.
        for fd in fds:
            os.close(fd)
        self.close()

    def _take(self, fields: list[bytes], fds: list[int]) -> None:
        requests, nonce, trigger = fields
        command, *others = fds
        if self._offer is not None and not others:
            # The one that we have, once more.
            os.close(self._offer.command_fd)
            self._offer.command_fd, self._offer.requests = command, int(requests)
            return
        out, err, *shell = others
        self._forget(shell_too=bool(shell))
        if shell:
            oom = shell[2] if len(shell) > 2 else None
            self._shell = _Shell(input_fd=shell[0], status_fd=shell[1], oom_fd=oom)
        self._offer = _Offer(
            requests=int(requests), nonce=nonce, trigger=trigger, out_fd=out, err_fd=err, command_fd=command
        )

    def _forget(self, *, shell_too: bool) -> None:
        if self._offer is not None:
            self._offer.close()
            self._offer = None
        if shell_too and self._shell is not None:
            self._shell.close()
            self._shell = None


class LineChannel(Channel):
    """A channel that runs short commands of the shell past the supervisor."""

    line: Line | None = None
    _owed: bytes | None = None
    """What the supervisor has to hear before any other request."""

    async def _ask(self, frame: bytes, timeout_s: float) -> Answer:
        self._tell()
        line, begun = self.line, None
        if line is None:
            return await super()._ask(frame, timeout_s)
        limit = cap = b""
        if frame[frames.HEADER_BYTES : frames.HEADER_BYTES + 1] == frames.SHELL:
            _, (limit, cap, command) = frames.unpack(frame[frames.HEADER_BYTES :])
            begun = line.begin(command, timeout_s)
        # One more that the supervisor hears of, sooner or later.
        line.asked()
        if begun is None:
            return await super()._ask(frame, timeout_s)
        try:
            answer = await line.result(begun, int(cap))
        except BaseException:
            # Whatever it was, the command dies, and the next one finds everything in its place.
            line.finish()
            if not self.broken:
                self._write(_take_over(begun, limit, cap))
                await self._call_off()
            raise
        if answer is None:
            line.finish()
            return await super()._ask(_take_over(begun, limit, cap), timeout_s)
        self._owed = frames.pack(frames.NEXT, answer[1][0])
        # When the caller has its answer: to wake the supervisor here would make it wait.
        self._loop.call_soon(self._tell)
        return answer

    def _tell(self) -> None:
        owed, self._owed = self._owed, None
        if owed is not None and self.line is not None:
            self.line.finish()
            self._write(owed)

    def close(self, reason: str) -> None:
        """Fail the running request and every later one."""
        super().close(reason)
        if self.line is not None:
            self.line.close()


def _take_over(begun: _Begun, limit: bytes, cap: bytes) -> bytes:
    return frames.pack(frames.TAKE, limit, cap, b"%d" % int(begun.at * 1e6), b"%d" % begun.oom, begun.seen)


def _kills(shell: _Shell) -> int:
    return 0 if shell.oom_fd is None else kills(shell.oom_fd)


def _too_many(fds: list[int]) -> bool:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft > 0 and max(fds, default=0) > soft // 2
