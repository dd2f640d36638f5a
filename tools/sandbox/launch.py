"""Starting the supervisor of one sandbox in its isolation tier, and taking all of it away again."""

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tools.errors import SandboxCreateError
from tools.sandbox import cgroup, machine, rootfs, seccomp, tiers
from tools.sandbox.base import SandboxLimits
from tools.sandbox.inside import frames
from tools.sandbox.nursery import GUARD_FD, OOM_FD, nursery
from tools.sandbox.processes import identity
from tools.sandbox.program import Process, Program
from tools.sandbox.tiers import Tier

_START_S = 30.0
_STOP_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A running supervisor."""

    process: Process
    channel: socket.socket
    workdir: str
    enforced: frozenset[str]
    lacks: frozenset[str]
    group: cgroup.Group
    directory: str | None
    """On the host, of a session without a file system of its own."""


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


def stop(session: Session) -> None:
    """End a session and everything in it; blocks, so call it in a thread."""
    # The supervisor ends when its channel does, and as process 1 takes everything along.
    session.channel.close()
    _end(session.process)
    cgroup.remove(session.group)
    if session.directory is not None:
        shutil.rmtree(session.directory, ignore_errors=True)


def _start(tier: Tier, limits: SandboxLimits, undo: ExitStack) -> Session:
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
        if tier == "B":
            process: Process = nursery().bear(ours, theirs, tiers.birth(who, group, limits.network), fds)
            # There they have numbers of their own.
            guard, oom = GUARD_FD, OOM_FD if group.oom_file else -1
        else:
            code = machine.supervisor_code(("prctl", "confine") if tiers.needs_confinement(tier, who) else ())
            command = tiers.command(
                tier, who, group, root, limits.network, lambda data: inherit(machine.memory_file(data))
            )
            control = theirs.fileno()
            process = Program([*command, str(code), str(control)], [*fds, code, control])
        undo.callback(_end, process)
        theirs.close()
        settings |= {"guard_fd": str(guard), "oom_fd": str(oom)}
        _greet(ours, process, _config(tier, settings, root))
    return Session(
        process=process,
        channel=ours,
        workdir=settings["workdir"],
        enforced=tiers.enforced(tier, who, group, limits),
        lacks=tiers.lacks(tier, limits),
        group=group,
        directory=directory,
    )


def _directory(settings: dict[str, str], undo: ExitStack) -> str:
    directory = tempfile.mkdtemp(prefix=f"{cgroup.PREFIX}.{identity(os.getpid())}.")
    undo.callback(shutil.rmtree, directory, ignore_errors=True)
    Path(directory).chmod(0o711)
    for name in ("workdir", "run_dir"):
        settings[name] = f"{directory}/{name}"
        Path(settings[name]).mkdir(mode=0o755)
    return directory


def _config(tier: Tier, settings: dict[str, str], root: list[rootfs.Step]) -> bytes:
    workdir = settings["workdir"]
    env = {
        "PATH": machine.search_path(), "HOME": workdir, "PWD": workdir, "USER": "agent", "LOGNAME": "agent",
        "LANG": "C.UTF-8", "TERM": "dumb",
    }  # fmt: skip
    built = tier == "B"
    steps = [step.packed() for step in root] if built else []
    return frames.pack(
        frames.CONFIG, _block(settings), _block(env), seccomp.program() if built else b"", *steps
    )


def _block(pairs: dict[str, str]) -> bytes:
    return b"\0".join(os.fsencode(f"{name}={value}") for name, value in pairs.items())


def _greet(channel: socket.socket, process: Process, config: bytes) -> None:
    channel.settimeout(_START_S)
    expected = frames.pack(frames.READY)
    try:
        channel.sendall(config)
        said = channel.recv(len(expected), socket.MSG_WAITALL)
        if said == expected:
            return
        said += channel.recv(2000)
    except ConnectionError:
        said = b""
    process.ends(within_s=_STOP_S)
    raise OSError(process.last_words() or said.decode("utf-8", "replace") or "it ended without a word")


def _end(process: Process) -> None:
    try:
        if not process.ends(within_s=_STOP_S):
            process.kill()
            process.ends(within_s=_STOP_S)
    finally:
        process.close()
