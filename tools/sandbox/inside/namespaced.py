"""Supervisors in namespaces of their own, forked from a process that has the root they share already.

Namespaces come with the child, in one call, and its mounts are a copy of those here: a sandbox only adds what
belongs to it alone. Nothing of the host's files is in this process but that root.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct

from tools.sandbox.inside import mounts, prctl, supervisor
from tools.sandbox.inside.account import keep_score_open
from tools.sandbox.inside.configuration import Configuration
from tools.sandbox.inside.prctl import CONTROL, failure, libc, write_file

_NEW_MOUNTS, _NEW_CGROUP, _NEW_USER, _NEW_NET = 0x00020000, 0x02000000, 0x10000000, 0x40000000
_ALWAYS = _NEW_MOUNTS | 0x20000000 | 0x08000000 | 0x04000000
"""CLONE_NEW* of mounts, processes, IPC and the host's name."""
_CLONE3, _CLONE_PIDFD = 435, 0x1000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


class Namespaced:
    """Forks into namespaces; without root into a user namespace of its own, too."""

    def __init__(self, user_map: bytes, group_map: bytes, network: str, steps: list[list[str]]) -> None:
        self._maps = (user_map, group_map)
        user = _NEW_USER if user_map else 0
        if libc.unshare(_NEW_MOUNTS | user):
            raise failure("unshare")
        self.join()
        mounts.build_root(steps)
        self._flags = _ALWAYS | user | (0 if network == "full" else _NEW_NET) | _CLONE_PIDFD
        self._pidfd = ctypes.c_int(-1)

    def fork(self) -> tuple[int, int]:
        """Fork; process id and a descriptor of the child, or 0 and -1 in the child itself.

        Nothing of Python's own is put right in the child as `os.fork` would: there is one thread, and what it
        would touch would be memory that every sandbox has for itself.

        Raises:
            OSError: there is no child.
        """
        address = ctypes.addressof(self._pidfd)
        arguments = struct.pack("11Q", self._flags, address, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
        pid = libc.syscall(ctypes.c_long(_CLONE3), arguments, ctypes.c_size_t(len(arguments)))
        if pid < 0:
            raise failure("clone3")
        return pid, self._pidfd.value if pid else -1

    def join(self) -> None:
        """Become the only user of a new user namespace."""
        user_map, group_map = self._maps
        if user_map:
            write_file("/proc/self/setgroups", b"deny")
            write_file("/proc/self/uid_map", user_map)
            write_file("/proc/self/gid_map", group_map)

    def serve(self) -> None:
        """Add what is this sandbox's own, give up privileges and take requests."""
        # Only now, so that the groups just joined are all that can be seen of them.
        if libc.unshare(_NEW_CGROUP):
            raise failure("unshare")
        config = Configuration.read(CONTROL)
        settings = config.settings
        keep_score_open(settings)
        mounts.add(config.steps, settings["run_dir"])
        drop = settings["drop"] == "1"
        if settings["held"]:
            owner = (int(settings["uid"]), int(settings["gid"])) if drop else (-1, -1)
            mounts.hold(config.files, settings["held"], settings["workdir"], owner)
        if settings["network"] == "none":
            _raise_loopback()
        socket.sethostname(settings["host_name"])
        prctl.keep_capabilities(prctl.KEPT_CAPABILITIES if drop else 0)
        prctl.no_new_privileges()
        if config.seccomp:
            prctl.filter_calls(config.seccomp)
        if not drop:
            # The agent has the same user.
            prctl.hide_process()
        supervisor.serve(CONTROL, config)


def _raise_loopback() -> None:
    # A socket of Python's would copy 160 KB of the fork server for each sandbox.
    probe = libc.socket(socket.AF_INET, socket.SOCK_DGRAM, 0)
    request = ctypes.create_string_buffer(struct.pack("16sh14x", b"lo", _IFF_UP))
    if probe < 0 or libc.ioctl(probe, ctypes.c_ulong(_SIOCSIFFLAGS), request):
        raise failure("loopback")
    os.close(probe)
