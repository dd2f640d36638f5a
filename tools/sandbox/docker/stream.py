"""The connection to a program in a container: the engine's framing taken off, with bounded memory."""

import socket
import struct

from tools.sandbox.host.channel import Channel
from tools.sandbox.inside.messages import Inbox, Message

_STDOUT = 1
_HEADER = struct.Struct(">BxxxL")
_LAST_WORDS_BYTES = 4096


class Splitter:
    """Takes the engine's frames apart as they come; keeps no more than a part of one header."""

    __slots__ = ("_header", "_left", "_stream")

    def __init__(self) -> None:
        self._header = bytearray()
        self._left = 0
        self._stream = 0

    def feed(self, data: bytes) -> list[tuple[int, memoryview]]:
        """The pieces of streams in these bytes, each with the number of its stream."""
        pieces: list[tuple[int, memoryview]] = []
        view = memoryview(data)
        while view:
            if self._left:
                piece, view = view[: self._left], view[self._left :]
                self._left -= len(piece)
                pieces.append((self._stream, piece))
                continue
            missing = _HEADER.size - len(self._header)
            self._header += view[:missing]
            view = view[missing:]
            if len(self._header) == _HEADER.size:
                self._stream, self._left = _HEADER.unpack(self._header)
                self._header.clear()
        return pieces


class Connection:
    """Both directions of a program's streams: blocking at first, then handed to an event loop."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._splitter = Splitter()
        self._inbox = Inbox()
        self._stderr = bytearray()

    @property
    def last_words(self) -> str:
        """The end of what the program wrote to stderr."""
        return self._stderr.decode("utf-8", "replace").strip()

    def send(self, data: bytes, timeout_s: float) -> None:
        """Write to the program's stdin; blocks."""
        self._sock.settimeout(timeout_s)
        self._sock.sendall(data)

    def receive(self, timeout_s: float) -> Message:
        """The next of our messages on the program's stdout; blocks.

        Raises:
            EOFError: the program ended.
            OSError: it was silent for too long, or the engine is gone.
        """
        self._sock.settimeout(timeout_s)
        while (message := self._inbox.next()) is None:
            data = self._sock.recv(1 << 16)
            if not data:
                raise EOFError
            self._inbox.add(self.take(data))
        return message

    def take(self, data: bytes) -> bytes:
        """The part of received bytes that is stdout; stderr is kept as last words."""
        out: list[memoryview] = []
        for stream, piece in self._splitter.feed(data):
            if stream == _STDOUT:
                out.append(piece)
            else:
                self._stderr += piece
                del self._stderr[:-_LAST_WORDS_BYTES]
        return b"".join(out)

    async def attach(self) -> Channel:
        """Hand the connection to this event loop; nothing of it may be unread."""
        return await Channel.over(self._sock, self.take)

    def close(self) -> None:
        """Close the connection; the program sees the end of its stdin."""
        self._sock.close()
