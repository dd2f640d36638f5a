"""Starts and supervisors that do not answer: retries, and the cause."""

import errno
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from tools.errors import IsolationError, SandboxCreateError

T = TypeVar("T")
_LOOKS, _AGAIN_S = 3, 0.5
_DIED = (ConnectionError, TimeoutError, EOFError, subprocess.TimeoutExpired)
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EINTR)
_WORDS = ("MemoryError", *map(os.strerror, _SHORTAGES))
_BUSY_SHARE = 0.1
"""The agent caused a silence if it used at least this share of a processor meanwhile."""

Counters = Mapping[str, float]
"""Hits (`memory`, `throttled`), seconds (`cpu_s`), and limits that are reached now (`memory_full`,
`pids_full`)."""


class SilentStartError(SandboxCreateError):
    """A start that died or hung, which proves nothing about the machine."""


def is_silence(error: Exception) -> bool:
    """Whether an error is transient, such as a killed process or a lack of memory."""
    is_known = isinstance(error, (SilentStartError, *_DIED)) or getattr(error, "errno", None) in _SHORTAGES
    return is_known or any(word in str(error) for word in _WORDS)


def examine(what: str, look: Callable[[], T]) -> T:
    """Return the result of `look`, repeated after transient errors, then IsolationError."""
    for left in reversed(range(_LOOKS)):
        try:
            return look()
        except (SandboxCreateError, OSError, subprocess.TimeoutExpired) as error:
            if not is_silence(error):
                raise
            if not left:
                raise IsolationError(
                    f"{what} could not be examined: {error}; is the machine busy?"
                ) from error
            time.sleep(_AGAIN_S)
    raise AssertionError


def limit_hit(before: Counters, after: Counters, silent_s: float) -> str | None:
    grown = {name: after[name] - before[name] for name in before.keys() & after.keys()}
    hits = [name for name in ("memory", "throttled") if grown.get(name, 0.0) > 0]
    hits += [name for name in ("memory_full", "pids_full") if before.get(name) and after.get(name)]
    hits += ["cpu_s"] if grown.get("cpu_s", 0.0) >= _BUSY_SHARE * silent_s else []
    return ", ".join(f"{name} {before[name]:g}, then {after[name]:g}" for name in hits) or None
