"""Start without bubblewrap or without root: what is still open is closed here, by system calls."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct

from tools.sandbox.inside import supervisor
from tools.sandbox.inside.boot import Config
from tools.sandbox.inside.prctl import (
    adopt_orphans,
    failure,
    filter_calls,
    hide_process,
    keep_capabilities,
    libc,
    no_new_privileges,
)

KEPT_CAPABILITIES = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 24
"""CHOWN, KILL, SETGID, SETUID and SYS_RESOURCE."""
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC = 1, 2, 4, 8, 32, 4096, 16384
_MS_PRIVATE = 1 << 18
_MS_RELATIME, _ST_RELATIME = 1 << 21, 4096
_SAME_FLAGS = 2 | 4 | 8 | 1024 | 2048
"""nosuid, nodev, noexec, noatime, nodiratime: the same bits for statvfs and for mount."""
_MNT_DETACH = 2
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_NEW_ROOT = "/sys"
"""Only a mount point, in a mount namespace of our own: it exists everywhere and nothing is bound from it."""


def enter(control: int) -> None:
    """Build the root and give up privileges as the settings say, then serve."""
    config = Config(control)
    settings = config.settings
    if config.steps:
        _build_root(config.steps)
        if settings["network"] == "none":
            _raise_loopback()
        socket.sethostname(settings["host_name"])
    if settings["subreaper"] == "1":
        adopt_orphans()
    if settings["confine"] == "1":
        keep_capabilities(KEPT_CAPABILITIES if settings["drop"] == "1" else 0)
        no_new_privileges()
        if config.seccomp:
            filter_calls(config.seccomp)
    if settings["drop"] != "1":
        # The agent has the same user.
        hide_process()
    supervisor.serve(control, config)


def own_mounts() -> None:
    """Keep mounts of this namespace from the host, and the host's later ones from here."""
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE, "")


def _build_root(steps: list[list[str]]) -> None:
    _mount("none", _NEW_ROOT, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755")
    for step in steps:
        _step(*step)
    os.chdir(_NEW_ROOT)
    if libc.syscall(ctypes.c_long(_pivot_root_number()), b".", b"."):
        raise failure("pivot_root")
    if libc.umount2(b".", _MNT_DETACH):
        raise failure("umount2")
    os.chdir("/")
    _mount("none", "/", "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV, "")


def _step(kind: str, path: str, source: str, size: str, mode: str, data: str) -> None:
    at = _NEW_ROOT + path
    os.makedirs(os.path.dirname(at), exist_ok=True)
    if kind == "link":
        os.symlink(source, at)
    elif kind == "file":
        with open(at, "w") as file:  # pathlib is not imported here
            file.write(data)
    elif kind == "dir":
        os.makedirs(at, exist_ok=True)
    elif kind == "bind":
        _bind(source, at, _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    elif kind == "proc":
        os.makedirs(at, exist_ok=True)
        _mount("proc", at, "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "")
    elif kind == "dev":
        _devices(at)
    elif kind == "tmpfs":
        os.makedirs(at, exist_ok=True)
        _mount("none", at, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size},mode={mode}")
    elif kind == "seal":
        _mount("none", at, "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID, "")
    else:
        raise ValueError(f"no step {kind!r}")


def _devices(at: str) -> None:
    os.makedirs(at, exist_ok=True)
    _mount("none", at, "tmpfs", _MS_NOSUID, "mode=0755,size=65536")
    for name in ("null", "zero", "full", "random", "urandom"):
        _bind(f"/dev/{name}", f"{at}/{name}", _MS_NOSUID)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{at}/{name}")
    os.makedirs(f"{at}/pts")
    _mount("devpts", f"{at}/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    os.symlink("pts/ptmx", f"{at}/ptmx")


def _bind(source: str, at: str, flags: int) -> None:
    if os.path.isdir(source):
        os.makedirs(at, exist_ok=True)
    else:
        os.close(os.open(at, os.O_WRONLY | os.O_CREAT, 0o644))
    _mount(source, at, "", _MS_BIND | _MS_REC, "")
    # Flags that the source already has are locked in a user namespace: they have to be repeated.
    had = os.statvfs(at).f_flag
    locked = had & _SAME_FLAGS | (_MS_RELATIME if had & _ST_RELATIME else 0)
    _mount("none", at, "", _MS_REMOUNT | _MS_BIND | flags | locked, "")


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(probe, _SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _pivot_root_number() -> int:
    return {"x86_64": 155, "aarch64": 41}[os.uname().machine]


def _mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    if libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()):
        raise failure(f"mount {target}")
