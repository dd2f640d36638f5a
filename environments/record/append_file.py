"""A file that grows by whole lines: locked by one process, each line on disk before the next."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock

import orjson

from environments.record.private_file import private, sync_folder
from tools.errors import RecordError

_TAIL_BYTES = 64


class AppendFile:
    """Lines on disk. A change from outside is noticed before the next line."""

    def __init__(self, path: Path, *, fresh: bool, each_on_disk: bool = True) -> None:
        """Opens or creates the file, locked.

        `fresh` empties it. Without `each_on_disk`, only `wait_for_disk` waits for the disk. Raises
        RecordError if it is not writable, not a plain file, or in use by another process.
        """
        self.path = path
        self._each_on_disk = each_on_disk
        self._end, self._tail = 0, b""
        """Length of the file, and its last bytes, as this process left them."""
        self._lost: str | None = None
        self._cause: OSError | None = None
        """Why nothing is written any more."""
        # Threads append: a line that failed must not be cut off behind another's back.
        self._one_at_a_time = Lock()
        self._fd = _open_locked(path, fresh=fresh)

    def whole_lines(self) -> Iterator[bytes]:
        """The lines, the torn last one left out; read them before anything is appended."""
        self._end, self._tail = 0, b""
        with self.path.open("rb") as lines:
            for line in lines:
                if not is_whole(line):
                    break
                self._end += len(line)
                self._tail = line[-_TAIL_BYTES:]
                yield line.removesuffix(b"\n") + b"\n"

    def cut_torn_line(self) -> int:
        """Cut off what follows the whole lines, of which the last gets its end; the length that was cut."""
        torn = os.fstat(self._fd).st_size - self._end
        if torn:
            os.ftruncate(self._fd, self._end)
        if self._tail and not self._tail.endswith(b"\n"):
            self.append(b"\n")
        return torn

    def append(self, line: bytes) -> None:
        """Write a line and, unless `each_on_disk` is off, wait until it is on disk.

        Raises:
            RecordError: the disk is full or gone, or the file was changed from outside. What was written
                before is safe, and nothing is written any more.
        """
        with self._one_at_a_time:
            self._lost = self._lost or self._outside_change()
            if self._lost is not None:
                raise RecordError(self._lost) from self._cause
            try:
                view = memoryview(line)
                while view:
                    view = view[os.write(self._fd, view) :]
                if self._each_on_disk:
                    os.fsync(self._fd)
            except OSError as error:
                self._cause = error
                self._lost = f"cannot write {self.path}: {error.strerror}; the groups before it are safe"
                # If that fails too, the next run cuts the torn line off.
                with suppress(OSError):
                    os.ftruncate(self._fd, self._end)
                raise RecordError(self._lost) from error
            self._end += len(line)
            self._tail = line[-_TAIL_BYTES:]

    def wait_for_disk(self) -> None:
        """Wait until every line is on disk. Raises RecordError if the disk is full or gone."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise RecordError(f"cannot write {self.path}: {error.strerror}") from error

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _outside_change(self) -> str | None:
        """What happened to the file since our last line, in words; `None`: nothing."""
        ours = os.fstat(self._fd)
        try:
            named = self.path.stat()
        except OSError:
            named = None
        if named is None:
            what = "is gone: it was renamed or deleted"
        elif not os.path.samestat(ours, named):
            what = "is another file now: it was replaced"
        elif ours.st_size < self._end:
            what = "was cut short by somebody else"
        elif ours.st_size > self._end or self._tail != os.pread(
            self._fd, len(self._tail), self._end - len(self._tail)
        ):
            what = "was written to by somebody else"
        else:
            return None
        return (
            f"{self.path} {what} while this run wrote it, and nothing more is written: put the file back as "
            f"it was, or choose another path, and give the same command"
        )


def is_whole(line: bytes) -> bool:
    """Whether a line was written to its end.

    A process that was killed leaves a last line without an end. One that is a whole JSON value has lost
    nothing but its newline, as in a file that was edited.
    """
    if line.endswith(b"\n"):
        return True
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def _open_locked(path: Path, *, fresh: bool) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = private(str(path), os.O_RDWR | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise RecordError(f"cannot write {path}: not a regular file, so it could not be resumed")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordError(
                f"{path} is being written by another process; choose another path or wait"
            ) from None
        if fresh:
            os.ftruncate(fd, 0)
        sync_folder(path.parent)
    except BaseException:
        os.close(fd)
        raise
    return fd
