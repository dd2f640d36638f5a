"""Whose container is it: labels that name the owning process, and the proof that it is gone."""

import os
import secrets
import socket
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from tools.sandbox import processes

LABEL = "turnwise.sandbox"
"""Every container of ours has it."""
Owner = Literal["alive", "gone", "unknown"]

_RUN, _HOST, _BOOT, _NAMESPACE, _PID, _START, _CREATED = (
    f"turnwise.{name}"
    for name in ("run", "host", "boot_id", "pid_namespace", "pid", "start_time", "created")
)  # fmt: skip


def labels() -> dict[str, str]:
    """The labels of a container that this process makes now."""
    namespace, pid, start = processes.identity(os.getpid()).split("-")
    return {
        LABEL: "1", _RUN: _run(os.getpid()), _HOST: socket.gethostname(), _BOOT: _boot_id(),
        _NAMESPACE: namespace, _PID: pid, _START: start, _CREATED: str(int(time.time())),
    }  # fmt: skip


def owner(of: Mapping[str, str]) -> Owner:
    """Whether the process that made a container lives; `unknown` for another boot, host or PID namespace."""
    if of.get(_BOOT) != _boot_id():
        return "unknown"
    name = "-".join(of.get(key, "") for key in (_NAMESPACE, _PID, _START))
    if processes.has_ended(name):
        return "gone"
    return "alive" if name.startswith(f"{processes.identity(os.getpid()).split('-')[0]}-") else "unknown"


def described(of: Mapping[str, str]) -> tuple[str, str, int | None]:
    """Run, host and process id in these labels."""
    pid = of.get(_PID, "")
    return of.get(_RUN, ""), of.get(_HOST, ""), int(pid) if pid.isdigit() else None


@cache
def _run(_pid: int) -> str:
    return secrets.token_hex(6)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
