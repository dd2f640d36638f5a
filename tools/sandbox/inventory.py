"""Which sandboxes are on this machine, whose they are, and taking away those whose owner is dead."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from tools.sandbox.base import SandboxEntry

__all__ = ["INVENTORIES", "Inventory", "SandboxEntry", "list_sandboxes", "reap_sandboxes"]


class Inventory(Protocol):
    """What a backend's inventory module offers."""

    async def entries(self) -> Sequence[SandboxEntry]:
        """Every sandbox of this backend that can be seen from here."""
        ...

    async def reap(self) -> Sequence[SandboxEntry]:
        """Take away the orphans; what was taken away."""
        ...


INVENTORIES: Mapping[str, str] = {
    "local": "tools.sandbox.local.inventory",
    "docker": "tools.sandbox.docker.orphans",
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
