"""What the host tells the supervisor before anything else."""

from __future__ import annotations

import marshal
import os

from tools.sandbox.inside import frames


class Config:
    """The first frame: settings, the environment of commands, a seccomp program and the steps of the root."""

    __slots__ = ("env", "seccomp", "settings", "steps")

    def __init__(self, control: int) -> None:
        size = int.from_bytes(read_exactly(control, frames.HEADER_BYTES), "big")
        self.settings: dict[str, str]
        self.env: dict[str, str]
        self.seccomp: bytes
        self.steps: list[list[str]]
        self.settings, self.env, self.seccomp, self.steps = marshal.loads(read_exactly(control, size))


def read_exactly(fd: int, count: int) -> bytes:
    """Block for `count` bytes.

    Raises:
        EOFError: the host is gone.
    """
    parts: list[bytes] = []
    while count > 0:
        data = os.read(fd, min(count, 1 << 20))
        if not data:
            raise EOFError
        parts.append(data)
        count -= len(data)
    return b"".join(parts)
