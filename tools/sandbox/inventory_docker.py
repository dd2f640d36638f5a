"""Docker sandboxes in the words of the inventory."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from tools.sandbox import docker
from tools.sandbox.inventory import SandboxEntry

_STATES: Mapping[str, Literal["in use", "orphan", "unknown"]] = {
    "alive": "in use",
    "gone": "orphan",
    "unknown": "unknown",
}


async def entries() -> Sequence[SandboxEntry]:
    """Every container of ours on the engine."""
    return _entries(await docker.list_sandboxes())


async def reap() -> Sequence[SandboxEntry]:
    """Remove containers whose owner is dead."""
    return _entries(await docker.reap())


def _entries(found: Iterable[docker.ContainerRecord]) -> list[SandboxEntry]:
    return [
        SandboxEntry(
            backend="docker",
            name=one.id,
            owner=one.pid if one.owner != "unknown" else None,
            state=_STATES[one.owner],
        )
        for one in found
    ]
