"""Local sandboxes as they can be seen from outside: control groups and folders that carry their owner's name.

The processes of a local sandbox end with their owner, so that only these can be left.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.sandbox import cgroup
from tools.sandbox.inventory import SandboxEntry
from tools.sandbox.processes import has_ended, owner_pid


def list_sandboxes() -> Sequence[SandboxEntry]:
    """Every local sandbox with a control group or a folder of its own."""
    names = {path.name for path in _paths()}
    return [_entry(name) for name in sorted(names)]


def reap_sandboxes() -> Sequence[SandboxEntry]:
    """Remove groups and folders whose owner is dead."""
    orphans = [entry for entry in list_sandboxes() if entry.orphaned]
    names = {entry.name for entry in orphans}
    for path in _paths():
        if path.name not in names:
            continue
        if path.is_relative_to(tempfile.gettempdir()):
            shutil.rmtree(path, ignore_errors=True)
        else:
            cgroup.remove_directory(path)
    return orphans


def _paths() -> Iterator[Path]:
    # Looking for the directories already sweeps them, so the groups are looked at first.
    for parent in {directory for directory, _ in cgroup.controllers().values()}:
        yield from parent.glob(f"{cgroup.PREFIX}.*.*")
    yield from Path(tempfile.gettempdir()).glob(f"{cgroup.PREFIX}.*.*")


def _entry(name: str) -> SandboxEntry:
    owner = name.removeprefix(f"{cgroup.PREFIX}.").rpartition(".")[0]
    return SandboxEntry(backend="local", name=name, owner=owner_pid(owner), orphaned=has_ended(owner))
