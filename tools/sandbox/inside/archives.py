"""Whole folders as archives, packed and unpacked as the agent in a forked child."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from tools.sandbox.inside import file_operations as files
from tools.sandbox.inside import tar

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC


def unpack(path: str) -> int:
    """Write the archive that comes on stdin below a folder; the result is an errno, and stderr says for what.

    Nothing is written through a link below the folder, whoever made it.
    """
    return _with_error(lambda: _unpack(path))


def pack(path: str, max_bytes: int) -> int:
    """Send a folder as an archive to stdout; the result is an errno, and stderr says for what.

    Links, FIFOs, sockets and devices are left out.
    """
    return _with_error(lambda: _Packer(max_bytes).pack(path))


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
        code = files.irregular(os.lstat(target))
        if code:
            raise OSError(code, os.strerror(code))
    except FileNotFoundError:
        pass
    files.replace(target, mode, reader.content())


class _Packer:
    """Sends members until there is no room for more."""

    def __init__(self, max_bytes: int) -> None:
        self._room = max_bytes - len(tar.END)
        self._members = 0

    def pack(self, path: str) -> None:
        self._contents(os.open(path, _FOLDER & ~os.O_NOFOLLOW), b"")
        files.write_all(1, tar.END)

    def _contents(self, opened: int, path: bytes) -> None:
        for name in sorted(map(os.fsencode, os.listdir(opened))):
            member = path + name
            try:
                self._member(opened, name, member)
            except FileNotFoundError:
                continue  # gone meanwhile
            except OSError as error:
                raise _MemberError(member, error.errno or errno.EIO) from None

    def _member(self, opened: int, name: bytes, member: bytes) -> None:
        kind = os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode
        if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
            return
        fd = os.open(name, _FOLDER if stat.S_ISDIR(kind) else _FILE, dir_fd=opened)
        try:
            if stat.S_ISDIR(kind):
                self._send(tar.header(member, 0o755, 0, folder=True))
                self._contents(fd, member + b"/")
            elif stat.S_ISREG(os.fstat(fd).st_mode):
                self._file(fd, member)
        finally:
            os.close(fd)

    def _file(self, fd: int, member: bytes) -> None:
        # Read before its header is sent: it may grow or shrink meanwhile.
        parts: list[bytes] = []
        size = 0
        while data := os.read(fd, files.CHUNK_BYTES):
            parts.append(data)
            size += len(data)
            if size > self._room:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        mode = 0o755 if os.fstat(fd).st_mode & 0o100 else 0o644
        self._send(tar.header(member, mode, size) + b"".join(parts) + tar.padding(size))

    def _send(self, data: bytes) -> None:
        self._members += 1
        self._room -= len(data)
        if self._members > tar.MAX_MEMBERS or self._room < 0:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        files.write_all(1, data)
