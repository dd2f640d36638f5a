"""The fork server: forks supervisors from a warm process with a made-up environment."""

from __future__ import annotations

import ctypes
import gc
import marshal
import os
import signal
import socket
import struct
from contextlib import suppress

from tools.sandbox.inside import kernel, mounts, supervisor
from tools.sandbox.inside.account import Configuration, keep_score_open
from tools.sandbox.inside.kernel import CONTROL, failure, libc, write_file
from tools.sandbox.inside.messages import Died, Forked, encode
from tools.sandbox.inside.monitor import Monitored
from tools.sandbox.inside.spawn import own_descriptor_limit
from tools.sandbox.inside.supervisor import prepare_signals

_NEW_MOUNTS, _NEW_CGROUP, _NEW_USER, _NEW_NET = 0x00020000, 0x02000000, 0x10000000, 0x40000000
_ALWAYS = _NEW_MOUNTS | 0x20000000 | 0x08000000 | 0x04000000
_CLONE3, _CLONE_PIDFD = 435, 0x1000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


class Namespaced:
    """Forks into namespaces, without root also into a user namespace."""

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
        """Fork; return the child's id and pidfd, or (0, -1) in the child.

        Python's `os.fork` hooks would write to memory that the sandboxes share.
        """
        address = ctypes.addressof(self._pidfd)
        arguments = struct.pack("11Q", self._flags, address, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
        pid = libc.syscall(ctypes.c_long(_CLONE3), arguments, ctypes.c_size_t(len(arguments)))
        if pid < 0:
            raise failure("clone3")
        return pid, self._pidfd.value if pid else -1

    def join(self) -> None:
        user_map, group_map = self._maps
        if user_map:
            write_file("/proc/self/setgroups", b"deny")
            write_file("/proc/self/uid_map", user_map)
            write_file("/proc/self/gid_map", group_map)

    def hide_groups(self) -> None:
        if libc.unshare(_NEW_CGROUP):
            raise failure("unshare")

    def serve(self) -> str:
        """Serve as supervisor. In a warm interpreter's process, return its program."""
        config = Configuration.read(CONTROL)
        settings = config.settings
        keep_score_open(settings)
        mounts.add(config.steps, settings["run_dir"], int(settings["tree_fd"]))
        drop = settings["drop"] == "1"
        if settings["held"]:
            owner = (int(settings["uid"]), int(settings["gid"])) if drop else (-1, -1)
            mounts.hold(config.files, settings["held"], settings["workdir"], owner)
        if settings["network"] == "none":
            _raise_loopback()
        socket.sethostname(settings["host_name"])
        kernel.keep_capabilities(kernel.KEPT_CAPABILITIES if drop else 0)
        kernel.no_new_privileges()
        if config.seccomp:
            kernel.filter_calls(config.seccomp)
        if not drop:
            # An agent of the same user could trace this process.
            kernel.hide_process()
        return supervisor.serve(CONTROL, config)


def _raise_loopback() -> None:
    # Python's socket would copy 160 KB of the fork server for each sandbox.
    probe = libc.socket(socket.AF_INET, socket.SOCK_DGRAM, 0)
    request = ctypes.create_string_buffer(struct.pack("16sh14x", b"lo", _IFF_UP))
    if probe < 0 or libc.ioctl(probe, ctypes.c_ulong(_SIOCSIFFLAGS), request):
        raise failure("loopback")
    os.close(probe)


_SETUP_BYTES = 1 << 16
_REQUEST_BYTES, _FDS = 64, 12
TREE = 2
"""Index of the workspace's mount among the descriptors of a request."""
_WORDS = 2000


def enter(requests: int) -> str:
    """Fork a supervisor for each request until the host closes its socket.

    Return in a warm interpreter, with its program.
    """
    own_descriptor_limit()
    # Programs of agents must not inherit this descriptor.
    os.set_inheritable(requests, False)
    prepare_signals(_child_ended)
    host = socket.socket(fileno=requests)
    setup = marshal.loads(host.recv(_SETUP_BYTES))
    _be_killed_last()
    way: Namespaced | Monitored = Monitored() if setup is None else Namespaced(*setup)
    gc.collect()
    # Garbage collection must not write to memory that children share.
    gc.freeze()
    while True:
        request, fds, _, _ = socket.recv_fds(host, _REQUEST_BYTES, _FDS)
        if not request:
            os._exit(0)
        joined, left, *owners = map(int, request.split())
        try:
            if owners:
                mounts.shift_owner(fds[TREE], *owners)
            pid, pidfd = way.fork()
        except OSError as error:
            host.send(encode(Died(repr(error))))
        else:
            if pid == 0:
                return _become(way, fds, joined, left)
            socket.send_fds(host, [encode(Forked())], [pidfd])
            os.close(pidfd)
        for fd in fds:
            os.close(fd)


_forks = True


def _child_ended(_number: int, _frame: object) -> None:
    """Reap children; the host sees their end by itself."""
    try:
        while _forks and os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _become(way: Namespaced | Monitored, fds: list[int], joined: int, left: int) -> str:
    global _forks
    _forks = False
    try:
        _keep_only(fds)
        os.setsid()
        way.join()
        end = CONTROL + len(fds)
        joins, leaves = range(end - left - joined, end - left), range(end - left, end)
        for fd in joins:
            os.write(fd, b"0")
        way.hide_groups()
        for fd in leaves:
            # The supervisor leaves the agent's groups, to survive when they are full; without permission it
            # stays.
            with suppress(OSError):
                os.write(fd, b"0")
            os.close(fd)
        return way.serve()
    except BaseException as error:  # noqa: BLE001  # the host gets the reason
        try:
            os.write(CONTROL, encode(Died(repr(error)[:_WORDS])))
        finally:
            os._exit(70)


def _keep_only(fds: list[int]) -> None:
    """Renumber these descriptors from `CONTROL` on; close all others but the standard ones."""
    high = [os.dup2(fd, 100 + number, inheritable=False) for number, fd in enumerate(fds)]
    for number, fd in enumerate(high):
        os.dup2(fd, CONTROL + number, inheritable=False)
    os.closerange(CONTROL + len(fds), 4096)


def _be_killed_last() -> None:
    try:
        write_file("/proc/self/oom_score_adj", b"-900")
    except PermissionError:
        pass  # agent processes have a higher score anyway
