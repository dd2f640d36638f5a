"""Tier B, the host's side: a control group, what is this sandbox's own, and a supervisor in namespaces."""

import socket
from collections.abc import Mapping
from contextlib import ExitStack

from tools.sandbox.base import SandboxLimits
from tools.sandbox.host import seccomp
from tools.sandbox.host.layout import VERIFIER_DIR
from tools.sandbox.local import cgroup, rootfs, tiers
from tools.sandbox.local.fork_server import fork_server, numbers
from tools.sandbox.local.session import Session, configuration, end, greet

_WAITS_IN_CHANNEL_BYTES = 64 << 10
"""Sockets hold this much before anybody reads; a long list of host names makes it more."""


def start(limits: SandboxLimits, undo: ExitStack, files: Mapping[str, bytes] | None) -> Session:
    """Start a session in namespaces of its own and wait until it answers; blocks.

    Args:
        limits: of the sandbox.
        undo: takes everything away again when a later step fails.
        files: of a verifier, to be held; `None` for a sandbox that is no verification.

    Raises:
        OSError: it did not start.
    """
    who = tiers.agent()
    group = cgroup.create(limits)
    undo.callback(cgroup.remove, group)
    settings = tiers.settings("B", who, limits, group) | numbers(group)
    settings["held"] = "" if files is None else VERIFIER_DIR
    steps = [step.words() for step in rootfs.own_steps(limits, uid=who.uid, gid=who.gid)]
    config = configuration(settings, seccomp.program(), steps, files)
    ours, theirs = socket.socketpair()
    undo.callback(ours.close)
    with theirs:
        if len(config) <= _WAITS_IN_CHANNEL_BYTES:
            # The supervisor need not wait for it.
            ours.sendall(config)
            config = b""
        process = fork_server(limits.network).fork(theirs, group)
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
