"""File operations, which run with the agent's permissions in a forked child."""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import pathlib
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import CodeType

from tools.sandbox.inside import messages, tar
from tools.sandbox.inside.account import Account
from tools.sandbox.inside.processes import end_holders
from tools.sandbox.inside.spawn import Program, fork, only_stdio, start
from tools.sandbox.inside.warm import WarmInterpreter

CHUNK_BYTES = 1 << 18
_LEASE_S, _MOST_LEASE_S = 0.5, 5.0
"""Seconds to wait for a leased file before its holder is killed, and before the read fails."""
_waited_s = 0.0

# Preloaded for the programs that run here.
_ = fnmatch, json, pathlib, re


def read(path: str, max_bytes: int) -> int:
    """Send a regular file to stdout and return 0, or an errno."""
    try:
        fd = _open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        code = irregular(os.fstat(fd))
        if code:
            return code
        if os.fstat(fd).st_size > max_bytes:
            return errno.EFBIG
        sent = 0
        while data := os.read(fd, CHUNK_BYTES):
            sent += len(data)
            if sent > max_bytes:
                return errno.EFBIG
            write_all(1, data)
    except OSError as error:
        # ENXIO: a socket or driverless device.
        return errno.EINVAL if error.errno == errno.ENXIO else error.errno or errno.EIO
    return 0


def _open(path: str | bytes, flags: int, folder: int | None = None) -> int:
    """Open a file for reading; kill a process that does not release its lease."""
    global _waited_s
    while True:
        try:
            return os.open(path, flags, dir_fd=folder)
        except BlockingIOError:
            if _waited_s > _MOST_LEASE_S:
                raise
            if _waited_s > _LEASE_S:
                end_holders(os.stat(path, dir_fd=folder).st_ino)
        time.sleep(0.01)
        _waited_s += 0.01


def write(path: str, mode: int) -> int:
    """Replace a file with stdin, atomically; return 0 or an errno."""
    try:
        target = os.path.realpath(path)
        if target == os.path.sep:
            return errno.EISDIR
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
        except FileExistsError:
            return errno.ENOTDIR
        try:
            code = irregular(os.stat(target))
            if code:
                return code
            # Renaming over a file does not check its permissions.
            if not os.access(target, os.W_OK):
                return errno.EACCES
        except FileNotFoundError:
            pass
        replace(target, mode, iter(lambda: os.read(0, CHUNK_BYTES), b""))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def replace(target: str, mode: int, content: Iterable[bytes]) -> None:
    folder = os.path.dirname(target)
    temporary = os.path.join(folder, f".write-{os.getpid()}")
    fd, named = _new_file(folder, temporary)
    try:
        for data in content:
            write_all(fd, data)
        os.fchmod(fd, mode)
        if not named:
            try:
                # Linking needs no permission to remove anything.
                _name(fd, target)
                return
            except FileExistsError:
                _name(fd, temporary)
            named = True
        os.rename(temporary, target)
    except BaseException:
        if named:
            os.unlink(temporary)
        raise
    finally:
        os.close(fd)


def irregular(status: os.stat_result) -> int:
    """Return the errno for a file that is not regular, or 0."""
    if stat.S_ISREG(status.st_mode):
        return 0
    return errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _name(fd: int, path: str) -> None:
    # Python follows the link only with a directory descriptor, although the paths are absolute.
    os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd)


def _new_file(folder: str, temporary: str) -> tuple[int, bool]:
    """Return a descriptor, and whether the file has a name; unnamed files vanish with us."""
    flags = os.O_WRONLY | os.O_CLOEXEC
    try:
        return os.open(folder, flags | os.O_TMPFILE, 0o600), False
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
        return os.open(temporary, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), True


Begin = Callable[[tuple[int, int, int]], int]
"""Starts a process with these standard descriptors; returns its id."""


def program(
    account: Account, request: messages.RunProgram, warm: WarmInterpreter | None
) -> tuple[Begin, bytes]:
    pairs = [pair.partition("=") for pair in request.env]
    env = account.environment({name: value for name, _, value in pairs})
    wanted = Program(list(request.argv), env, os.path.join(account.workdir, request.cwd))
    begin = start if warm is None else warm.run
    return lambda stdio: begin(account, stdio, wanted), request.stdin


