"""Supervisors without namespaces: Landlock restricts each of them, but not its monitor.

The monitor, which nobody inside can signal or trace, kills all processes when the supervisor or host ends,
and those that overfill the sandbox's folder.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import time
from typing import NoReturn

from tools.sandbox.inside import kernel, supervisor
from tools.sandbox.inside.account import Account, Configuration, keep_score_open
from tools.sandbox.inside.kernel import CONTROL
from tools.sandbox.inside.processes import running, send

_BLOCK_BYTES = 512
_OFTEN_S, _SELDOM_S = 0.05, 0.25
"""Seconds between checks while free space changes, and while it does not."""
_RECOUNT_S = 1.0
_SHARE = 10
"""Counting takes at most 1/10 of the time."""


class Quota:
    """Limits of a folder, counted again when half of the remaining room could be gone, or after a second."""

    def __init__(self, folder: str, max_bytes: int, max_files: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._free = self._left = self._used = (0, 0)
        self._counted_at = self._spent_s = 0.0
        self._stale = False

    def look(self) -> tuple[bool, float]:
        """Return whether the folder exceeds its limits and grew, and the seconds until the next look."""
        seen = os.statvfs(self._folder)
        free = (seen.f_bfree * seen.f_frsize, seen.f_ffree)
        quiet, self._free = free == self._free, free
        self._stale = self._stale or not quiet
        return self._stale and self._due(free) and self._recount(free), _SELDOM_S if quiet else _OFTEN_S

    def settle(self) -> None:
        self._used = self._count()

    def _due(self, free: tuple[int, int]) -> bool:
        age_s = time.monotonic() - self._counted_at
        if age_s < _SHARE * self._spent_s:
            return False
        bytes_gone, files_gone = self._left[0] - free[0], self._left[1] - free[1]
        bytes_room, files_room = self._max_bytes - self._used[0], self._max_files - self._used[1]
        return age_s > _RECOUNT_S or 2 * bytes_gone > bytes_room or 2 * files_gone > files_room

    def _recount(self, free: tuple[int, int]) -> bool:
        started = time.monotonic()
        before, self._used = self._used, self._count()
        self._left, self._stale = free, False
        self._counted_at = time.monotonic()
        self._spent_s = self._counted_at - started
        over = self._used[0] > self._max_bytes or self._used[1] > self._max_files
        return over and (self._used[0] > before[0] or self._used[1] > before[1])

    def _count(self) -> tuple[int, int]:
        """Return bytes and files, stopping far above the limits."""
        used = files = 0
        linked: set[int] = set()
        folders, root = [self._folder], os.path.realpath(self._folder)
        while folders and files <= 2 * self._max_files:
            for entry in _entries(folders.pop(), root):
                status = _status(entry)
                if status is None or status.st_ino in linked:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    folders.append(entry.path)
                elif status.st_nlink > 1:
                    linked.add(status.st_ino)
                used += status.st_blocks * _BLOCK_BYTES
                files += 1
        return used, files


def _entries(folder: str, root: str) -> list[os.DirEntry[str]]:
    try:
        return _scan(folder)
    except PermissionError:
        pass
    except OSError:
        return []
    try:
        _open_up(folder, root)
        return _scan(folder)
    except OSError:
        return []  # a folder of another user


def _open_up(folder: str, root: str) -> None:
    """Reopen a folder that our own user closed to hide its contents."""
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        itself = f"/proc/self/fd/{handle}"
        # The agent may replace a parent by a link at any moment, so the real path is checked.
        if os.readlink(itself).startswith(f"{root}/"):
            os.chmod(itself, stat.S_IRWXU)
    finally:
        os.close(handle)


def _scan(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return list(found)


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:
        return None


_SEES_ALL_FILES = 1 << 1 | 1 << 2
"""DAC_OVERRIDE and DAC_READ_SEARCH, to count files in the agent's private folders."""
_END_S, _DIE_S = 10.0, 1.0


