"""Isolation tiers: settings, enforced limits and gaps.

B: namespaces. C: Landlock without namespaces. D: no isolation, only on request.

If root starts it, each agent has its own host user, and control groups limit the sandbox. Otherwise the agent
is the caller's user; without a writable control group, memory is limited per process
(`memory_mb_per_process`, RLIMIT_AS).
"""

import os
import resource
import secrets
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from tools.sandbox.base import SandboxLimits
from tools.sandbox.host import seccomp
from tools.sandbox.host.layout import HOST_NAME, RUN_DIR, SYSTEM_PATH, UID_BASE, UID_COUNT, WORKDIR
from tools.sandbox.host.silence import examine
from tools.sandbox.local import cgroup
from tools.sandbox.local.cgroup import Group

ENVIRONMENT = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8"}
"""The agent may be able to read the supervisor's environment."""

_OLDEST_PYTHON = (3, 9)
_SYSTEM_PYTHON = "/usr/bin/python3"
_LEAST = (
    ("-f", resource.RLIMIT_FSIZE, 1024, 4096), ("-n", resource.RLIMIT_NOFILE, 1, 256),
    ("-u", resource.RLIMIT_NPROC, 1, 128), ("-v", resource.RLIMIT_AS, 1024, 1 << 20),
    ("-d", resource.RLIMIT_DATA, 1024, 1 << 20), ("-s", resource.RLIMIT_STACK, 1024, 1024),
)  # fmt: skip
"""Minimum limits for starting sandboxes, in units of `ulimit`."""
_SYS_ADMIN = 21
_PROGRAM_S = 20.0
_VERSION = "import sys;print(*sys.version_info[:2])"


@cache
def interpreter() -> str:
    """Return the system's Python, or ours if that is missing or too old."""
    if Path(_SYSTEM_PYTHON).exists():
        found = output_of([_SYSTEM_PYTHON, "-I", "-S", "-c", _VERSION])
        if found.returncode == 0 and tuple(map(int, found.stdout.split())) >= _OLDEST_PYTHON:
            return _SYSTEM_PYTHON
    return str(Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}"))


def output_of(argv: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a program that examines this machine, with retries."""

    def look() -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_PROGRAM_S)
        if done.returncode < 0:
            raise ConnectionResetError("it was killed")
        return done

    return examine(argv[0], look)


def extra_directories() -> tuple[str, ...]:
    prefix = Path(sys.base_prefix)
    needed = interpreter() != _SYSTEM_PYTHON and not prefix.is_relative_to("/usr")
    return (str(prefix),) if needed else ()


def search_path() -> str:
    """Return `PATH` inside the sandbox, where `python3` is found."""
    if Path(_SYSTEM_PYTHON).exists():
        return SYSTEM_PATH
    return f"{SYSTEM_PATH}:{Path(sys.base_prefix, 'bin')}"


def narrow_limits() -> list[str]:
    found: list[str] = []
    for option, kind, unit, least in _LEAST:
        value = resource.getrlimit(kind)[0]
        if value != resource.RLIM_INFINITY and value < least * unit:
            found.append(f"`ulimit {option}` is {value // unit} here and should be {least} or more")
    return found


def root_can_mount() -> bool:
    """Whether root could create namespaces."""
    lines = Path("/proc/self/status").read_text().splitlines()
    bounding = next((int(line.split()[1], 16) for line in lines if line.startswith("CapBnd:")), 0)
    return bool(bounding >> _SYS_ADMIN & 1)


def memory_file(data: bytes) -> int:
    fd = os.memfd_create("turnwise", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def draw_uid() -> int:
    """Return a random host user id, so that sandboxes share no process counts and signals."""
    first, count = max(_id_map(), key=lambda extent: extent[1])
    if first <= UID_BASE and first + count >= UID_BASE + UID_COUNT:
        return UID_BASE + secrets.randbelow(UID_COUNT)
    return first + count // 2 + secrets.randbelow(max(1, count // 2))


@cache
def _id_map() -> list[tuple[int, int]]:
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    return [(int(inside), int(count)) for inside, _, count in (line.split() for line in lines)]


Tier = Literal["B", "C", "D"]

_NPROC_PER_NAMESPACE = (5, 14)
"""Since Linux 5.14, RLIMIT_NPROC counts per user namespace."""
_LACKS: Mapping[Tier, frozenset[str]] = {
    "C": frozenset(("disk_mb", "hidden_processes", "network", "own_tmp")),
    "D": frozenset(
        ("disk_mb", "hidden_processes", "host_files", "kernel_doors", "network", "oom_score", "own_tmp")
    ),
}
_LACKS_WITHOUT_ROOT = frozenset(("file_modes", "unix_sockets"))
"""Additional gaps of tier C if the agent is the caller's user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    root: bool
    uid: int
    gid: int


def agent() -> Agent:
    if os.geteuid() == 0:
        uid = draw_uid()
        return Agent(root=True, uid=uid, gid=uid)
    return Agent(root=False, uid=os.getuid(), gid=os.getgid())


def settings(tier: Tier, who: Agent, limits: SandboxLimits, group: Group) -> dict[str, str]:
    return {
        "drop": "1" if who.root else "0",
        "uid": str(who.uid),
        "gid": str(who.gid),
        "workdir": WORKDIR,
        "run_dir": RUN_DIR,
        "host_name": HOST_NAME,
        "network": limits.network,
        "fsize": str(limits.file_mb << 20),
        "nproc": str(limits.pids) if _counts_processes(tier, who) else "",
        "as": "" if "memory_mb" in group.enforced else str(limits.memory_mb << 20),
        "output": str(limits.output_mb << 20),
        "confine": "0" if tier == "D" else "1",
        "held": "",
    }


def list_enforced(tier: Tier, who: Agent, group: Group, limits: SandboxLimits) -> frozenset[str]:
    names = set(group.enforced) | {"file_mb", "output_mb"}
    if tier == "B":
        names |= {"network", "disk_mb"} if limits.network == "none" else {"disk_mb"}
    else:
        names.add("disk_mb_watched")
    if "memory_mb" not in names:
        names.add("memory_mb_per_process")
    if _counts_processes(tier, who):
        names.add("pids")
    return frozenset(names)


def lacks(tier: Tier, who: Agent, limits: SandboxLimits) -> frozenset[str]:
    names = _LACKS.get(tier, frozenset())
    if tier == "C" and not who.root:
        names |= _LACKS_WITHOUT_ROOT
    if tier == "D" and not who.root:
        names |= {"verifier_files"}
    if tier != "D" and not seccomp.program():
        names |= {"system_calls"}
    return names if limits.network == "none" else names | {"network"}


def unmet(tier: Tier, limits: SandboxLimits) -> dict[str, str]:
    """Explain which limits the tier cannot enforce here."""
    who, controllers = agent(), cgroup.controllers()
    problems = {
        "network": (
            tier == "C" and limits.network == "none",
            "the agent cannot be kept off the network without namespaces (tier C, Landlock alone)",
        ),
        "pids": (
            tier != "D" and not _counts_processes(tier, who) and "pids" not in controllers,
            "nothing bounds how many processes it starts without root or a control group",
        ),
        "cpus": (
            limits.cpus is not None and "cpu" not in controllers,
            "there is no quota of processors (`cpus`) without a control group",
        ),
    }
    return {name: words for name, (missing, words) in problems.items() if missing}


def _counts_processes(tier: Tier, who: Agent) -> bool:
    if who.root:
        return True
    release = os.uname().release.split("-")[0].split(".")
    return tier == "B" and tuple(int(part) for part in release[:2]) >= _NPROC_PER_NAMESPACE
