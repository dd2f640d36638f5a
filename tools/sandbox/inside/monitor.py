"""Supervisors without namespaces: each restricted by Landlock, with a monitor that is not.

The monitor outlives whatever the agent does to the supervisor: nobody inside can signal or trace it. It kills
all that runs inside when the supervisor or the host ends, and whatever fills the folder of the sandbox.
"""

from __future__ import annotations

import os
import select
import signal
import time

from tools.sandbox.inside import landlock, prctl, supervisor
from tools.sandbox.inside.account import Account, keep_score_open
from tools.sandbox.inside.configuration import Configuration
from tools.sandbox.inside.prctl import CONTROL
from tools.sandbox.inside.processes import running, send
from tools.sandbox.inside.quota import Quota

_SEES_ALL_FILES = 1 << 1 | 1 << 2
"""DAC_OVERRIDE and DAC_READ_SEARCH, to count files in directories that only the agent may read."""
_END_S, _DIE_S = 10.0, 1.0


class Monitored:
    """Forks monitors, each of which forks its supervisor."""

    def __init__(self) -> None:
        prctl.adopt_orphans()

    def fork(self) -> tuple[int, int]:
        """Fork; process id and a descriptor of the child, or 0 and -1 in the child itself.

        Raises:
            OSError: there is no child.
        """
        pid = os.fork()
        return pid, os.pidfd_open(pid) if pid else -1

    def join(self) -> None:
        """Nothing to do before the child joins its control groups."""

    def serve(self) -> None:
        """Fork the supervisor and watch over it; ends the process.

        Raises:
            OSError: this kernel cannot restrict.
        """
        config = Configuration.read(CONTROL)
        settings = config.settings
        drop = settings["drop"] == "1"
        prctl.adopt_orphans()
        if settings["confine"] == "1":
            prctl.no_new_privileges()
            prctl.keep_capabilities(prctl.KEPT_CAPABILITIES | _SEES_ALL_FILES if drop else 0)
        itself = os.pidfd_open(os.getpid())
        pid = os.fork()
        if pid == 0:
            os.close(int(settings["guard_fd"]))
            settings["guard_fd"] = str(itself)
            _serve(config, drop)
        if not drop:
            prctl.hide_process()
        os.close(CONTROL)
        os.close(itself)
        _watch(pid, settings)


def _serve(config: Configuration, drop: bool) -> None:
    settings = config.settings
    keep_score_open(settings)
    prctl.adopt_orphans()
    # It changes owners while it still may reach everything.
    Account(settings, config.env).own(settings["tmp_dir"])
    if settings["confine"] == "1":
        _restrict(config, drop)
    if not drop:
        prctl.hide_process()
    supervisor.serve(CONTROL, config)


def _restrict(config: Configuration, drop: bool) -> None:
    prctl.keep_capabilities(prctl.KEPT_CAPABILITIES if drop else 0)
    version = min(landlock.abi(), int(config.settings["landlock_abi"]))
    if version < (1 if drop else landlock.SIGNAL_SCOPE_ABI):
        needed = (
            "Landlock (Linux 5.13)" if drop else "Landlock that keeps signals inside (Linux 6.12), or root"
        )
        raise OSError(f"this kernel has Landlock ABI {version}; without namespaces it needs {needed}")
    landlock.restrict(config.steps, version)
    if config.seccomp:
        prctl.filter_calls(config.seccomp)
    elif not drop:
        raise OSError("the system calls of this processor are not known, and only root can do without")


def _watch(pid: int, settings: dict[str, str]) -> None:
    guard, ended = int(settings["guard_fd"]), os.pidfd_open(pid)
    poll = select.poll()
    poll.register(guard, select.POLLIN)
    poll.register(ended, select.POLLIN)
    quota = Quota(settings["base"], int(settings["disk"]), int(settings["files"]))
    wait_s = 0.0
    # An agent of the same user can stop the supervisor too: that is as good as killing it.
    while not poll.poll(int(wait_s * 1000)) and not os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG):
        over, wait_s = quota.look()
        if over:
            _kill_agents(pid)
            quota.settle()
    _kill_all()
    if _was_killed(pid):
        if settings["drop"] != "1":
            # The agent may have changed its mode, which Landlock does not know.
            os.chmod(settings["base"], 0o700)
        os.close(os.open(settings["lost"], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    os._exit(0)


def _kill_agents(spare: int) -> None:
    """Kill what runs now; the supervisor lives, and what it starts meanwhile is another command."""
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
    """Whether a signal ended it; nothing is left for a process 1 that may not wait for its children."""
    killed = False
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return killed
            killed = killed or (pid == supervisor and os.WIFSIGNALED(status))
    except ChildProcessError:
        return killed
