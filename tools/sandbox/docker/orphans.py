"""Containers that are there, and those that nobody will remove any more. Everything blocks."""

from tools.sandbox.base import SandboxEntry
from tools.sandbox.docker import labels
from tools.sandbox.docker.container import remove
from tools.sandbox.docker.engine import Engine, Listed

_SHORT = 12
"""Of an id, as `docker ps` shows it."""


def listed(engine: Engine) -> list[SandboxEntry]:
    """Every container of ours, the oldest first.

    Raises:
        EngineError: the engine does not tell.
    """
    found = sorted(engine.containers(labels.LABEL), key=lambda one: one.created)
    return [_entry(one) for one in found]


def reaped(engine: Engine) -> list[SandboxEntry]:
    """Remove containers whose owner is provably gone; those that were removed.

    Raises:
        EngineError: the engine does not remove one.
    """
    doomed = [one for one in listed(engine) if one.state == "orphan"]
    for one in doomed:
        remove(engine, one.name)
    return doomed


def _entry(one: Listed) -> SandboxEntry:
    state = labels.state(one.labels)
    pid = None if state == "unknown" else labels.owner_pid(one.labels)
    return SandboxEntry(backend="docker", name=one.id[:_SHORT], owner=pid, state=state)
