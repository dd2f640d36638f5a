"""Control groups of sandboxes, version 1 or 2."""

import errno
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.sandbox.base import SandboxLimits
from tools.sandbox.host.layout import RESERVED_PIDS
from tools.sandbox.host.ownership import has_ended, identity
from tools.sandbox.host.silence import Counters, examine, is_silence

PREFIX = "turnwise"
_REMOVE_S = 5.0
_CPU_PERIOD_US = 100_000
_COUNTERS = (
    ("memory", "memory.oom_control", "oom_kill "), ("memory", "memory.events", "max "),
    ("throttled", "cpu.stat", "nr_throttled "), ("pids_now", "pids.current", ""),
    ("pids_max", "pids.max", ""),
)  # fmt: skip
"""Name, file and line prefix of each counter, in version 1 or 2."""
_counter = itertools.count()
_finding = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    directories: tuple[Path, ...]
    join_files: tuple[str, ...]
    """A single-threaded process joins by writing 0."""
    leave_files: tuple[str, ...]
    """Files of our own groups; a process leaves the others by writing 0."""
    oom_file: Path | None
    enforced: frozenset[str]


def controllers() -> dict[str, tuple[Path, int]]:
    """Return directory and version of each controller that works here."""
    # Concurrent trials would disturb each other.
    with _finding:
        return examine("control groups", _controllers)


@cache
def _controllers() -> dict[str, tuple[Path, int]]:
    usable: dict[str, tuple[Path, int]] = {}
    for name in ("memory", "pids", "cpu"):
        for directory, version in _candidates(name):
            if _accepts(directory, version, name):
                usable[name] = (directory, version)
                break
    return usable


@cache
def sweep() -> None:
    for directory in {directory for directory, _ in controllers().values()}:
        _sweep(directory)


def create(limits: SandboxLimits) -> Group:
    """Create a sandbox's groups with all enforceable limits."""
    sweep()
    with ExitStack() as undo:
        group = _create(limits, undo)
        undo.pop_all()
        return group


def counters(group: Group) -> Counters:
    found: dict[str, float] = {}
    pids = set[str]()
    with suppress(OSError):
        for directory in group.directories:
            pids |= set((directory / "cgroup.procs").read_text().split())
            for name, file, key in _COUNTERS:
                lines = (directory / file).read_text().splitlines() if (directory / file).exists() else ()
                for line in lines:
                    found |= {name: int(line.split()[-1])} if line.startswith(key) else {}
        found |= {"cpu_s": sum(map(_cpu_s, pids))} if pids else {}
    if "pids_now" in found:
        found["pids_full"] = found.pop("pids_now") + RESERVED_PIDS >= found.pop("pids_max")
    return found


def _cpu_s(pid: str) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def remove(group: Group) -> None:
    with ExitStack() as steps:
        for directory in group.directories:
            steps.callback(remove_directory, directory)


def remove_directory(directory: Path) -> None:
    """Kill the processes of a group and remove it."""
    deadline = time.monotonic() + _REMOVE_S
    while True:
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            for pid in (directory / "cgroup.procs").read_text().split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.002)
        else:
            return


def _create(limits: SandboxLimits, undo: ExitStack) -> Group:
    name = f"{PREFIX}.{identity(os.getpid())}.{next(_counter)}"
    joins: dict[Path, str] = {}
    leaves: list[str] = []
    enforced: set[str] = set()
    oom_file = None
    for controller, (parent, version) in controllers().items():
        if controller == "cpu" and limits.cpus is None:
            continue
        directory = parent / name
        if directory not in joins:
            directory.mkdir()
            undo.callback(directory.rmdir)
        # Version 1 moves threads immediately, but processes only after a grace period of all processors.
        file = "tasks" if version == 1 else "cgroup.procs"
        if directory not in joins:
            own = next(path for path, _, its in _own_directories(controller) if its == version)
            leaves.append(str(own / file))
        joins[directory] = str(directory / file)
        _limit(directory, version, controller, limits)
        enforced.add({"memory": "memory_mb", "pids": "pids", "cpu": "cpus"}[controller])
        if controller == "memory":
            oom_file = directory / ("memory.oom_control" if version == 1 else "memory.events")
    return Group(
        directories=tuple(joins),
        join_files=tuple(joins.values()),
        leave_files=tuple(path for path in leaves if os.access(path, os.W_OK)),
        oom_file=oom_file,
        enforced=frozenset(enforced),
    )


