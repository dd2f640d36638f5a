"""A BPF filter of system calls that widen the attack surface."""

import platform
import struct
from functools import cache
from typing import NamedTuple

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEW* of clone and unshare: mount, cgroup, uts, ipc, user, pid and net."""
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_X32_BIT = 0x40000000
_SEGMENT_BYTES = 4096
"""PostgreSQL locks its folder with a small segment. Segments outlive their process."""

_OWNER_COMMANDS = (8, 10, 15)
"""F_SETOWN, F_SETSIG and F_SETOWN_EX of fcntl, which send signals to any process of the user."""
_OWNER_REQUESTS = (0x8901, 0x8902)
"""FIOSETOWN and SIOCSPGRP of ioctl, with the same effect."""

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
"""Others cross namespaces, for example AF_VSOCK to a hypervisor."""
_NETLINK_ROUTE = 0


class _Calls(NamedTuple):
    audit_arch: int
    denied: tuple[int, ...]
    """unshare, setns, mount, umount2, pivot_root, chroot, bpf, perf_event_open, keyctl, add_key, request_key,
    userfaultfd, kexec_load, open_by_handle_at, io_uring_setup, fsopen, move_mount, open_tree, mount_setattr,
    fsmount, init_module, finit_module, delete_module, swapon, semget and msgget."""
    clone: int
    clone3: int
    ioctl: int
    shmget: int
    socket: int
    socketpair: int
    kept_in_kernel: tuple[int, ...]
    """System V objects and message queues outlive their process."""
    watches: tuple[int, ...]
    """inotify_add_watch and fanotify_init reveal events in unreadable folders."""
    of_process: tuple[int, ...]
    """prlimit64, sched_setaffinity and others; the first argument is a process, 0 for the caller."""
    priorities: tuple[tuple[int, int], ...]
    """setpriority and ioprio_set, with the kind "one process"."""
    peers: tuple[int, ...]
    """kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal, ptrace, process_vm_readv,
    process_vm_writev and process_madvise."""
    fcntl: int


_CALLS: dict[str, _Calls] = {
    "x86_64": _Calls(
        audit_arch=0xC000003E,
        denied=(272, 308, 165, 166, 155, 161, 321, 298, 250, 248, 249, 323, 246, 304, 425, 430, 429, 428, 442,
                432, 175, 313, 176, 167, 64, 68),
        clone=56, clone3=435, ioctl=16, shmget=29, socket=41, socketpair=53,
        kept_in_kernel=(29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 220, 240, 241),
        watches=(254, 300), of_process=(302, 203, 142, 144, 314), priorities=((141, 0), (251, 1)),
        peers=(62, 200, 234, 129, 297, 424, 101, 310, 311, 440), fcntl=72,
    ),
    "aarch64": _Calls(
        audit_arch=0xC00000B7,
        denied=(97, 268, 40, 39, 41, 51, 280, 241, 219, 217, 218, 282, 104, 265, 425, 430, 429, 428, 442, 432,
                105, 273, 106, 224, 190, 186),
        clone=220, clone3=435, ioctl=29, shmget=194, socket=198, socketpair=199,
        kept_in_kernel=(194, 196, 195, 190, 193, 191, 186, 189, 188, 187, 192, 180, 181),
        watches=(27, 262), of_process=(261, 122, 118, 119, 274), priorities=((140, 0), (30, 1)),
        peers=(129, 130, 131, 138, 240, 424, 117, 270, 271, 440), fcntl=25,
    ),
}  # fmt: skip


@cache
def program(*, shared_kernel: bool = False, shared_user: bool = False) -> bytes:
    """Return the filter for this machine, empty if its call numbers are unknown.

    Most calls fail with EPERM, other socket families with EAFNOSUPPORT. `clone3`, whose flags a filter cannot
    see, and calls of other processor modes (32 bit, x32) fail with ENOSYS; the C library then uses `clone`.

    Args:
        shared_kernel: the agent has no IPC namespace; all System V IPC fails, too.
        shared_user: host processes have the same user; UNIX sockets, watching folders and changing other
            processes fail, too.
    """
    calls = _CALLS.get(platform.machine())
    if calls is None:
        return b""
    code = _begin(calls)
    for number in (*calls.denied, *(calls.kept_in_kernel if shared_kernel else ())):
        code += _when(number, _DENY)
    if shared_user:
        for number in calls.watches:
            code += _when(number, _DENY)
        for number in calls.of_process:
            code += _when(number, _allow_only(0))
        for number, kind in calls.priorities:
            code += _when(number, _allow_only(kind, 0))
    code += _when(calls.socket, _allow_families(() if shared_user else (_AF_UNIX,)))
    code += _when(calls.socketpair, _allow_only(_AF_UNIX, error=_EAFNOSUPPORT))
    code += _when(calls.clone3, [_refuse(_ENOSYS)])
    code += _when(calls.clone, [_load(0), _jump(_JUMP_ANY_BIT, _NEW_NAMESPACES, 0, 1), *_DENY, _PASS])
    code += _when(calls.ioctl, _deny_values(1, (_TIOCSTI, _TIOCLINUX)))
    # The sizes of segments have 64 bits.
    high = [_load(1, high=True), _jump(_JUMP_EQUAL, 0, 1, 0), *_DENY, _PASS]
    code += _when(calls.shmget, [_load(1), _jump(_JUMP_GREATER_EQUAL, _SEGMENT_BYTES + 1, 2, 0), *high])
    return b"".join((*code, _PASS))


@cache
def without_peers() -> bytes:
    """Return a filter that denies signals to, and control over, other processes."""
    calls = _CALLS.get(platform.machine())
    if calls is None:
        return b""
    code = _begin(calls)
    for number in (*calls.peers, *calls.of_process, *(number for number, _ in calls.priorities)):
        code += _when(number, _DENY)
    code += _when(calls.fcntl, _deny_values(1, _OWNER_COMMANDS))
    code += _when(calls.ioctl, _deny_values(1, _OWNER_REQUESTS))
    return b"".join((*code, _PASS))


def _statement(operation: int, value: int) -> bytes:
    return struct.pack("HBBI", operation, 0, 0, value)


def _jump(operation: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("HBBI", operation, if_true, if_false, value)


def _load(argument: int, *, high: bool = False) -> bytes:
    return _statement(_LOAD, _ARGUMENTS_AT + 8 * argument + 4 * high)


def _refuse(error: int) -> bytes:
    return _statement(_RETURN, _ERRNO | error)


_PASS, _DENY = _statement(_RETURN, _ALLOW), [_refuse(_EPERM)]


def _begin(calls: _Calls) -> list[bytes]:
    """Return a filter's first instructions: deny calls of other processor modes, load the call's number."""
    arch = [_statement(_LOAD, _ARCH_AT), _jump(_JUMP_EQUAL, calls.audit_arch, 1, 0), _refuse(_ENOSYS)]
    x32 = [_statement(_LOAD, _NUMBER_AT), _jump(_JUMP_GREATER_EQUAL, _X32_BIT, 0, 1), _refuse(_ENOSYS)]
    return arch + x32


def _when(number: int, body: list[bytes]) -> list[bytes]:
    return [_jump(_JUMP_EQUAL, number, 0, len(body)), *body]


def _deny_values(argument: int, values: tuple[int, ...]) -> list[bytes]:
    return [_load(argument), *(each for value in values for each in _when(value, _DENY)), _PASS]


def _allow_families(more: tuple[int, ...]) -> list[bytes]:
    route = [_load(2), *_when(_NETLINK_ROUTE, [_PASS]), _refuse(_EAFNOSUPPORT)]
    body = [_load(0), *_when(_AF_NETLINK, route)]
    for family in (*more, _AF_INET, _AF_INET6):
        body += _when(family, [_PASS])
    return [*body, _refuse(_EAFNOSUPPORT)]


def _allow_only(*arguments: int, error: int = _EPERM) -> list[bytes]:
    body: list[bytes] = []
    for index, value in enumerate(arguments):
        body += [_load(index), _jump(_JUMP_EQUAL, value, 1, 0), _refuse(error)]
    return [*body, _PASS]