def python(account: Account, request: messages.RunPython) -> tuple[Begin, bytes]:
    code = _compile(request.source)
    action = only_stdio(lambda: _run(code, account))
    return lambda stdio: fork(account, stdio, action), request.stdin


@lru_cache(maxsize=4)
def _compile(source: str) -> CodeType:
    return compile(source, "<program>", "exec", dont_inherit=True)


def _run(code: CodeType, account: Account) -> int:
    os.chdir(account.workdir)
    os.environ.clear()
    os.environ.update(account.environment({}))
    streams = [os.fdopen(fd, mode, encoding="utf-8", closefd=False) for fd, mode in enumerate("rww")]
    sys.stdin, sys.stdout, sys.stderr = streams
    result: object = None
    try:
        exec(code, {"__name__": "__main__"})
    except SystemExit as error:
        result = error.code
    except BaseException as error:  # noqa: BLE001  # as Python itself: reported, and 1
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        result = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return result if isinstance(result, int) else int(result is not None)


def on_files(account: Account, request: messages.FileRequest) -> tuple[Begin, bytes]:
    operation, stdin = _operation(request, os.path.join(account.workdir, request.path))
    action = only_stdio(operation)
    return lambda stdio: fork(account, stdio, action, bounded=False), stdin


def _operation(request: messages.FileRequest, path: str) -> tuple[Callable[[], int], bytes]:
    if isinstance(request, messages.ReadFile):
        return lambda: read(path, request.max_bytes), b""
    if isinstance(request, messages.PackFolder):
        return lambda: pack(path, request.max_bytes, request.known), b""
    if isinstance(request, messages.WriteFile):
        return lambda: write(path, request.mode), request.data
    if isinstance(request, messages.PackTree):
        return lambda: _with_error(lambda: _pack_tree(path)), b""
    if isinstance(request, messages.UnpackTree):
        return lambda: _with_error(lambda: _unpack_tree(path)), request.archive
    return lambda: unpack(path), request.archive


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC


def unpack(path: str) -> int:
    """Extract stdin below a folder, never through a link; return an errno, with details on stderr."""
    return _with_error(lambda: _unpack(path))


def pack(path: str, max_bytes: int, known: bytes = b"") -> int:
    """Send a folder without special files to stdout; return an errno, with details on stderr.

    With `known` files (see `PackFolder`), `.git` and `__pycache__` are left out, too.
    """
    return _with_error(lambda: _Packer(max_bytes, known).pack(path))


class _MemberError(Exception):
    def __init__(self, member: bytes, code: int) -> None:
        super().__init__(member, code)
        self.member = member
        self.code = code


def _with_error(operation: Callable[[], None]) -> int:
    try:
        operation()
    except tar.TarError as error:
        os.write(2, error.member + b"\0" + error.reason.encode())
        return errno.EINVAL
    except _MemberError as error:
        os.write(2, error.member)
        return error.code
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _unpack(path: str) -> None:
    target = os.path.realpath(path)
    try:
        os.makedirs(target, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, target) from None
    root = os.open(target, _FOLDER)
    folder, opened = b"", os.dup(root)
    reader = tar.Reader(lambda count: os.read(0, count))
    for member in reader:
        parent, _, name = member.name.rpartition(b"/")
        wanted = member.name if member.folder else parent
        try:
            if wanted != folder:
                os.close(opened)
                folder, opened = wanted, _enter(root, wanted)
            if not member.folder:
                _write(f"/proc/self/fd/{opened}/{os.fsdecode(name)}", member.mode, reader)
        except OSError as error:
            raise _MemberError(member.name, error.errno or errno.EIO) from None


def _enter(root: int, path: bytes) -> int:
    opened = os.dup(root)
    for part in path.split(b"/") if path else ():
        outer = opened
        try:
            os.mkdir(part, dir_fd=outer)
        except FileExistsError:
            pass
        opened = os.open(part, _FOLDER, dir_fd=outer)
        os.close(outer)
    return opened


