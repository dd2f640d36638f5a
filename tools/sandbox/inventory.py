"""Which sandboxes are on this machine, whose they are, and taking away those whose owner is dead."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxEntry:
    """One sandbox, or what is left of it."""

    backend: str
    name: str
    """What the backend calls it: a control group, a folder or a container."""
    owner: int | None
    """Process id of the program that opened it; `None` when that cannot be known here."""
    state: Literal["in use", "orphan", "unknown"]
    """`orphan`: its owner is provably dead. `unknown`: of another machine, boot or PID namespace."""


class Inventory(Protocol):
    """What a backend's inventory module offers."""

    async def entries(self) -> Sequence[SandboxEntry]:
        """Every sandbox of this backend that can be seen from here."""
        ...

    async def reap(self) -> Sequence[SandboxEntry]:
        """Take away the orphans; what was taken away."""
        ...


INVENTORIES: Mapping[str, str] = {
    "local": "tools.sandbox.inventory_local",
    "docker": "tools.sandbox.inventory_docker",
}
"""Modules that are an `Inventory`, by backend."""


async def list_sandboxes(backend: str) -> Sequence[SandboxEntry]:
    """Every sandbox of a backend that can be seen from here; none for a backend without an inventory.

    Raises:
        IsolationError: the backend does not answer.
    """
    found = _inventory(backend)
    return [] if found is None else await found.entries()


async def reap_sandboxes(backend: str) -> Sequence[SandboxEntry]:
    """Take away sandboxes whose owner is provably dead; what was taken away.

    Raises:
        IsolationError: the backend does not answer.
    """
    found = _inventory(backend)
    return [] if found is None else await found.reap()


def _inventory(backend: str) -> Inventory | None:
    if backend not in INVENTORIES:
        return None
    return cast(Inventory, importlib.import_module(INVENTORIES[backend]))
