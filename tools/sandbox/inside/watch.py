"""Descriptors that something is waited for on, and what is done when it comes."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from tools.sandbox.inside.capture import Capture

_LONGEST_MS = 2**31 - 1
"""What the kernel takes; whoever waits for longer waits again."""


class Watch:
    """What the event loop of a sandbox waits for."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}

    def wait(self, timeout_ms: int) -> None:
        """Handle what comes, at the latest until the time is up; -1 waits for ever."""
        for fd, _ in self._poll.poll(min(timeout_ms, _LONGEST_MS)):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler()

    def on(self, fd: int, handler: Callable[[], None]) -> None:
        """Call the handler whenever there is something to read."""
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def when_writable(self, fd: int, handler: Callable[[], None]) -> None:
        """Call the handler whenever something can be written."""
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLOUT)

    def off(self, fd: int) -> None:
        """Wait no longer, if this descriptor was waited for at all."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def close(self, fd: int) -> None:
        """Wait no longer and close it, if it was waited for at all."""
        if fd in self._handlers:
            self.off(fd)
            os.close(fd)

    def collect(self, stream: Capture) -> None:
        """Read a stream for as long as anybody can write to it, then close it."""
        self.on(stream.fd, lambda: self._read(stream))

    def _read(self, stream: Capture) -> None:
        stream.read()
        if stream.closed:
            self.close(stream.fd)
