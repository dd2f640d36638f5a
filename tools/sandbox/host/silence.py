"""Starts and supervisors that do not answer: what that says of a machine, and whose fault it is."""

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
"""Seconds of a processor per second of silence from which the agent's processes count as what filled it."""

Counters = Mapping[str, float]
"""What the limits of one sandbox counted so far: hits (`memory`, `throttled`) and time (`cpu_s`); and what is
at its limit at the moment (`memory_full`, `pids_full`)."""


class SilentStartError(SandboxCreateError):
    """A start that died or hung: it says nothing about what this machine can do."""


def is_silence(error: Exception) -> bool:
    """Whether an error is of a moment: a process was killed or hung, or the machine was short of it."""
    is_known = isinstance(error, (SilentStartError, *_DIED)) or getattr(error, "errno", None) in _SHORTAGES
    return is_known or any(word in str(error) for word in _WORDS)


def examined(what: str, look: Callable[[], T]) -> T:
    """Return what a look finds; one that dies or hangs is taken again, so often.

    Raises:
        IsolationError: it died or hung each time.
    """
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
    """The counter that shows what the agent did during a silence, in words; `None`: they are clean."""
    grown = {name: after[name] - before[name] for name in before.keys() & after.keys()}
    hits = [name for name in ("memory", "throttled") if grown.get(name, 0.0) > 0]
    hits += [name for name in ("memory_full", "pids_full") if before.get(name) and after.get(name)]
    hits += ["cpu_s"] if grown.get("cpu_s", 0.0) >= _BUSY_SHARE * silent_s else []
    return ", ".join(f"{name} {before[name]:g}, then {after[name]:g}" for name in hits) or None
