"""What the host tells a supervisor before anything else."""

from __future__ import annotations

import marshal
import os
from typing import NamedTuple

_HEADER_BYTES = 4


class Configuration(NamedTuple):
    """The first that a supervisor reads."""

    settings: dict[str, str]
    env: dict[str, str]
    """Of commands."""
    seccomp: bytes
    """A program, or nothing."""
    steps: list[list[str]]
    """Of the root in namespaces; without them the rules of Landlock."""
    files: list[tuple[str, bytes]]
    """Of a verifier, see `held_files`."""

    def encode(self) -> bytes:
        """As bytes with their length, in a format that every Python reads in one call."""
        body = marshal.dumps(tuple(self), 2)
        return len(body).to_bytes(_HEADER_BYTES, "big") + body

    @classmethod
    def read(cls, control: int) -> Configuration:
        """Wait for it on a descriptor; nothing beyond it is read.

        Raises:
            EOFError: the host is gone.
        """
        size = int.from_bytes(_read_exactly(control, _HEADER_BYTES), "big")
        return cls(*marshal.loads(_read_exactly(control, size)))


def _read_exactly(fd: int, count: int) -> bytes:
    parts: list[bytes] = []
    while count > 0:
        data = os.read(fd, min(count, 1 << 20))
        if not data:
            raise EOFError
        parts.append(data)
        count -= len(data)
    return b"".join(parts)
