"""Whose container is it: labels that name the owning process, and the proof that it is gone."""

import os
import secrets
import socket
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from tools.sandbox.host import process_ids

LABEL = "turnwise.sandbox"
"""Every container of ours has it."""

_RUN, _HOST, _BOOT, _NAMESPACE, _PID, _START = (
    f"turnwise.{name}"
    for name in ("run", "host", "boot_id", "pid_namespace", "pid", "start_time")
)  # fmt: skip


def labels() -> dict[str, str]:
    """The labels of containers that this process makes."""
    return dict(_labels(os.getpid()))


def state(of: Mapping[str, str]) -> Literal["in use", "orphan", "unknown"]:
    """Whether the process that made a container lives; `unknown` for another boot, host or PID namespace."""
    if of.get(_BOOT) != _boot_id():
        return "unknown"
    name = "-".join(of.get(key, "") for key in (_NAMESPACE, _PID, _START))
    if process_ids.has_ended(name):
        return "orphan"
    return "in use" if name.startswith(f"{process_ids.identity(os.getpid()).split('-')[0]}-") else "unknown"


def owner_pid(of: Mapping[str, str]) -> int | None:
    """The process id in these labels."""
    pid = of.get(_PID, "")
    return int(pid) if pid.isdigit() else None


@cache
def _labels(this_process: int) -> dict[str, str]:
    namespace, pid, start = process_ids.identity(this_process).split("-")
    return {
        LABEL: "1", _RUN: secrets.token_hex(6), _HOST: socket.gethostname(), _BOOT: _boot_id(),
        _NAMESPACE: namespace, _PID: pid, _START: start,
    }  # fmt: skip


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
