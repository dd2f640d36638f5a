"""Starting the supervisor of one sandbox in its isolation tier."""

import os
import socket
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tools.errors import SandboxCreateError
from tools.sandbox import cgroup, fenced, machine, rootfs, spaces, tiers, trees
from tools.sandbox.base import SandboxLimits
from tools.sandbox.processes import identity
from tools.sandbox.program import Program
from tools.sandbox.session import Session, configuration, end, greet
from tools.sandbox.tiers import Tier


def start(tier: Tier, limits: SandboxLimits) -> Session:
    """Start a session and wait until it answers; blocks, so call it in a thread.

    Raises:
        SandboxCreateError: it did not start; nothing of it is left.
    """
    try:
        with ExitStack() as undo:
            session = _start(tier, limits, undo)
            undo.pop_all()
            return session
    except (OSError, EOFError, subprocess.SubprocessError) as error:
        raise SandboxCreateError(f"no sandbox of tier {tier}: {error}") from error


def _start(tier: Tier, limits: SandboxLimits, undo: ExitStack) -> Session:
    if tier == "B":
        return spaces.start(limits, undo)
    if tier == "C":
        return fenced.start(limits, undo)
    who = tiers.agent(tier)
    group = cgroup.create(limits)
    undo.callback(cgroup.remove, group)
    settings = tiers.settings(tier, who, limits, group)
    directory = _directory(settings, undo) if tier == "D" else None
    extra = machine.extra_directories()
    root = rootfs.steps(limits, uid=who.uid, gid=who.gid, extra=extra)
    ours, theirs = socket.socketpair()
    undo.callback(ours.close)
    with ExitStack() as passed:
        passed.callback(theirs.close)
        fds: list[int] = []

        def inherit(fd: int) -> int:
            passed.callback(os.close, fd)
            fds.append(fd)
            return fd

        guard = inherit(os.pidfd_open(os.getpid()))
        oom = inherit(os.open(group.oom_file, os.O_RDONLY)) if group.oom_file else -1
        code = machine.supervisor_code(("prctl", "confine") if tiers.needs_confinement(tier, who) else ())
        command = tiers.command(
            tier, who, group, root, limits.network, lambda data: inherit(machine.memory_file(data))
        )
        control = theirs.fileno()
        process = Program([*command, str(code), str(control)], [*fds, code, control])
        undo.callback(end, process)
        theirs.close()
        settings |= {"guard_fd": str(guard), "oom_fd": str(oom), "line": "1"}
        line = greet(ours, process, configuration(settings))
    return Session(
        process=process,
        channel=ours,
        line=line,
        workdir=settings["workdir"],
        enforced=tiers.enforced(tier, who, group, limits),
        lacks=tiers.lacks(tier, who, limits),
        group=group,
        directory=directory,
    )


def _directory(settings: dict[str, str], undo: ExitStack) -> str:
    directory = tempfile.mkdtemp(prefix=f"{cgroup.PREFIX}.{identity(os.getpid())}.")
    undo.callback(trees.remove, directory)
    Path(directory).chmod(0o711)
    for name in ("workdir", "run_dir"):
        settings[name] = f"{directory}/{name}"
        Path(settings[name]).mkdir(mode=0o755)
    return directory
