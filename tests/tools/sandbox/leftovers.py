"""What sandboxes of some processes still take of this machine, the dead among these processes too."""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.sandbox import list_sandboxes, reap_sandboxes
from tools.sandbox.check import Target
from tools.sandbox.conformance.hosts import descendants
from tools.sandbox.host.ownership import children, owner_pid
from tools.sandbox.local import cgroup

MOUNTS = Path("/proc/self/mountinfo")
_OF_THE_ENGINE = ("/overlay2/", "/containers/", "/netns/")
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """Counts that are the same before and after when nothing was left."""

    processes: int
    """Below this process; those of a dead one too, once this one adopts them."""
    groups: int
    directories: int
    mounts: int
    containers: int
    descriptors: int

    def at_least(self, other: "Leftovers") -> "Leftovers":
        """Of each count the larger one."""
        mine, theirs = asdict(self), asdict(other)
        return Leftovers(**{name: max(count, theirs[name]) for name, count in mine.items()})


async def leftovers(target: Target, owners: Iterable[int] = ()) -> Leftovers:
    """What is there now of this process and of others.

    Args:
        target: of which kind of sandbox.
        owners: ids of other processes that opened sandboxes, alive or not.
    """
    pids = {os.getpid(), *owners}
    parents = {directory for directory, _ in cgroup.controllers().values()}
    containers = await list_sandboxes("docker") if target.backend == "docker" else []
    return Leftovers(
        processes=len(descendants(os.getpid())),
        groups=sum(_owned(path, pids) for parent in parents for path in parent.glob("turnwise.*.*")),
        directories=sum(_owned(path, pids) for path in Path(tempfile.gettempdir()).glob("turnwise.*.*")),
        mounts=_mounts(),
        containers=sum(entry.owner in pids for entry in containers),
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
    )


async def settled(
    target: Target, wanted: Leftovers, owners: Iterable[int] = (), *, within_s: float = 10.0
) -> Leftovers:
    """What is there once nothing is left or the time is up, after the sweeps that a next start makes.

    What was wanted and went meanwhile counts as there: only more than that is a leftover.
    """
    deadline = time.monotonic() + within_s
    while True:
        await reap_sandboxes(target.backend)
        _bury()
        seen = (await leftovers(target, owners)).at_least(wanted)
        if seen == wanted or time.monotonic() > deadline:
            return seen
        await asyncio.sleep(_POLL_S)


def _owned(path: Path, pids: set[int]) -> bool:
    return owner_pid(path.name.removeprefix("turnwise.").rpartition(".")[0]) in pids


def _mounts() -> int:
    """Mounts that can be seen from here; the engine's go with its containers, and those are counted."""
    lines = MOUNTS.read_text().splitlines()
    return len([line for line in lines if not any(part in line for part in _OF_THE_ENGINE)])


def _bury() -> None:
    """Reap adopted processes that ended; nobody else waits for them."""
    for pid in children(os.getpid()):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "Z":
                os.waitpid(pid, os.WNOHANG)
        except (OSError, IndexError):
            continue
