"""Tier B, the host's side: a control group, what is this sandbox's own, and a birth in namespaces."""

import os
import socket
from contextlib import ExitStack

from tools.sandbox import cgroup, rootfs, seccomp, tiers
from tools.sandbox.base import SandboxLimits
from tools.sandbox.nursery import GUARD_FD, OOM_FD, nursery
from tools.sandbox.session import Session, configuration, end, greet

_WAITS_IN_CHANNEL_BYTES = 64 << 10
"""Sockets hold this much before anybody reads; a long list of host names makes it more."""


def start(limits: SandboxLimits, undo: ExitStack) -> Session:
    """Start a session in namespaces of its own and wait until it answers; blocks.

    Args:
        limits: of the sandbox.
        undo: takes everything away again when a later step fails.

    Raises:
        OSError: it did not start.
    """
    who = tiers.agent("B")
    group = cgroup.create(limits)
    undo.callback(cgroup.remove, group)
    fds = {"guard_fd": str(GUARD_FD), "oom_fd": str(OOM_FD if group.oom_file else -1)}
    settings = tiers.settings("B", who, limits, group) | fds | {"line": "1"}
    steps = [step.words() for step in rootfs.own_steps(limits, uid=who.uid, gid=who.gid)]
    ours, theirs = socket.socketpair()
    undo.callback(ours.close)
    with ExitStack() as passed:
        passed.callback(theirs.close)
        opened = _descriptors(group, passed)
        config = configuration(settings, seccomp.program(), steps)
        if len(config) <= _WAITS_IN_CHANNEL_BYTES:
            # The supervisor need not wait for it.
            ours.sendall(config)
            config = b""
        process = nursery(limits.network).bear(ours, theirs, b"%d" % len(group.join_files), opened)
        undo.callback(end, process)
    line = greet(ours, process, config)
    return Session(
        process=process,
        channel=ours,
        line=line,
        workdir=settings["workdir"],
        enforced=tiers.enforced("B", who, group, limits),
        lacks=tiers.lacks("B", who, limits),
        group=group,
        directory=None,
    )


def _descriptors(group: cgroup.Group, passed: ExitStack) -> list[int]:
    """What the supervisor gets beside its channel; those of the groups are last, it joins them first."""
    opened: list[int] = []
    for path in (None, *([group.oom_file] if group.oom_file else []), *group.join_files):
        if path is None:
            opened.append(os.pidfd_open(os.getpid()))
        else:
            opened.append(os.open(path, os.O_RDONLY if path == group.oom_file else os.O_WRONLY))
        passed.callback(os.close, opened[-1])
    return opened
