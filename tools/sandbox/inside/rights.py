"""Descriptors over a socket, without the `socket` module: its enums would be in every sandbox's memory."""

from __future__ import annotations

import _socket
import sys

_INT_BYTES = 4


def send(sock: _socket.socket, message: bytes, *fds: int) -> None:
    """Send a message and these descriptors with it."""
    numbers = b"".join(fd.to_bytes(_INT_BYTES, sys.byteorder) for fd in fds)
    sock.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])


def receive(sock: _socket.socket, most_bytes: int, most_fds: int) -> tuple[bytes, list[int], bool]:
    """The next message, the descriptors that came with it, which are the caller's, and whether all came."""
    message, rights, flags, _ = sock.recvmsg(
        most_bytes, _socket.CMSG_SPACE(most_fds * _INT_BYTES), _socket.MSG_CMSG_CLOEXEC
    )
    numbers = rights[0][2] if rights else b""
    fds = [
        int.from_bytes(numbers[at : at + _INT_BYTES], sys.byteorder)
        for at in range(0, len(numbers), _INT_BYTES)
    ]
    return message, fds, not flags & _socket.MSG_CTRUNC
