"""Listing the sandboxes on this machine and removing orphans."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from tools.sandbox.base import SandboxEntry

__all__ = ["INVENTORIES", "Inventory", "SandboxEntry", "list_sandboxes", "reap_sandboxes"]


class Inventory(Protocol):
    """The functions of a backend's inventory module."""

    async def entries(self) -> Sequence[SandboxEntry]:
        """Return all visible sandboxes of this backend."""
        ...

    async def reap(self) -> Sequence[SandboxEntry]: ...


INVENTORIES: Mapping[str, str] = {
    "local": "tools.sandbox.local.backend",
    "docker": "tools.sandbox.docker.orphans",
}


async def list_sandboxes(backend: str) -> Sequence[SandboxEntry]:
    """Return a backend's visible sandboxes, or raise IsolationError."""
    found = _inventory(backend)
    return [] if found is None else await found.entries()


async def reap_sandboxes(backend: str) -> Sequence[SandboxEntry]:
    """Remove sandboxes whose owner provably ended, and return them."""
    found = _inventory(backend)
    return [] if found is None else await found.reap()


def _inventory(backend: str) -> Inventory | None:
    if backend not in INVENTORIES:
        return None
    return cast(Inventory, importlib.import_module(INVENTORIES[backend]))
