"""Descriptors over a socket, without the `socket` module: its enums would be in every sandbox's memory."""

from __future__ import annotations

import _socket
import sys

_INT_BYTES = 4


def send(sock: _socket.socket, message: bytes, *fds: int) -> None:
    """Send a message and these descriptors with it."""
    numbers = b"".join(fd.to_bytes(_INT_BYTES, sys.byteorder) for fd in fds)
    sock.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])


def receive(sock: _socket.socket, most_bytes: int, most_fds: int) -> tuple[bytes, list[int]]:
    """The next message and the descriptors that came with it, which are the caller's."""
    message, rights, _, _ = sock.recvmsg(most_bytes, _socket.CMSG_SPACE(most_fds * _INT_BYTES))
    numbers = rights[0][2] if rights else b""
    return message, [
        int.from_bytes(numbers[at : at + _INT_BYTES], sys.byteorder)
        for at in range(0, len(numbers), _INT_BYTES)
    ]
