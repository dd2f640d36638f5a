"""Starting the supervisor of a sandbox in its isolation tier."""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from tools.errors import AgentCausedError, SandboxCreateError, SandboxUnavailable
from tools.sandbox.base import SandboxLimits
from tools.sandbox.host import seccomp
from tools.sandbox.host.layout import VERIFIER_DIR, most_files
from tools.sandbox.host.ownership import identity, remove_folder
from tools.sandbox.host.silence import SilentStartError, is_silence
from tools.sandbox.inside import held_files
from tools.sandbox.inside.held_files import Files
from tools.sandbox.inside.processes import running, send
from tools.sandbox.local import cgroup, rootfs, tiers
from tools.sandbox.local.cgroup import Group
from tools.sandbox.local.fork_server import ForkedProcess, fork_server, numbers
from tools.sandbox.local.packages import folder_of
from tools.sandbox.local.rootfs import Tree
from tools.sandbox.local.session import Session, configuration, end, greet
from tools.sandbox.local.tiers import Agent, Tier

_WAITS_IN_CHANNEL_BYTES = 64 << 10
"""Socket buffer size; long configurations exceed it."""


def start_in_namespaces(
    limits: SandboxLimits, undo: ExitStack, files: Mapping[str, bytes] | None, tree: Tree | None = None
) -> Session:
    who = tiers.agent()
    if tree is not None and tree.writable:
        who = Agent(root=True, uid=tree.uid, gid=tree.uid)
    group = cgroup.create(limits)
    undo.callback(cgroup.remove, group)
    settings = tiers.settings("B", who, limits, group) | numbers(group, has_tree=tree is not None)
    settings["held"] = "" if files is None else VERIFIER_DIR
    settings["packages"] = folder_of(limits.packages)
    kind = None if tree is None else "tree" if tree.writable else "copy"
    owners = (tree.uid, who.uid) if tree is not None and not tree.writable else ()
    own = rootfs.own_steps(limits, uid=who.uid, gid=who.gid, tree=kind)
    steps = [step.words() for step in own]
    config = configuration(settings, seccomp.program(), steps, files)
    ours, theirs = socket.socketpair()
    undo.callback(ours.close)
    with theirs, nullcontext() if tree is None else tree.mount() as mount:
        if len(config) <= _WAITS_IN_CHANNEL_BYTES:
            ours.sendall(config)
            config = b""
        process = fork_server(limits.network, limits.read_only).fork(theirs, group, mount, owners)
        undo.callback(end, process)
    greet(ours, process, config)
    return Session(
        process=process,
        channel=ours,
        workdir=settings["workdir"],
        enforced=tiers.list_enforced("B", who, group, limits),
        lacks=tiers.lacks("B", who, limits),
        group=group,
        directory=None,
    )


