"""What a solution's process gives up before it runs a line of the solution: it cannot touch another process.

The judge runs as the same user, so without this the solution could kill it, stop it or change its limits. No
privilege is needed, and what the solution starts inherits it.
Only the standard library is there when this runs.
"""

import ctypes
import platform
import struct
from collections.abc import Mapping

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001
_NUMBER_AT, _ARCH_AT = 0, 4
_X32_BIT = 0x40000000

_CALLS: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        (62, 200, 234, 129, 297, 424, 101, 310, 311, 440, 302, 203, 142, 144, 314, 141, 251),
    ),
    "aarch64": (
        0xC00000B7,
        (129, 130, 131, 138, 240, 424, 117, 270, 271, 440, 261, 122, 118, 119, 274, 140, 30),
    ),
}
"""By machine: its audit number, and kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo,
pidfd_send_signal, ptrace, process_vm_readv, process_vm_writev, process_madvise, prlimit64, sched_setaffinity,
sched_setparam, sched_setscheduler, sched_setattr, setpriority and ioprio_set."""
_SET_OWNERS: Mapping[str, tuple[int, int]] = {"x86_64": (72, 16), "aarch64": (25, 29)}
"""fcntl and ioctl: they can make the kernel send a signal to any process of the user."""
_OWNER_COMMANDS = (8, 10, 15)
"""F_SETOWN, F_SETSIG and F_SETOWN_EX."""
_OWNER_REQUESTS = (0x8901, 0x8902)
"""FIOSETOWN and SIOCSPGRP."""
_SECOND_ARGUMENT_AT = 24


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def confine() -> None:
    """Give up signals to, control over and memory of other processes, for good.

    Raises:
        OSError: the kernel refuses. A machine whose call numbers are not known here goes without: what the
            solution does to the judge then costs it the verdict.
    """
    calls = _CALLS.get(platform.machine())
    if calls is None:
        return
    code = _filter(*calls, *_SET_OWNERS[platform.machine()])
    libc = ctypes.CDLL(None, use_errno=True)
    program = _Program(len(code) // 8, code)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "the solution cannot be confined")


def _filter(audit_arch: int, denied: tuple[int, ...], fcntl: int, ioctl: int) -> bytes:
    code = [
        _statement(_LOAD, _ARCH_AT),
        _jump(_JUMP_EQUAL, audit_arch, 1, 0),
        _statement(_RETURN, _EPERM),
        _statement(_LOAD, _NUMBER_AT),
        _jump(_JUMP_AT_LEAST, _X32_BIT, 0, 1),
        _statement(_RETURN, _EPERM),
    ]
    for number in denied:
        code += [_jump(_JUMP_EQUAL, number, 0, 1), _statement(_RETURN, _EPERM)]
    for number, values in ((fcntl, _OWNER_COMMANDS), (ioctl, _OWNER_REQUESTS)):
        body = [_statement(_LOAD, _SECOND_ARGUMENT_AT)]
        for value in values:
            body += [_jump(_JUMP_EQUAL, value, 0, 1), _statement(_RETURN, _EPERM)]
        body.append(_statement(_RETURN, _ALLOW))
        code += [_jump(_JUMP_EQUAL, number, 0, len(body)), *body]
    return b"".join([*code, _statement(_RETURN, _ALLOW)])


def _statement(operation: int, value: int) -> bytes:
    return struct.pack("HBBI", operation, 0, 0, value)


def _jump(operation: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("HBBI", operation, if_true, if_false, value)
