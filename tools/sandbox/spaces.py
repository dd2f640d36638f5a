"""Tier B, the host's side: a control group, what is this sandbox's own, and a birth in namespaces."""

import os
import socket
from contextlib import ExitStack

from tools.sandbox import cgroup, rootfs, seccomp, tiers
from tools.sandbox.base import SandboxLimits
from tools.sandbox.nursery import descriptors, numbers, nursery
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
    who = tiers.agent()
    group = cgroup.create(limits)
    undo.callback(cgroup.remove, group)
    settings = tiers.settings("B", who, limits, group) | numbers(group)
    steps = [step.words() for step in rootfs.own_steps(limits, uid=who.uid, gid=who.gid)]
    ours, theirs = socket.socketpair()
    undo.callback(ours.close)
    with ExitStack() as passed:
        passed.callback(theirs.close)
        opened = descriptors(group, passed)
        # Those of the groups are last: it joins them first.
        for path in group.join_files:
            opened.append(os.open(path, os.O_WRONLY))
            passed.callback(os.close, opened[-1])
        config = configuration(settings, seccomp.program(), steps)
        if len(config) <= _WAITS_IN_CHANNEL_BYTES:
            # The supervisor need not wait for it.
            ours.sendall(config)
            config = b""
        process = nursery(limits.network).bear(ours, theirs, b"%d" % len(group.join_files), opened)
        undo.callback(end, process)
    greet(ours, process, config)
    return Session(
        process=process,
        channel=ours,
        workdir=settings["workdir"],
        enforced=tiers.enforced("B", who, group, limits),
        lacks=tiers.lacks("B", who, limits),
        group=group,
        directory=None,
    )