_LANDLOCK_ABI = 7
"""The newest Landlock version that `inside.kernel` supports."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_TERMINALS = ("/dev/ptmx", "/dev/pts", "/dev/tty")
"""Terminals of other users are closed by their mode; those of our own user would be open."""
_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf")
_SUBFOLDERS = ("work", "tmp", "run")
_LOST = "lost"
"""Created by the monitor if the supervisor was killed."""
_END_S = 15.0
"""More than a monitor needs for a fork storm."""


def start_without_namespaces(
    tier: Tier, limits: SandboxLimits, undo: ExitStack, files: Mapping[str, bytes] | None
) -> Session:
    who = tiers.agent()
    group = cgroup.create(limits)
    undo.callback(cgroup.remove, group)
    base = _make_folder(who, undo)
    disk_bytes = limits.disk_mb << 20
    settings = tiers.settings(tier, who, limits, group) | {
        "base": base, "lost": f"{base}/{_LOST}", "workdir": f"{base}/work",
        "tmp_dir": f"{base}/tmp", "run_dir": f"{base}/run", "landlock_abi": str(_LANDLOCK_ABI),
        "disk": str(disk_bytes), "files": str(most_files(disk_bytes)), "packages": folder_of(limits.packages),
    }  # fmt: skip
    if files is not None:
        undo.callback(remove_folder, base)
        settings |= _hold(list(files.items()), who, settings)
    lent = limits.read_only
    ours, process = _start_supervisor(who, group, lent, settings, undo)

    def again(undo: ExitStack) -> tuple[socket.socket, ForkedProcess]:
        return _start_supervisor(who, group, lent, {**settings, "shell_lost": "1"}, undo)

    return Session(
        process=process,
        channel=ours,
        workdir=settings["workdir"],
        enforced=tiers.list_enforced(tier, who, group, limits),
        lacks=tiers.lacks(tier, who, limits),
        group=group,
        directory=base,
        # A supervisor of root is out of the agent's reach.
        again=None if who.root else again,
    )


def resume(session: Session) -> Session:
    """Start another supervisor after the agent killed the session's own.

    Raises:
        SandboxUnavailable: if it ended otherwise, or the fork server does not answer.
        AgentCausedError: if no other supervisor starts.
    """
    lost = Path(session.directory or "", _LOST)
    if session.again is None or not session.process.ends(within_s=_END_S) or not lost.exists():
        raise SandboxUnavailable("the sandbox died")
    try:
        lost.unlink()
        with ExitStack() as undo:
            channel, process = session.again(undo)
            undo.pop_all()
    except OSError as error:
        if is_silence(error):
            raise SandboxUnavailable(f"the sandbox died, and no other supervisor answers: {error}") from error
        reason = f"the sandbox has no supervisor any more: {error}"
        raise AgentCausedError(reason, cause="sandbox_lost") from error
    return replace(session, channel=channel, process=process)


def _start_supervisor(
    who: Agent, group: Group, lent: tuple[str, ...], settings: dict[str, str], undo: ExitStack
) -> tuple[socket.socket, ForkedProcess]:
    ours, theirs = socket.socketpair()
    undo.callback(ours.close)
    with theirs:
        process = Monitor(fork_server("plain").fork(theirs, group).pidfd)
        undo.callback(end, process)
    settings |= numbers(group)
    program = seccomp.program(shared_kernel=True, shared_user=not who.root)
    greet(ours, process, configuration(settings, program, _rules(settings, lent, who)))
    return ours, process


def _make_folder(who: Agent, undo: ExitStack) -> str:
    base = tempfile.mkdtemp(prefix=f"{cgroup.PREFIX}.{identity(os.getpid())}.")
    undo.callback(_remove_unused, base)
    for name in _SUBFOLDERS:
        Path(base, name).mkdir(mode=0o700)
    if who.root:
        # The supervisor lacks DAC_OVERRIDE, so it needs access through the group.
        for path, mode in ((base, 0o710), (f"{base}/run", 0o750)):
            os.chown(path, -1, who.gid)
            Path(path).chmod(mode)
    return base


def _hold(files: Files, who: Agent, settings: Mapping[str, str]) -> dict[str, str]:
    for path, _ in files:
        if path.startswith("/"):
            raise OSError(f"a verifier's file cannot be outside of the workspace, at {path!r}")
    held, workdir = f"{settings['base']}/verifier", settings["workdir"]  # the agent cannot change the base
    Path(held).mkdir()
    Path(held).chmod(0o755)
    held_files.keep(files, held, workdir)
    more = {"held": held, "disk": str(int(settings["disk"]) + sum(len(data) for _, data in files))}
    if who.root:
        held_files.copy_as_owner(files, workdir)
        return more | {"workdir_owner": "root"}
    held_files.link(files, held, workdir)
    return more


def _remove_unused(base: str) -> None:
    """Remove an unused folder without opening it: no descriptor may be left."""
    for name in (*_SUBFOLDERS, ""):
        with suppress(OSError):
            Path(base, name).rmdir()


def _rules(settings: Mapping[str, str], lent: tuple[str, ...], who: Agent) -> list[tuple[str, str]]:
    devices = (*_DEVICES, *_TERMINALS) if who.root else _DEVICES
    allowed = [*rootfs.read_rules(lent), *(("read", path) for path in ("/proc", *_NETWORK))]
    allowed += [("device", path) for path in devices]
    # The monitor's files in the base must not come from the agent.
    allowed += [("write", path) for path in (settings["tmp_dir"], settings["run_dir"])]
    # If the agent is our own user, a verifier's files are links in the workspace.
    allowed.append(("add" if settings["held"] and not who.root else "write", settings["workdir"]))
    return [*allowed, ("read", f"{settings['base']}/verifier")]


class Monitor(ForkedProcess):
    def kill(self) -> None:
        """End everything below first: no process leaves a living monitor."""
        deadline = time.monotonic() + _END_S
        monitor = self.pid
        while monitor > 0 and (below := running(monitor)) and time.monotonic() < deadline:
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in below:
                    send(pid, number)
            time.sleep(0.002)
        super().kill()


def start(
    tier: Tier, limits: SandboxLimits, files: Mapping[str, bytes] | None = None, tree: Tree | None = None
) -> Session:
    """Start a session and wait until it answers, or raise SandboxCreateError; nothing of it remains then."""
    try:
        with ExitStack() as undo:
            if tier == "B":
                session = start_in_namespaces(limits, undo, files, tree)
            else:
                session = start_without_namespaces(tier, limits, undo, files)
            undo.pop_all()
            return session
    except (OSError, EOFError, subprocess.SubprocessError) as error:
        kind = SilentStartError if is_silence(error) else SandboxCreateError
        raise kind(f"no sandbox of tier {tier}: {error}") from error
