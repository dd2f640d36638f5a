"""File operations, run as the agent in a forked child: links and permissions count as for the agent."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator

CHUNK_BYTES = 1 << 18


def read(path: str, max_bytes: int) -> int:
    """Send a regular file to stdout; the result is an errno, 0 when all of it was sent."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
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
        # A socket or a driverless device cannot be opened at all.
        return errno.EINVAL if error.errno == errno.ENXIO else error.errno or errno.EIO
    return 0


def write(path: str, mode: int) -> int:
    """Replace a file by what comes on stdin; a write that fails leaves the old content."""
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
            # The new file takes the place of the old one, which by itself would not ask for its permission.
            if not os.access(target, os.W_OK):
                return errno.EACCES
        except FileNotFoundError:
            pass
        replace(target, mode, _stdin())
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def replace(target: str, mode: int, content: Iterable[bytes]) -> None:
    """Put a file at a path, all of it or nothing."""
    folder = os.path.dirname(target)
    temporary = os.path.join(folder, f".write-{os.getpid()}")
    fd, named = _new_file(folder, temporary)
    try:
        for data in content:
            write_all(fd, data)
        os.fchmod(fd, mode)
        if not named:
            try:
                # A new file needs no right to remove anything.
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
    """Why something is no file to read or to replace, as an errno; 0 for a regular file."""
    if stat.S_ISREG(status.st_mode):
        return 0
    return errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL


def write_all(fd: int, data: bytes) -> None:
    """Write every byte."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _stdin() -> Iterator[bytes]:
    while data := os.read(0, CHUNK_BYTES):
        yield data


def _name(fd: int, path: str) -> None:
    # The descriptor of a directory, unused with absolute paths, is what makes Python follow the link.
    os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd)


def _new_file(folder: str, temporary: str) -> tuple[int, bool]:
    """A file to fill, and whether it has a name: one without is gone by itself when we are killed."""
    flags = os.O_WRONLY | os.O_CLOEXEC
    try:
        return os.open(folder, flags | os.O_TMPFILE, 0o600), False
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
        return os.open(temporary, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), True
