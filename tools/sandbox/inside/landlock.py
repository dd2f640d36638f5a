"""Landlock: which files this process and all that it starts may use, without a privilege or a namespace."""

from __future__ import annotations

import ctypes
import os
import struct

from tools.sandbox.inside.prctl import failure, libc

SIGNAL_SCOPE_ABI = 6
"""Since then processes outside cannot be signalled, nor their abstract sockets connected to."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_RIGHTS_SINCE = ((1, _REFER - 1), (2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV))
"""What can be restricted, by the ABI that brought it."""
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
"""What a rule of each kind allows on a file, or on everything below a directory; `add` does not remove."""


def abi() -> int:
    """The version that this kernel answers with; 0 where there is none or it is switched off."""
    found = libc.syscall(
        ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_VERSION)
    )
    return max(0, found)


def restrict(rules: list[list[str]], version: int) -> None:
    """Refuse everything that no rule (a kind and a path) allows, from now on and for good.

    Needs `no_new_privileges`. Paths that do not exist allow nothing.

    Raises:
        OSError: the kernel does not do it.
    """
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