class Monitored:
    def __init__(self) -> None:
        kernel.adopt_orphans()

    def fork(self) -> tuple[int, int]:
        pid = os.fork()
        return pid, os.pidfd_open(pid) if pid else -1

    def join(self) -> None:
        pass

    def hide_groups(self) -> None:
        pass

    def serve(self) -> str:
        config = Configuration.read(CONTROL)
        settings = config.settings
        drop = settings["drop"] == "1"
        kernel.adopt_orphans()
        if settings["confine"] == "1":
            kernel.no_new_privileges()
            kernel.keep_capabilities(kernel.KEPT_CAPABILITIES | _SEES_ALL_FILES if drop else 0)
        itself = os.pidfd_open(os.getpid())
        pid = os.fork()
        if pid > 0:
            if not drop:
                kernel.hide_process()
            os.close(CONTROL)
            os.close(itself)
            _watch(pid, settings)
        os.close(int(settings["guard_fd"]))
        settings["guard_fd"] = str(itself)
        return _serve(config, drop)


def _serve(config: Configuration, drop: bool) -> str:
    settings = config.settings
    keep_score_open(settings)
    kernel.adopt_orphans()
    # Owners must be changed before Landlock applies.
    Account(settings, config.env).own(settings["tmp_dir"])
    if settings["confine"] == "1":
        _restrict(config, drop)
    if not drop:
        kernel.hide_process()
    return supervisor.serve(CONTROL, config)


def _restrict(config: Configuration, drop: bool) -> None:
    kernel.keep_capabilities(kernel.KEPT_CAPABILITIES if drop else 0)
    version = min(kernel.abi(), int(config.settings["landlock_abi"]))
    if version < (1 if drop else kernel.SIGNAL_SCOPE_ABI):
        needed = (
            "Landlock (Linux 5.13)" if drop else "Landlock that keeps signals inside (Linux 6.12), or root"
        )
        raise OSError(f"this kernel has Landlock ABI {version}; without namespaces it needs {needed}")
    kernel.restrict(config.steps, version)
    if config.seccomp:
        kernel.filter_calls(config.seccomp)
    elif not drop:
        raise OSError("the system calls of this processor are not known, and only root can do without")


def _watch(pid: int, settings: dict[str, str]) -> NoReturn:
    guard, ended = int(settings["guard_fd"]), os.pidfd_open(pid)
    poll = select.poll()
    poll.register(guard, select.POLLIN)
    poll.register(ended, select.POLLIN)
    quota = Quota(settings["base"], int(settings["disk"]), int(settings["files"]))
    wait_s, may_go_on = 0.0, settings["drop"] != "1"
    while not poll.poll(int(wait_s * 1000)):
        if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG):
            # A process outside may have stopped it once; a second stop comes from inside.
            if not may_go_on:
                break
            may_go_on = False
            send(pid, signal.SIGCONT)
        over, wait_s = quota.look()
        if over:
            _kill_agents(pid)
            quota.settle()
    _kill_all()
    if _was_killed(pid):
        if settings["drop"] != "1":
            # Landlock does not keep the agent from changing the mode.
            os.chmod(settings["base"], 0o700)
        os.close(os.open(settings["lost"], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    os._exit(0)


def _kill_agents(spare: int) -> None:
    """Kill all processes except the supervisor and what it starts meanwhile."""
    stopped: set[int] = set()
    fresh = set(running()) - {spare}
    while fresh:
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        stopped |= fresh
        fresh = {pid for pid, (parent, _) in running().items() if parent in stopped} - stopped
    for pid in stopped:
        send(pid, signal.SIGKILL)
    deadline = time.monotonic() + _DIE_S
    while stopped & running().keys() and time.monotonic() < deadline:
        time.sleep(0.001)


def _kill_all() -> None:
    deadline = time.monotonic() + _END_S
    while (below := running()) and time.monotonic() < deadline:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in below:
                send(pid, number)
        time.sleep(0.001)


def _was_killed(supervisor: int) -> bool:
    """Reap all children; return whether a signal ended the supervisor."""
    killed = False
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return killed
            killed = killed or (pid == supervisor and os.WIFSIGNALED(status))
    except ChildProcessError:
        return killed
