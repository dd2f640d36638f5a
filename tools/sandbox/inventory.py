"""Which sandboxes are on this machine, whose they are, and taking away those whose owner is dead."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxEntry:
    """One sandbox, or what is left of it."""

    backend: str
    name: str
    """What the backend calls it: a control group, a folder or a container."""
    owner: int | None
    """Process id of the program that opened it; `None` when that cannot be known here."""
    orphaned: bool
    """Its owner is provably dead."""


class Inventory(Protocol):
    """What a backend's inventory module offers."""

    def list_sandboxes(self) -> Sequence[SandboxEntry]:
        """Every sandbox of this backend that can be seen from here."""
        ...

    def reap_sandboxes(self) -> Sequence[SandboxEntry]:
        """Take away the orphaned ones; what was taken away."""
        ...


_INVENTORIES = {"local": "tools.sandbox.local_inventory", "docker": "tools.sandbox.docker_inventory"}


def list_sandboxes(backend: str) -> Sequence[SandboxEntry]:
    """Every sandbox of a backend that can be seen from here; none for a backend without an inventory.

    Raises:
        SandboxError: the backend does not answer.
    """
    found = _inventory(backend)
    return [] if found is None else found.list_sandboxes()


def reap_sandboxes(backend: str) -> Sequence[SandboxEntry]:
    """Take away sandboxes whose owner is provably dead; what was taken away.

    Raises:
        SandboxError: the backend does not answer.
    """
    found = _inventory(backend)
    return [] if found is None else found.reap_sandboxes()


def _inventory(backend: str) -> Inventory | None:
    if backend not in _INVENTORIES:
        return None
    return cast(Inventory, importlib.import_module(_INVENTORIES[backend]))
