"""Forks supervisors from a process that is already warm: a sandbox starts without starting an interpreter.

It runs on the host with nothing of the host's in it: a made-up environment, no descriptor but its requests.
"""

from __future__ import annotations

import gc
import os
import socket

from tools.sandbox.inside import confine, fence, frames
from tools.sandbox.inside.prctl import adopt_orphans, failure, libc
from tools.sandbox.inside.signals import forget_children
from tools.sandbox.inside.spawn import own_descriptor_limit

_NAMESPACES = 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000 | 0x02000000
"""CLONE_NEW* of mounts, processes, network, IPC, host name and control groups."""
_NEW_NET, _NEW_USER = 0x40000000, 0x10000000
_REQUEST_BYTES = 1 << 16
_FDS = 3
_CONTROL = 3
"""The channel; the guard and the counter of memory kills follow."""


def enter(requests: int) -> None:
    """Fork a supervisor for each request until the host is gone."""
    own_descriptor_limit()
    # Nobody waits for them: they are reaped by the kernel, and the host has descriptors to see their end.
    forget_children()
    adopt_orphans()
    gc.collect()
    # What is here now stays shared with every child: no collection touches it.
    gc.freeze()
    with socket.socket(fileno=requests) as host:
        while True:
            request, fds, _, _ = socket.recv_fds(host, _REQUEST_BYTES, _FDS)
            if not request:
                os._exit(0)
            if os.fork() == 0:
                _bear(request, fds)
            for fd in fds:
                os.close(fd)


def _bear(request: bytes, fds: list[int]) -> None:
    try:
        _keep_only(fds)
        _, (user_map, group_map, how, *groups) = frames.unpack(request)
        os.setsid()
        for path in groups:
            _write(os.fsdecode(path), b"0")
        if how == b"fenced":
            _score()
            _tell_birth(os.getpid())
            fence.enter(_CONTROL)
        _separate(_NAMESPACES & ~_NEW_NET if how == b"full" else _NAMESPACES, user_map, group_map)
        pid = os.fork()
        if pid:
            _tell_birth(pid)
            os._exit(0)
        confine.own_mounts()
        confine.enter(_CONTROL)
    except BaseException as error:  # noqa: BLE001  # the host is told why nothing was born
        os.write(_CONTROL, repr(error).encode()[:2000])
    finally:
        os._exit(70)


def _tell_birth(pid: int) -> None:
    with socket.socket(fileno=os.dup(_CONTROL)) as host:
        socket.send_fds(host, [frames.BORN], [os.pidfd_open(pid)])


def _keep_only(fds: list[int]) -> None:
    high = [os.dup2(fd, 100 + number) for number, fd in enumerate(fds)]
    for number, fd in enumerate(high):
        os.dup2(fd, _CONTROL + number)
    os.closerange(_CONTROL + len(fds), 4096)


def _separate(namespaces: int, user_map: bytes, group_map: bytes) -> None:
    if libc.unshare(namespaces | (_NEW_USER if user_map else 0)):
        raise failure("unshare")
    if user_map:
        _write("/proc/self/setgroups", b"deny")
        _write("/proc/self/uid_map", user_map)
        _write("/proc/self/gid_map", group_map)
        return
    _score()


def _score() -> None:
    try:
        _write("/proc/self/oom_score_adj", b"-900")
    except PermissionError:
        pass  # a root without this privilege; the agent's processes are preferred anyway


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
