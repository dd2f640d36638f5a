"""Starting the supervisor of one sandbox in its isolation tier, and taking all of it away again."""

import os
import shutil
import signal
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
from tools.sandbox.processes import children, identity
from tools.sandbox.tiers import Tier

_START_S = 30.0
_STOP_S = 2.0
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
"""All that the supervisor inherits: whatever process 1 has, the agent's side could come to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A running supervisor."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    workdir: str
    enforced: frozenset[str]
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
    root = rootfs.steps(disk_bytes=limits.disk_mb << 20, uid=who.uid, gid=who.gid, extra=extra)
    ours, theirs = socket.socketpair()
    undo.callback(ours.close)
    log = machine.memory_file(b"")
    with ExitStack() as passed:
        passed.callback(theirs.close)
        passed.callback(os.close, log)
        fds = [theirs.fileno(), machine.supervisor_code(tiers.needs_confinement(tier, who))]

        def inherit(fd: int) -> int:
            passed.callback(os.close, fd)
            fds.append(fd)
            return fd

        settings["guard_fd"] = str(inherit(os.pidfd_open(os.getpid())))
        settings["oom_fd"] = str(inherit(os.open(group.oom_file, os.O_RDONLY))) if group.oom_file else "-1"
        command = tiers.command(tier, who, group, root, lambda data: inherit(machine.memory_file(data)))
        process = subprocess.Popen(
            [*command, str(fds[1]), str(fds[0])], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=log, env=_ENVIRONMENT, cwd="/", pass_fds=fds, start_new_session=True,
        )  # fmt: skip
        undo.callback(_end, process)
        theirs.close()
        if not _greet(ours, _config(tier, settings, root)):
            process.wait(_STOP_S)
            raise OSError(_last_words(log) or f"exit status {process.returncode}")
    return Session(
        process=process,
        channel=ours,
        workdir=settings["workdir"],
        enforced=tiers.enforced(tier, who, group),
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


def _greet(channel: socket.socket, config: bytes) -> bool:
    channel.settimeout(_START_S)
    expected = frames.pack(frames.READY)
    try:
        channel.sendall(config)
        return channel.recv(len(expected), socket.MSG_WAITALL) == expected
    except ConnectionError:
        return False


def _last_words(log: int) -> str:
    return os.pread(log, 2000, 0).decode("utf-8", "replace").strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        for pid in [*children(process.pid), process.pid]:
            os.kill(pid, signal.SIGKILL)
        process.wait(_STOP_S)
