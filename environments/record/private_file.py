"""Files that hold rollouts are their owner's alone."""

import os


def private(path: str, flags: int) -> int:
    """An `opener` for `open`: a file that is made here can be read and written by its owner only."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