def _write(target: str, mode: int, reader: tar.Reader) -> None:
    try:
        code = irregular(os.lstat(target))
        if code:
            raise OSError(code, os.strerror(code))
    except FileNotFoundError:
        pass
    replace(target, mode, reader.content())


def _digest(fd: int) -> str:
    import hashlib  # noqa: PLC0415

    found = hashlib.sha256()
    while data := os.read(fd, CHUNK_BYTES):
        found.update(data)
    return found.hexdigest()


class _Packer:
    def __init__(self, max_bytes: int, known: bytes) -> None:
        self._room = max_bytes - len(tar.END)
        self._members = 0
        self._known = {os.fsencode(path): facts for path, facts in json.loads(known or b"{}").items()}
        self._left_out = {b".git", b"__pycache__"} if known else set[bytes]()
        self._same: list[bytes] = []

    def pack(self, path: str) -> None:
        self._contents(os.open(path, _FOLDER & ~os.O_NOFOLLOW), b"")
        write_all(1, tar.END)
        write_all(2, b"".join(self._same))

    def _contents(self, opened: int, path: bytes) -> None:
        for name in sorted({*map(os.fsencode, os.listdir(opened))} - self._left_out):
            member = path + name
            try:
                self._member(opened, name, member)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _MemberError(member, error.errno or errno.EIO) from None

    def _member(self, opened: int, name: bytes, member: bytes) -> None:
        kind = os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode
        if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
            return
        fd = _open(name, _FOLDER if stat.S_ISDIR(kind) else _FILE, opened)
        try:
            if stat.S_ISDIR(kind):
                self._send(tar.header(member, 0o755, 0, folder=True))
                self._contents(fd, member + b"/")
            elif stat.S_ISREG(os.fstat(fd).st_mode):
                self._file(fd, member)
        finally:
            os.close(fd)

    def _file(self, fd: int, member: bytes) -> None:
        status = os.fstat(fd)
        mode = 0o755 if status.st_mode & 0o100 else 0o644
        size, known_mode, digest = self._known.get(member, (-1, 0, ""))
        if (size, known_mode) == (status.st_size, mode) and _digest(fd) == digest:
            self._same.append(member + b"\0")
            return
        # Sparse files count with their full length.
        if status.st_size > self._room:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        # Read before the header is sent, because the size may change meanwhile.
        os.lseek(fd, 0, os.SEEK_SET)
        parts: list[bytes] = []
        size = 0
        while data := os.read(fd, CHUNK_BYTES):
            parts.append(data)
            size += len(data)
            if size > self._room:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        self._send(tar.header(member, mode, size) + b"".join(parts) + tar.padding(size))

    def _send(self, data: bytes) -> None:
        self._members += 1
        self._room -= len(data)
        if self._members > tar.MAX_MEMBERS or self._room < 0:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        write_all(1, data)


def _pack_tree(folder: str) -> None:
    # Few supervisors need it.
    import tarfile  # noqa: PLC0415

    with open(1, "wb", closefd=False) as stdout, tarfile.open(fileobj=stdout, mode="w|") as archive:
        for name in sorted(os.listdir(folder)):
            archive.add(os.path.join(folder, name), name)


def _unpack_tree(folder: str) -> None:
    """Extract stdin below a folder; existing files are a verifier's and stay."""
    import tarfile  # noqa: PLC0415

    folders: list[tuple[tarfile.TarInfo, str]] = []
    with open(0, "rb", closefd=False) as stdin, tarfile.open(fileobj=stdin, mode="r|") as archive:
        # Newer filters change modes and refuse links, which are harmless here.
        archive.extraction_filter = lambda member, _: member
        for member in archive:
            at = os.path.join(folder, member.name)
            if member.isdir():
                if not os.path.isdir(at):
                    os.mkdir(at)
                    folders.append((member, at))
            elif not os.path.lexists(at):
                archive.extract(member, folder)
        # Last: folders may be read-only, and extraction changes their times.
        for member, at in reversed(folders):
            archive.utime(member, at)
            archive.chmod(member, at)