def _limit(directory: Path, version: int, controller: str, limits: SandboxLimits) -> None:
    memory = limits.memory_mb << 20
    if controller == "pids":
        _write(directory / "pids.max", str(limits.pids + RESERVED_PIDS))
    elif controller == "memory" and version == 1:
        _write(directory / "memory.limit_in_bytes", str(memory))
        _write_optional(directory / "memory.memsw.limit_in_bytes", str(memory))
    elif controller == "memory":
        _write(directory / "memory.max", str(memory))
        _write_optional(directory / "memory.swap.max", "0")
    elif limits.cpus is not None:
        quota = max(1000, int(limits.cpus * _CPU_PERIOD_US))
        if version == 1:
            _write(directory / "cpu.cfs_period_us", str(_CPU_PERIOD_US))
            _write(directory / "cpu.cfs_quota_us", str(quota))
        else:
            _write(directory / "cpu.max", f"{quota} {_CPU_PERIOD_US}")


def _candidates(controller: str) -> list[tuple[Path, int]]:
    """Return the own group first, so that its limits still apply, then its parent and one at the top."""
    found: list[tuple[Path, int]] = []
    for group, top, version in _own_directories(controller):
        paths = (group, top / PREFIX) if version == 1 else (group, group.parent, top / PREFIX)
        found += [(path, version) for path in paths if path.is_relative_to(top)]
    return found


def _own_directories(controller: str) -> Iterator[tuple[Path, Path, int]]:
    """Yield group, top of its mount and version."""
    own = _own_groups()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        mount_root, mount_point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        top = Path(mount_point)
        if kind == "cgroup" and controller in options.split(","):
            yield _inside(top, mount_root, own.get(controller, "/")), top, 1
        elif kind == "cgroup2":
            yield _inside(top, mount_root, own.get("", "/")), top, 2


def _own_groups() -> dict[str, str]:
    groups: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        groups |= dict.fromkeys(names.split(","), path)
    return groups


def _inside(top: Path, mount_root: str, path: str) -> Path:
    return top / path.removeprefix(mount_root).lstrip("/")


def _accepts(directory: Path, version: int, controller: str) -> bool:
    trial = directory / f"{PREFIX}.{identity(os.getpid())}.trial"
    try:
        if directory.name == PREFIX:
            directory.mkdir(exist_ok=True)
        trial.mkdir()
        try:
            if version == 2 and controller not in (trial / "cgroup.controllers").read_text().split():
                return False
            _limit(trial, version, controller, SandboxLimits(memory_mb=64, pids=16, cpus=1.0))
            return os.access(trial / "cgroup.procs", os.W_OK)
        finally:
            trial.rmdir()
    except OSError as error:
        if is_silence(error) or error.errno == errno.ENOSPC:
            raise BlockingIOError(errno.EAGAIN, str(error)) from error
        return False


def _sweep(directory: Path) -> None:
    for group in directory.glob(f"{PREFIX}.*.*"):
        if has_ended(group.name.removeprefix(f"{PREFIX}.").rpartition(".")[0]):
            with suppress(OSError):  # another process may sweep it, too
                remove_directory(group)


def _write_optional(path: Path, text: str) -> None:
    # Swap accounting is optional in the kernel.
    try:
        _write(path, text)
    except OSError:
        return


def _write(path: Path, text: str) -> None:
    # Faster than a file object.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
