"""Files that hold rollouts: readable by their owner only, written whole or line by line."""

import fcntl
import json
import os
import platform
import stat
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, get_native_id
from typing import Any, cast

import orjson

from tools.errors import RecordError

_TAIL_BYTES = 64
_HOST = f"{zlib.crc32(platform.node().encode()):x}"


def private(path: str, flags: int) -> int:
    """Open a file (an `opener` of `open`); a new one belongs to its owner only."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def write_private(path: Path, data: bytes, *, on_disk: bool = False) -> None:
    """Write a file whole or not at all; `on_disk` waits until it survives a power cut."""
    with write_whole(path) as unfinished, open(unfinished, "wb", opener=private) as file:
        file.write(data)
        if on_disk:
            file.flush()
            os.fsync(file.fileno())
    if on_disk:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the folder's entries survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some network file systems cannot sync folders, and need not.
        with suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def write_whole(path: Path) -> Generator[Path]:
    """Yield a path to write to, which replaces `path` on success and is removed on failure."""
    # Unique, since processes and threads may write at once.
    begin = f".{path.name}.{_HOST}-"
    unfinished = path.parent / f"{begin}{os.getpid()}-{get_native_id()}.part"
    try:
        for left in path.parent.iterdir() if path.parent.is_dir() else ():
            pid = left.name.removeprefix(begin).partition("-")[0]
            if left.name.startswith(begin) and pid.isdecimal() and not _is_running(int(pid)):
                left.unlink(missing_ok=True)
        try:
            yield unfinished
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}") from error


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def read_object(path: Path, most_bytes: int) -> dict[str, Any]:
    """Return the JSON object in a small regular file, or an empty one if the file is missing or unusable."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            is_small = stat.S_ISREG(status.st_mode) and status.st_size <= most_bytes
            fields: Any = json.loads(file.read(most_bytes)) if is_small else None
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}


@contextmanager
def folder_for(path: Path) -> Generator[None]:
    """Create a file's folder, and remove what was created if the body fails."""
    made = [folder for folder in path.parents if not os.path.isdir(folder)]  # noqa: PTH112  # `is_dir` may raise
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error.strerror}") from error
        yield
    except BaseException:
        for folder in made:
            with suppress(OSError):  # another file came into it
                folder.rmdir()
        raise


_BEGIN = b'{"schema":'


class AppendFile:
    """A file of whole lines, locked by one process; changes from outside are noticed."""

    def __init__(self, path: Path, *, fresh: bool, each_on_disk: bool = True) -> None:
        self.path = path
        self._each_on_disk = each_on_disk
        self._end, self._tail = 0, b""
        self._lost: str | None = None
        self._cause: OSError | None = None
        # Threads append: a failed line must be cut off before another thread writes.
        self._lock = Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = private(str(path), os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise RecordError(f"cannot write {path}: not a regular file, so it could not be resumed")
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if fresh and os.pread(self._fd, len(_BEGIN), 0) not in (b"", _BEGIN):
                raise RecordError(f"{path} is no record, which --fresh could empty; remove it yourself")
            if fresh:
                os.ftruncate(self._fd, 0)
            sync_folder(path.parent)
        except BlockingIOError:
            self.close()
            raise RecordError(
                f"{path} is being written by another process; choose another path or wait"
            ) from None
        except BaseException:
            self.close()
            raise

    def whole_lines(self) -> Iterator[bytes]:
        """Yield the lines without a torn last one, before anything is appended."""
        self._end, self._tail = 0, b""
        with self.path.open("rb") as lines:
            for line in lines:
                if not is_whole(line):
                    break
                self._end += len(line)
                self._tail = line[-_TAIL_BYTES:]
                yield line.removesuffix(b"\n") + b"\n"

    def cut_torn_line(self) -> int:
        """Cut off what follows the whole lines, and return how many bytes were cut."""
        torn = os.fstat(self._fd).st_size - self._end
        if torn:
            os.ftruncate(self._fd, self._end)
        if self._tail and not self._tail.endswith(b"\n"):
            self.append(b"\n")
        return torn

    def append(self, line: bytes) -> None:
        """Write a line. After a RecordError, no further line is written."""
        with self._lock:
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
                # If this fails too, the next run cuts off the torn line.
                with suppress(OSError):
                    os.ftruncate(self._fd, self._end)
                raise RecordError(self._lost) from error
            self._end += len(line)
            self._tail = line[-_TAIL_BYTES:]

    def wait_for_disk(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise RecordError(f"cannot write {self.path}: {error.strerror}") from error

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _outside_change(self) -> str | None:
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
    """Whether a line is complete; only its newline may be missing."""
    if line.endswith(b"\n"):
        return True
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True
