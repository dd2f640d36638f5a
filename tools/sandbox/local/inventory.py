"""Inventory of local sandboxes: control groups and folders, named after their owner.

Processes of a local sandbox end with their owner, so only these can remain.
"""

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tools.sandbox.base import SandboxEntry
from tools.sandbox.host import trees
from tools.sandbox.host.process_ids import has_ended, owner_pid
from tools.sandbox.local import cgroup


async def entries() -> Sequence[SandboxEntry]:
    return await asyncio.to_thread(_entries)


async def reap() -> Sequence[SandboxEntry]:
    return await asyncio.to_thread(_reap)


def _entries() -> list[SandboxEntry]:
    return [_entry(name) for name in sorted({path.name for path in _paths()})]


def _reap() -> list[SandboxEntry]:
    orphans = {entry.name: entry for entry in _entries() if entry.state == "orphan"}
    for path in _paths():
        if path.name not in orphans:
            continue
        if path.is_relative_to(tempfile.gettempdir()):
            trees.remove(str(path))
        else:
            with suppress(OSError):
                cgroup.remove_directory(path)
    left = {path.name for path in _paths()}
    return [entry for name, entry in orphans.items() if name not in left]


def _paths() -> Iterator[Path]:
    for parent in {directory for directory, _ in cgroup.controllers().values()}:
        yield from parent.glob(f"{cgroup.PREFIX}.*.*")
    yield from Path(tempfile.gettempdir()).glob(f"{cgroup.PREFIX}.*.*")


def _entry(name: str) -> SandboxEntry:
    owner = name.removeprefix(f"{cgroup.PREFIX}.").rpartition(".")[0]
    pid = owner_pid(owner)
    state = "unknown" if pid is None else "orphan" if has_ended(owner) else "in use"
    return SandboxEntry(backend="local", name=name, owner=pid, state=state)
