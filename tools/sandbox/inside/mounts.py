"""Mounts of sandboxes: a shared root, and each sandbox's own on top."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct

from tools.sandbox.inside import held_files
from tools.sandbox.inside.held_files import Files
from tools.sandbox.inside.kernel import failure, libc, write_file

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC = 1, 2, 4, 8, 32, 4096, 16384
_MS_PRIVATE = 1 << 18
_MS_RELATIME, _ST_RELATIME = 1 << 21, 4096
_SAME_FLAGS = 2 | 4 | 8 | 1024 | 2048
"""nosuid, nodev, noexec, noatime, nodiratime: equal in statvfs and mount."""
_MNT_DETACH = 2
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_MOVE_MOUNT, _FROM_DESCRIPTOR = 429, 4
_CLONE3, _NEW_USER, _EMPTY_PATH, _IDMAP = 435, 0x10000000, 0x1000, 0x00100000
_NEW_ROOT = "/sys"
"""A directory that exists everywhere, used as a mount point only."""
_SPARE_BYTES_PER_FILE = 64 << 10
_FEWEST_FILES, _BYTES_PER_FILE = 1024, 4096
"""Empty files use memory, too."""


def build_root(steps: list[list[str]]) -> None:
    """Build the root of this mount namespace from steps (see `tools.sandbox.local.rootfs`).

    The old `/proc` stays until it is covered: otherwise a user namespace could not mount its own.
    """
    # Separate mount events of the host from ours.
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE, "")
    _mount("none", _NEW_ROOT, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755")
    for kind, path, *rest in steps:
        at = _NEW_ROOT + path
        os.makedirs(at if kind in ("dir", "dev") else os.path.dirname(at), exist_ok=True)
        _step(kind, at, *rest)
    _mount("/proc", f"{_NEW_ROOT}/proc", "", _MS_BIND | _MS_REC, "")
    os.chdir(_NEW_ROOT)
    if libc.syscall(ctypes.c_long({"x86_64": 155, "aarch64": 41}[os.uname().machine]), b".", b"."):
        raise failure("pivot_root")
    if libc.umount2(b".", _MNT_DETACH):
        raise failure("umount2")
    os.chdir("/")
    _mount("none", "/", "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV, "")


def add(steps: list[list[str]], scratch: str, tree: int = -1) -> None:
    """Add a sandbox's mounts; `tree` is a host mount, `scratch` writable before the first step `file`."""
    for kind, path, *rest in steps:
        if kind == "file":
            _cover(path, rest[-1], scratch)
        elif kind == "tree":
            _move(tree, path)
        elif kind == "copy":
            _copy(tree, path)
        else:
            _step(kind, path, *rest)


