"""What a process asks the kernel for itself: what the `os` module has no words for."""

from __future__ import annotations

import ctypes
import os
import struct

_CAPBSET_DROP = 24
_SET_DUMPABLE, _SET_SECCOMP, _SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVS = 4, 22, 36, 38

_CAPABILITY_VERSION = 0x20080522
_LAST_CAPABILITY = 63

CONTROL = 3
"""The channel to the host in a supervisor that was forked."""
KEPT_CAPABILITIES = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 24
"""CHOWN, KILL, SETGID, SETUID and SYS_RESOURCE: to become the agent's user, to bound and to kill it."""

libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def no_new_privileges() -> None:
    """No program started from here ever gains a privilege."""
    _prctl(_SET_NO_NEW_PRIVS, 1)


def hide_process() -> None:
    """No other process of the same user may trace or read this one."""
    _prctl(_SET_DUMPABLE, 0)


def filter_calls(program: bytes) -> None:
    """Put a seccomp program on this process and all that it starts."""
    wanted = _Program(len(program) // 8, program)
    if libc.prctl(_SET_SECCOMP, 2, ctypes.byref(wanted), 0, 0):
        raise failure("seccomp")


def keep_capabilities(wanted: int) -> None:
    """Give up all capabilities but these bits, for good; a machine may have taken some of them already."""
    # A file object with all that decodes it would cost every session memory.
    fd = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    held = os.read(fd, 1 << 14).partition(b"CapPrm:")[2].split(None, 1)[0]
    os.close(fd)
    mask = int(held, 16) & wanted
    for number in range(_LAST_CAPABILITY + 1):
        # A number that this kernel does not know gives EINVAL, and so do all after it.
        if not mask >> number & 1 and libc.prctl(_CAPBSET_DROP, number, 0, 0, 0):
            break
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    if libc.capset(header, struct.pack("6I", low, low, 0, high, high, 0)):
        raise failure("capset")


def write_file(path: str, data: bytes) -> None:
    """Write to one of the kernel's files."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def failure(what: str) -> OSError:
    """The error of the last call."""
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")


def _prctl(option: int, value: int) -> None:
    if libc.prctl(option, value, 0, 0, 0):
        raise failure(f"prctl {option}")
