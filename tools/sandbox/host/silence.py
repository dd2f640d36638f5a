"""Starts and supervisors that do not answer: what that says of a machine, and whose fault it is."""

import errno
import re
import subprocess
from collections.abc import Mapping

from tools.errors import SandboxCreateError

_SHORTAGES = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EBUSY})
_QUOTED_ERRNO = re.compile(r"(?:Error\(|\[Errno )(\d+)[,\]]")
_BUSY_SHARE = 0.1
"""Seconds of a processor per second of silence from which the agent's processes count as what filled it."""

Counters = Mapping[str, float]
"""What the limits of one sandbox counted so far: hits (`memory`, `pids`, `throttled`) and time (`cpu_s`); and
what is at its limit at the moment (`memory_full`, `pids_full`), where nothing counts hits."""


class SilentStartError(SandboxCreateError):
    """A start that died or hung: it says nothing about what this machine can do."""


def is_silence(error: Exception) -> bool:
    """Whether an error is of a moment: a process was killed or hung, or the machine was short of it."""
    if isinstance(error, ConnectionError | TimeoutError | EOFError | subprocess.TimeoutExpired | MemoryError):
        return True
    text = str(error)
    quoted = _QUOTED_ERRNO.search(text)
    number = error.errno if isinstance(error, OSError) and error.errno else quoted and int(quoted[1])
    return number in _SHORTAGES or text.endswith("MemoryError")


def limit_hit(before: Counters, after: Counters, silent_s: float) -> str | None:
    """The counter that shows what the agent did during a silence, in words; `None`: they are clean."""
    grown = {name: after[name] - before[name] for name in before.keys() & after.keys()}
    for name in ("memory", "pids", "throttled"):
        if grown.get(name, 0.0) > 0:
            return f"{name}: {grown[name]:g} hits"
    for name in ("memory_full", "pids_full"):
        if before.get(name) and after.get(name):
            return name
    cpu_s = grown.get("cpu_s", 0.0)
    return f"cpu: {cpu_s:.1f} s used in {silent_s:g} s" if cpu_s >= _BUSY_SHARE * silent_s else None
