"""Forks supervisors into namespaces of their own, from a process that has the root they share already.

Namespaces come with the child, in one call, and its mounts are a copy of those here: a sandbox only adds what
belongs to it alone. Nothing of the host's is in this process, and nothing of the host's files but that root.
"""

from __future__ import annotations

import _socket
import ctypes
import fcntl
import gc
import marshal
import os
import struct

from tools.sandbox.inside import confine, frames, mounts, rights
from tools.sandbox.inside.birth import CONTROL, keep_only, score, write
from tools.sandbox.inside.boot import Config
from tools.sandbox.inside.prctl import failure, libc
from tools.sandbox.inside.signals import forget_children
from tools.sandbox.inside.spawn import own_descriptor_limit

_NEW_MOUNTS, _NEW_CGROUP, _NEW_USER, _NEW_NET = 0x00020000, 0x02000000, 0x10000000, 0x40000000
_ALWAYS = _NEW_MOUNTS | 0x20000000 | 0x08000000 | 0x04000000
"""CLONE_NEW* of mounts, processes, IPC and the host's name."""
_CLONE3, _CLONE_PIDFD, _SIGCHLD = 435, 0x1000, 17
_REQUEST_BYTES = 1 << 16
_FDS = 8
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

_pidfd = ctypes.c_int(-1)


def enter(requests: int) -> None:
    """Take the shared root, then fork a supervisor for each request until the host is gone."""
    own_descriptor_limit()
    # Whatever its number is, no program of an agent may have it.
    os.set_inheritable(requests, False)
    # Nobody waits for them: they are reaped by the kernel, and the host has descriptors to see their end.
    forget_children()
    host = _socket.socket(fileno=requests)
    user_map, group_map, network, steps = marshal.loads(host.recv(_REQUEST_BYTES))
    if not user_map:
        score()
    if libc.unshare(_NEW_MOUNTS | (_NEW_USER if user_map else 0)):
        raise failure("unshare")
    _map(user_map, group_map)
    mounts.build_root(steps, keep_proc=bool(user_map))
    namespaces = _ALWAYS | (0 if network == "full" else _NEW_NET) | (_NEW_USER if user_map else 0)
    gc.collect()
    # What is here now stays shared with every child: no collection touches it.
    gc.freeze()
    while True:
        request, fds, _ = rights.receive(host, _REQUEST_BYTES, _FDS)
        if not request:
            os._exit(0)
        pid = _clone(namespaces)
        if pid == 0:
            _become(int(request), fds, user_map, group_map)
        for fd in fds:
            os.close(fd)
        if pid < 0:
            host.send(repr(failure("clone3")).encode())
            continue
        rights.send(host, frames.BORN, _pidfd.value)
        os.close(_pidfd.value)


def _clone(namespaces: int) -> int:
    """The child's process id, 0 in the child itself, or -1; `_pidfd` is a descriptor of it.

    Nothing of Python's own is put right in the child as `os.fork` would: there is one thread, and what it
    would touch would be memory that every sandbox has for itself.
    """
    flags = namespaces | _CLONE_PIDFD
    arguments = struct.pack("11Q", flags, ctypes.addressof(_pidfd), 0, 0, _SIGCHLD, 0, 0, 0, 0, 0, 0)
    return libc.syscall(ctypes.c_long(_CLONE3), arguments, ctypes.c_size_t(len(arguments)))


def _become(groups: int, fds: list[int], user_map: bytes, group_map: bytes) -> None:
    try:
        keep_only(fds)
        os.setsid()
        _map(user_map, group_map)
        for fd in range(CONTROL + len(fds) - groups, CONTROL + len(fds)):
            os.write(fd, b"0")
            os.close(fd)
        # Only now, so that the groups just joined are all that can be seen of them.
        if libc.unshare(_NEW_CGROUP):
            raise failure("unshare")
        config = Config(CONTROL, inherited=False)
        mounts.add(config.steps, config.settings["run_dir"])
        if config.settings["network"] == "none":
            _raise_loopback()
        _socket.sethostname(config.settings["host_name"])
        confine.serve(CONTROL, config)
    except BaseException as error:  # noqa: BLE001  # the host is told why nothing was born
        os.write(CONTROL, repr(error).encode()[:2000])
    finally:
        os._exit(70)


def _map(user_map: bytes, group_map: bytes) -> None:
    if user_map:
        write("/proc/self/setgroups", b"deny")
        write("/proc/self/uid_map", user_map)
        write("/proc/self/gid_map", group_map)


def _raise_loopback() -> None:
    probe = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    request = struct.pack("16sh14x", b"lo", 0)
    (flags,) = struct.unpack_from("h", fcntl.ioctl(probe.fileno(), _SIOCGIFFLAGS, request), 16)
    fcntl.ioctl(probe.fileno(), _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))
    probe.close()
