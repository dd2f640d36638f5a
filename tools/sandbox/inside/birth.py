"""What a child of a warm process does first, whatever becomes of it."""

from __future__ import annotations

import _socket
import os

from tools.sandbox.inside import frames, rights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

CONTROL = 3
"""The channel; the guard and the counter of memory kills follow."""


def keep_only(fds: Sequence[int]) -> None:
    """Give these descriptors the numbers from `CONTROL` on and close all others but the standard ones."""
    high = [os.dup2(fd, 100 + number, inheritable=False) for number, fd in enumerate(fds)]
    for number, fd in enumerate(high):
        os.dup2(fd, CONTROL + number, inheritable=False)
    os.closerange(CONTROL + len(fds), 4096)


def tell_birth() -> None:
    """Give the host a descriptor of this process, before it hears anything else."""
    host = _socket.socket(fileno=CONTROL)
    rights.send(host, frames.BORN, os.pidfd_open(os.getpid()))
    host.detach()


def score() -> None:
    """Be the last that a shortage of memory ends."""
    try:
        write("/proc/self/oom_score_adj", b"-900")
    except PermissionError:
        pass  # a root without this privilege; the agent's processes are preferred anyway


def write(path: str, data: bytes) -> None:
    """Write to one of the kernel's files."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
