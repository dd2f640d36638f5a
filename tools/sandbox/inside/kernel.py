"""System calls by which a process restricts itself: prctl, capabilities, seccomp, Landlock."""

from __future__ import annotations

import ctypes
import os
import struct

_CAPBSET_DROP = 24
_SET_DUMPABLE, _SET_SECCOMP, _SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVS = 4, 22, 36, 38

_CAPABILITY_VERSION = 0x20080522
_LAST_CAPABILITY = 63

CONTROL = 3
KEPT_CAPABILITIES = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 24
"""CHOWN, KILL, SETGID, SETUID, SYS_RESOURCE: to become, limit and kill the agent's user."""

libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def adopt_orphans() -> None:
    _prctl(_SET_CHILD_SUBREAPER, 1)


def no_new_privileges() -> None:
    _prctl(_SET_NO_NEW_PRIVS, 1)


def hide_process() -> None:
    """Keep processes of the same user from tracing this one."""
    _prctl(_SET_DUMPABLE, 0)


def show_process() -> None:
    """Make a process dumpable again; a change of user hides it, too."""
    _prctl(_SET_DUMPABLE, 1)


def filter_calls(program: bytes) -> None:
    wanted = _Program(len(program) // 8, program)
    if libc.prctl(_SET_SECCOMP, 2, ctypes.byref(wanted), 0, 0):
        raise failure("seccomp")


def keep_capabilities(wanted: int) -> None:
    """Irrevocably drop all capabilities except these bits."""
    # File objects would cost memory in every sandbox.
    fd = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    held = os.read(fd, 1 << 14).partition(b"CapPrm:")[2].split(None, 1)[0]
    os.close(fd)
    mask = int(held, 16) & wanted
    for number in range(_LAST_CAPABILITY + 1):
        # EINVAL: neither this number nor a higher one is known.
        if not mask >> number & 1 and libc.prctl(_CAPBSET_DROP, number, 0, 0, 0):
            break
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    if libc.capset(header, struct.pack("6I", low, low, 0, high, high, 0)):
        raise failure("capset")


def write_file(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def failure(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")


def _prctl(option: int, value: int) -> None:
    if libc.prctl(option, value, 0, 0, 0):
        raise failure(f"prctl {option}")


SIGNAL_SCOPE_ABI = 6
"""First version that confines signals and abstract sockets."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_RIGHTS_SINCE = ((1, _REFER - 1), (2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV))
"""Rights by the ABI version that added them."""
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2
_NET_ABI = 4

_ALLOWED = {
    "read": _EXECUTE | _READ_FILE | _READ_DIR,
    "list": _READ_DIR,
    "device": _READ_FILE | _WRITE_FILE | _READ_DIR | _TRUNCATE | _IOCTL_DEV,
    "write": ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV),
    "add": ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV | _REMOVE_DIR | _REMOVE_FILE),
}
"""Allowed rights on a file or everything below a folder; `add` cannot remove."""


def abi() -> int:
    """Return the kernel's Landlock version, 0 if disabled."""
    found = libc.syscall(
        ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_VERSION)
    )
    return max(0, found)


def restrict(rules: list[list[str]], version: int) -> None:
    """Refuse access that no rule (kind, path) allows, irrevocably."""
    handled = sum(rights for since, rights in _RIGHTS_SINCE if since <= version)
    attributes = struct.pack("Q", handled)
    if version >= SIGNAL_SCOPE_ABI:
        attributes = struct.pack("QQQ", handled, 0, _ABSTRACT_SOCKETS | _SIGNALS)
    elif version >= _NET_ABI:
        attributes = struct.pack("QQ", handled, 0)
    ruleset = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    try:
        for kind, path in rules:
            _allow(ruleset, path, _ALLOWED[kind] & handled)
        _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rights &= ~0 if os.path.isdir(path) else _OF_FILES
        rule = struct.pack("=Qi", rights, fd)
        _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint(0))
    finally:
        os.close(fd)


def _call(number: int, *arguments: object) -> int:
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise failure("Landlock")
    return result
