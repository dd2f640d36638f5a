"""What the kernel tells about a control group's memory."""

from __future__ import annotations

import os


def kills(fd: int) -> int:
    """Processes that a shortage of memory ended, from an open `memory.oom_control` or `memory.events`."""
    for line in os.pread(fd, 4096, 0).split(b"\n"):
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return 0
