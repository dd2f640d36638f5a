"""Output of one stream: the head and the tail are kept, the rest is counted and dropped."""

from __future__ import annotations

import fcntl
import os
import sys

CHUNK_BYTES = 1 << 18
_FIONREAD = 0x541B
"""How much can be read: the number of x86 and ARM."""


class Capture:
    """Reads one descriptor without blocking; `total` is exact, `kept()` is at most `cap` bytes."""

    def __init__(self, fd: int, cap: int) -> None:
        self.fd = fd
        self.total = 0
        self.closed = False
        self._cap = cap
        self._head = bytearray()
        self._tail = bytearray()

    def read(self) -> int:
        """Take what is there, at most one chunk; 0 when nothing is, or at the end of the stream."""
        if self.closed:
            return 0
        try:
            data = os.read(self.fd, CHUNK_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self.closed = True
        self._keep(data)
        return len(data)

    def drain(self) -> None:
        """Take everything written so far, but not what a writer that lives on keeps adding."""
        if self.closed:
            return
        there = bytearray(4)
        fcntl.ioctl(self.fd, _FIONREAD, there)
        # The last read is for the end of the stream.
        left = int.from_bytes(there, sys.byteorder) + 1
        while left > 0:
            count = self.read()
            if not count:
                return
            left -= count

    def kept(self) -> bytes:
        """Head and tail, joined where the middle was cut."""
        tail_cap = self._cap - self._cap // 2
        return bytes(self._head) + bytes(self._tail[-tail_cap:] if tail_cap else b"")

    def _keep(self, data: bytes) -> None:
        self.total += len(data)
        room = self._cap // 2 - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        tail_cap = self._cap - self._cap // 2
        self._tail += data
        if len(self._tail) > 2 * tail_cap + CHUNK_BYTES:
            del self._tail[: len(self._tail) - tail_cap]
