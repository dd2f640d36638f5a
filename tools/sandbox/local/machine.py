"""What this machine lends to every sandbox: an interpreter, and users that nobody else has."""

import os
import resource
import secrets
import subprocess
import sys
from functools import cache
from pathlib import Path

from tools.sandbox.host.layout import SYSTEM_PATH, UID_BASE, UID_COUNT

ENVIRONMENT = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8"}
"""All that a supervisor inherits: whatever process 1 has, the agent's side could come to see."""

_OLDEST_PYTHON = (3, 9)
_SYSTEM_PYTHON = "/usr/bin/python3"
_LEAST = (
    ("-f", resource.RLIMIT_FSIZE, 1024, 4096), ("-n", resource.RLIMIT_NOFILE, 1, 256),
    ("-u", resource.RLIMIT_NPROC, 1, 128), ("-v", resource.RLIMIT_AS, 1024, 1 << 20),
    ("-d", resource.RLIMIT_DATA, 1024, 1 << 20), ("-s", resource.RLIMIT_STACK, 1024, 1024),
)  # fmt: skip
"""What a process that starts sandboxes needs, in the units of `ulimit`."""
_SYS_ADMIN = 21
_VERSION = "import sys;print(*sys.version_info[:2])"


@cache
def interpreter() -> str:
    """The Python that runs the supervisor: the system's, or ours where that one is missing or too old."""
    if Path(_SYSTEM_PYTHON).exists():
        found = subprocess.run(
            [_SYSTEM_PYTHON, "-I", "-S", "-c", _VERSION], capture_output=True, text=True, check=False
        )
        if found.returncode == 0 and tuple(map(int, found.stdout.split())) >= _OLDEST_PYTHON:
            return _SYSTEM_PYTHON
    return str(Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}"))


def extra_directories() -> tuple[str, ...]:
    """Directories outside `/usr` that the interpreter needs."""
    prefix = Path(sys.base_prefix)
    needed = interpreter() != _SYSTEM_PYTHON and not prefix.is_relative_to("/usr")
    return (str(prefix),) if needed else ()


def search_path() -> str:
    """`PATH` inside; `python3` is always on it."""
    if Path(_SYSTEM_PYTHON).exists():
        return SYSTEM_PATH
    return f"{SYSTEM_PATH}:{Path(sys.base_prefix, 'bin')}"


def narrow_limits() -> list[str]:
    """Limits of this process that are too small to start sandboxes with, in words."""
    found: list[str] = []
    for option, kind, unit, least in _LEAST:
        value = resource.getrlimit(kind)[0]
        if value != resource.RLIM_INFINITY and value < least * unit:
            found.append(f"`ulimit {option}` is {value // unit} here and should be {least} or more")
    return found


def root_can_mount() -> bool:
    """Whether root could make namespaces here; in a container without privileges nobody can."""
    lines = Path("/proc/self/status").read_text().splitlines()
    bounding = next((int(line.split()[1], 16) for line in lines if line.startswith("CapBnd:")), 0)
    return bool(bounding >> _SYS_ADMIN & 1)


def memory_file(data: bytes) -> int:
    """A descriptor of an unnamed file with this content, read from its start."""
    fd = os.memfd_create("turnwise", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def unused_uid() -> int:
    """A host user for one sandbox, so that process counts and signals of two sandboxes never meet.

    It is drawn at random from ids that nobody hands out; in a container with few ids, from their upper half.
    """
    first, count = max(_mapped_ids(), key=lambda extent: extent[1])
    if first <= UID_BASE and first + count >= UID_BASE + UID_COUNT:
        return UID_BASE + secrets.randbelow(UID_COUNT)
    return first + count // 2 + secrets.randbelow(max(1, count // 2))


@cache
def _mapped_ids() -> list[tuple[int, int]]:
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    return [(int(inside), int(count)) for inside, _, count in (line.split() for line in lines)]
