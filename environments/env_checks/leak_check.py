"""What rollouts leave behind: processes, threads, sandboxes and files."""

import asyncio
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from environments.env_checks.finding import Answer
from environments.inference.server_text import one_line
from tools.errors import IsolationError
from tools.sandbox.inventory import list_sandboxes

_SHOWN = 3
_OURS = ("turnwise-pool", "turnwise-watchdog", "turnwise-docker", "turnwise-sandbox", "asyncio_")
"""How names of threads begin that are not an environment's."""
_CACHES = ("__pycache__", ".pytest_cache")
_WAIT_S = 2.0
"""For what is just ending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Belongings:
    """What this process has at one time, and what is in the folders that rollouts may write into."""

    processes: frozenset[str]
    threads: frozenset[str]
    temporary: frozenset[str]
    here: frozenset[str]


def belongings() -> Belongings:
    """Those of now."""
    return Belongings(
        processes=frozenset(_processes()),
        threads=frozenset(
            f"{each.name} ({each.ident})" for each in threading.enumerate() if not each.name.startswith(_OURS)
        ),
        temporary=_files(tempfile.gettempdir()),
        here=_files(os.getcwd()),  # noqa: PTH109  # as text
    )


async def left_behind(before: Belongings, backend: str) -> Answer:
    """What is there of a closed environment that was not there when its rollouts began.

    Args:
        before: with the environment open, so that what is shared by all rollouts is not counted.
        backend: of its sandboxes.
    """
    ends = monotonic() + _WAIT_S
    while (left := await _left(before, backend)) and monotonic() < ends:  # noqa: ASYNC110  # nobody tells
        await asyncio.sleep(_WAIT_S / 10)
    if left:
        what = "; ".join(f"{len(names)} {what} ({_some(names)})" for what, names in left.items())
        return "fail", f"left: {what}; what `prepare` opens, close after its `yield`"
    if made := _files(os.getcwd()) - before.here:  # noqa: PTH109  # as text
        return "warn", f"new in the current folder: {_some(made)}"
    return "ok", "no process, thread, sandbox or temporary file is left"


async def _left(before: Belongings, backend: str) -> dict[str, frozenset[str]]:
    now = belongings()
    try:
        sandboxes = [each.name for each in await list_sandboxes(backend) if each.owner == os.getpid()]
    except IsolationError:
        sandboxes = []
    left = {
        "sandboxes": frozenset(sandboxes),
        "processes": now.processes - before.processes,
        "threads": now.threads - before.threads,
        "temporary files": now.temporary - before.temporary,
    }
    return {what: names for what, names in left.items() if names}


def _some(names: frozenset[str]) -> str:
    shown = ", ".join(one_line(each) for each in sorted(names)[:_SHOWN])
    return f"{shown}{', …' if len(names) > _SHOWN else ''}"


def _processes() -> Iterator[str]:
    """Those whose parent is this one, where the system says so."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            number, _, rest = status.read_text().partition(" (")
            name, _, fields = rest.rpartition(") ")
            if fields.split()[1] == str(os.getpid()):
                yield f"{name} {number}"


def _files(folder: str) -> frozenset[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        return frozenset(each.name for each in entries if each.name not in _CACHES)
    return frozenset()
