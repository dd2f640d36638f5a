"""A socket that listens on the loopback of a sandbox, and is accepted by this process."""

import asyncio
import ctypes
import os
import socket
import threading
from collections.abc import Callable

from tools.errors import IsolationError

_NEW_NET = 0x40000000


async def listen_inside(pid: Callable[[], int]) -> socket.socket:
    """Listen on a free port of 127.0.0.1 in the network of a process; connections there reach this process.

    A thread of its own joins that network, makes the socket and ends: a network belongs to a thread.

    Args:
        pid: gives the process; it may block.

    Raises:
        IsolationError: this process may not join the network of another, for which it has to be root.
    """
    made: list[socket.socket | OSError] = []

    def make() -> None:
        try:
            path = f"/proc/{pid()}/ns/net"
            network = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(network, _NEW_NET):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
            finally:
                os.close(network)
            made.append(socket.create_server(("127.0.0.1", 0), backlog=128))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=make, name="turnwise-sandbox-network", daemon=True)
    thread.start()
    await asyncio.to_thread(thread.join)
    if isinstance(made[0], OSError):
        raise IsolationError(
            f"nothing can listen in the network of this sandbox: {made[0]}; run as root, with Docker on this "
            f"machine, or choose where='host'"
        ) from made[0]
    return made[0]
