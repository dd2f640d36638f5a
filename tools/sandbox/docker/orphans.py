"""Owners of containers by label, and removal of orphans."""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from tools.errors import IsolationError
from tools.sandbox.base import SandboxEntry
from tools.sandbox.docker.container import remove
from tools.sandbox.docker.engine import Engine, EngineError, connect
from tools.sandbox.host import ownership

LABEL = "turnwise.sandbox"

_RUN, _HOST, _BOOT, _NAMESPACE, _PID, _START = (
    f"turnwise.{name}"
    for name in ("run", "host", "boot_id", "pid_namespace", "pid", "start_time")
)  # fmt: skip


def labels() -> dict[str, str]:
    return dict(_labels(os.getpid()))


def state(of: Mapping[str, str]) -> Literal["in use", "orphan", "unknown"]:
    """Return the state of the owner; `unknown` on another machine, boot or PID namespace."""
    if of.get(_BOOT) != _boot_id():
        return "unknown"
    name = "-".join(of.get(key, "") for key in (_NAMESPACE, _PID, _START))
    if ownership.has_ended(name):
        return "orphan"
    return "in use" if name.startswith(f"{ownership.identity(os.getpid()).split('-')[0]}-") else "unknown"


@cache
def _labels(this_process: int) -> dict[str, str]:
    namespace, pid, start = ownership.identity(this_process).split("-")
    return {
        LABEL: "1", _RUN: secrets.token_hex(6), _HOST: socket.gethostname(), _BOOT: _boot_id(),
        _NAMESPACE: namespace, _PID: pid, _START: start,
    }  # fmt: skip


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


_SHORT = 12
"""Length of an id in `docker ps`."""
_IMAGE = "sha256:"


def list_owned(engine: Engine) -> list[SandboxEntry]:
    found = sorted([*engine.containers(LABEL), *engine.images(LABEL)], key=lambda one: one.created)
    entries: list[SandboxEntry] = []
    for one in found:
        known, pid = state(one.labels), one.labels.get(_PID, "")
        owner = int(pid) if known != "unknown" and pid.isdigit() else None
        name = one.id[: _SHORT + len(_IMAGE) * one.id.startswith(_IMAGE)]
        entries.append(SandboxEntry(backend="docker", name=name, owner=owner, state=known))
    return entries


def remove_orphans(engine: Engine) -> list[SandboxEntry]:
    doomed = [one for one in list_owned(engine) if one.state == "orphan"]
    for one in doomed:
        if one.name.startswith(_IMAGE):
            engine.remove_image(one.name)
        else:
            remove(engine, one.name)
    return doomed


async def entries() -> Sequence[SandboxEntry]:
    return await asyncio.to_thread(_ask, list_owned)


async def reap() -> Sequence[SandboxEntry]:
    return await asyncio.to_thread(_ask, remove_orphans)


def _ask(call: Callable[[Engine], Sequence[SandboxEntry]]) -> Sequence[SandboxEntry]:
    try:
        return call(connect())
    except EngineError as error:
        raise IsolationError(f"the Docker engine does not do it: {error}") from error
