"""Containers that are there, and those that nobody will remove any more. Everything blocks."""

from dataclasses import dataclass

from tools.sandbox import docker_owner
from tools.sandbox.docker_container import remove
from tools.sandbox.docker_engine import Engine, Listed
from tools.sandbox.docker_owner import Owner

_SHORT = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRecord:
    """One container of ours on the engine, whoever made it."""

    id: str
    """As `docker ps` shows it."""
    image: str
    state: str
    """The engine's word, such as `running`."""
    created: int
    """Unix time."""
    run: str
    """The same for all containers of one process."""
    host: str
    pid: int | None
    owner: Owner
    """Whether its process lives; `unknown` when that cannot be told from here."""


def listed(engine: Engine) -> tuple[ContainerRecord, ...]:
    """Every container of ours, the oldest first.

    Raises:
        EngineError: the engine does not tell.
    """
    found = sorted(engine.containers(docker_owner.LABEL), key=lambda one: one.created)
    return tuple(_record(one) for one in found)


def reaped(engine: Engine, *, everything: bool = False) -> tuple[ContainerRecord, ...]:
    """Remove containers whose owner is provably gone, or all of ours; those that were removed.

    Raises:
        EngineError: the engine does not remove one.
    """
    doomed = [one for one in listed(engine) if everything or one.owner == "gone"]
    for one in doomed:
        remove(engine, one.id)
    return tuple(doomed)


def _record(one: Listed) -> ContainerRecord:
    run, host, pid = docker_owner.described(one.labels)
    return ContainerRecord(
        id=one.id[:_SHORT],
        image=one.image,
        state=one.state,
        created=one.created,
        run=run,
        host=host,
        pid=pid,
        owner=docker_owner.owner(one.labels),
    )