def hold(files: Files, folder: str, workdir: str, owner: tuple[int, int]) -> None:
    """Put a verifier's files into an empty folder and mount each at its path in the workspace.

    Mount points cannot be removed, renamed or replaced; parent folders become mount points, too.
    """
    size = sum(len(data) + _SPARE_BYTES_PER_FILE for _, data in files) + (1 << 20)
    _mount("none", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size},mode=0755")
    held_files.keep(files, folder, workdir)
    pinned = {workdir}
    for path, _ in files:
        at = os.path.join(workdir, path)
        if path.startswith("/") and os.path.exists(at):
            continue
        _pin_folders(os.path.dirname(at), workdir, owner, pinned)
        _clear(at)
        held_files.write(at, b"", 0o755)
        _mount(held_files.locate(path, folder), at, "", _MS_BIND, "")
        _mount("none", at, "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV, "")
    _mount("none", folder, "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV, "")


def _pin_folders(path: str, workdir: str, owner: tuple[int, int], pinned: set[str]) -> None:
    """Turn folders into mount points; a prepared workspace may already contain them."""
    if path in pinned or (os.path.isdir(path) and not path.startswith(f"{workdir}/")):
        return
    _pin_folders(os.path.dirname(path), workdir, owner, pinned)
    if os.path.islink(path) or not os.path.isdir(path):
        _clear(path)
        os.mkdir(path, 0o755)
        os.chown(path, *owner)
    _mount(path, path, "", _MS_BIND, "")
    pinned.add(path)


def _clear(path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)


def _cover(path: str, data: str, scratch: str) -> None:
    source = f"{scratch}/new"
    _write(source, data)
    _mount(source, path, "", _MS_BIND, "")
    _mount("none", path, "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV, "")
    os.unlink(source)


def _step(kind: str, at: str, source: str, size: str, mode: str, data: str) -> None:
    if kind == "link":
        os.symlink(source, at)
    elif kind == "file":
        _write(at, data)
    elif kind == "bind":
        _bind(source, at, _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    elif kind == "proc":
        # No process inside may change its OOM score.
        _mount("proc", at, "proc", _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "")
    elif kind == "dev":
        _devices(at)
    elif kind == "pts":
        _mount("devpts", at, "devpts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    elif kind == "tmpfs":
        files = max(_FEWEST_FILES, int(size) // _BYTES_PER_FILE)
        _mount("none", at, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size},mode={mode},nr_inodes={files}")
    elif kind == "seal":
        _mount("none", at, "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID, "")
    elif kind != "dir":
        raise ValueError(f"no step {kind!r}")


def _copy(tree: int, at: str) -> None:
    """Show a host tree with copy on write."""
    for name in ("tree", "changed", "work"):
        os.mkdir(f"{at}/{name}")
    _move(tree, f"{at}/tree")
    options = f"lowerdir={at}/tree,upperdir={at}/changed,workdir={at}/work,redirect_dir=on"
    _mount("overlay", at, "overlay", _MS_NOSUID | _MS_NODEV, options)


def shift_owner(tree: int, owner: int, agent: int) -> None:
    """Map the owner of a detached mount to the agent."""
    ours, theirs = os.pipe()
    clone = struct.pack("11Q", _NEW_USER, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
    pid = libc.syscall(ctypes.c_long(_CLONE3), clone, ctypes.c_size_t(len(clone)))
    if pid == 0:  # this child only holds the user namespace of the mapping
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    try:
        if pid < 0:
            raise failure("clone3")
        for name in ("uid_map", "gid_map"):
            write_file(f"/proc/{pid}/{name}", b"%d %d 1" % (owner, agent))
        users = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        attributes = struct.pack("4Q", _IDMAP, 0, 0, users)
        size = ctypes.c_size_t(len(attributes))
        refused = libc.syscall(ctypes.c_long(_MOUNT_SETATTR), tree, b"", _EMPTY_PATH, attributes, size)
        error = failure("mount_setattr") if refused else None
        os.close(users)
        if error is not None:
            raise error
    finally:
        os.close(ours)
        os.close(theirs)


def _move(tree: int, at: str) -> None:
    if libc.syscall(ctypes.c_long(_MOVE_MOUNT), tree, b"", _AT_FDCWD, at.encode(), _FROM_DESCRIPTOR):
        raise failure(f"move_mount {at}")
    os.close(tree)


def _devices(at: str) -> None:
    _mount("none", at, "tmpfs", _MS_NOSUID, "mode=0755,size=65536")
    for name in ("null", "zero", "full", "random", "urandom"):
        _bind(f"/dev/{name}", f"{at}/{name}", _MS_NOSUID)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{at}/{name}")
    os.symlink("pts/ptmx", f"{at}/ptmx")


def _bind(source: str, at: str, flags: int) -> None:
    if os.path.isdir(source):
        os.makedirs(at, exist_ok=True)
    else:
        _write(at, "")
    _mount(source, at, "", _MS_BIND | _MS_REC, "")
    # Mounts below the source keep their own flags.
    attributes = struct.pack("4Q", flags, 0, 0, 0)
    if libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR), _AT_FDCWD, at.encode(), _AT_RECURSIVE, attributes,
        ctypes.c_size_t(len(attributes)),
    ):  # fmt: skip
        # Before Linux 5.12, or refused by a filter.
        if ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):
            raise failure(f"mount_setattr {at}")
        for path in _mounts_from(at):
            _restrict(path, flags)


def _restrict(at: str, flags: int) -> None:
    # A user namespace may not clear the source's flags, so they are repeated.
    had = os.statvfs(at).f_flag
    locked = had & _SAME_FLAGS | (_MS_RELATIME if had & _ST_RELATIME else 0)
    _mount("none", at, "", _MS_REMOUNT | _MS_BIND | flags | locked, "")


def _mounts_from(top: str) -> list[str]:
    with open("/proc/self/mountinfo", "rb") as table:
        escaped = [line.split()[4] for line in table]
    # Blanks, tabs, newlines and backslashes are octal escapes.
    paths = [os.fsdecode(path.decode("unicode_escape").encode("latin-1")) for path in escaped]
    return [path for path in paths if path == top or path.startswith(f"{top}/")]


def _write(path: str, data: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        view = data.encode()
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


def _mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    if libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode()
    ):
        raise failure(f"mount {target}")
