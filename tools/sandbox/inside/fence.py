"""Start without namespaces: a supervisor that Landlock fences in, and a keeper outside the fence.

The keeper outlives whatever the agent does to the supervisor: nobody inside can signal or trace it. It kills
all that runs inside when the supervisor or the host ends, and whatever fills the folder of the sandbox.
"""

from __future__ import annotations

import os
import select
import time

from tools.sandbox.inside import landlock, supervisor
from tools.sandbox.inside.account import Account
from tools.sandbox.inside.boot import Config
from tools.sandbox.inside.confine import KEPT_CAPABILITIES
from tools.sandbox.inside.prctl import (
    adopt_orphans,
    filter_calls,
    hide_process,
    keep_capabilities,
    no_new_privileges,
)
from tools.sandbox.inside.processes import running, send
from tools.sandbox.inside.quota import Quota
from tools.sandbox.inside.signals import SIGKILL, SIGSTOP, wait_for_children

_SEES_ALL_FILES = 1 << 1 | 1 << 2
"""DAC_OVERRIDE and DAC_READ_SEARCH, to count files in directories that only the agent may read."""
_END_S, _DIE_S = 10.0, 1.0
_SCORE = "/proc/self/oom_score_adj"


def enter(control: int) -> None:
    """Fork the supervisor and keep it; ends the process.

    Raises:
        OSError: this kernel cannot fence.
    """
    config = Config(control)
    settings = config.settings
    drop = settings["drop"] == "1"
    wait_for_children()
    adopt_orphans()
    if settings["confine"] == "1":
        no_new_privileges()
        keep_capabilities(KEPT_CAPABILITIES | _SEES_ALL_FILES if drop else 0)
    keeper = os.pidfd_open(os.getpid())
    pid = os.fork()
    if pid == 0:
        os.close(int(settings["guard_fd"]))
        settings["guard_fd"] = str(keeper)
        _serve(control, config, drop)
    if not drop:
        hide_process()
    os.close(control)
    os.close(keeper)
    _keep(pid, settings)


def _serve(control: int, config: Config, drop: bool) -> None:
    settings = config.settings
    settings["oom_score_fd"] = str(os.open(_SCORE, os.O_RDWR | os.O_CLOEXEC))
    settings["oom_score"] = os.pread(int(settings["oom_score_fd"]), 16, 0).decode().strip()
    adopt_orphans()
    # It changes owners while it still may reach everything.
    Account(settings, config.env).own(settings["tmp_dir"])
    if settings["confine"] == "1":
        _confine(config, drop)
    if not drop:
        hide_process()
    supervisor.serve(control, config)


def _confine(config: Config, drop: bool) -> None:
    keep_capabilities(KEPT_CAPABILITIES if drop else 0)
    version = min(landlock.abi(), int(config.settings["landlock_abi"]))
    if version < (1 if drop else landlock.SIGNAL_SCOPE_ABI):
        needed = (
            "Landlock (Linux 5.13)" if drop else "Landlock that keeps signals inside (Linux 6.12), or root"
        )
        raise OSError(f"this kernel has Landlock ABI {version}; without namespaces it needs {needed}")
    landlock.restrict(config.steps, version)
    if config.seccomp:
        filter_calls(config.seccomp)
    elif not drop:
        raise OSError("the system calls of this processor are not known, and only root can do without")


def _keep(pid: int, settings: dict[str, str]) -> None:
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
            send(pid, SIGSTOP)
        stopped |= fresh
        fresh = {pid for pid, (parent, _) in running().items() if parent in stopped} - stopped
    for pid in stopped:
        send(pid, SIGKILL)
    deadline = time.monotonic() + _DIE_S
    while stopped & running().keys() and time.monotonic() < deadline:
        time.sleep(0.001)


def _kill_all() -> None:
    deadline = time.monotonic() + _END_S
    while (below := running()) and time.monotonic() < deadline:
        for signal in (SIGSTOP, SIGKILL):
            for pid in below:
                send(pid, signal)
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
