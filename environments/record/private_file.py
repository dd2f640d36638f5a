"""Files that hold rollouts are their owner's alone."""

import os
import platform
import stat
import zlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_native_id

from tools.errors import RecordError

_HOST = f"{zlib.crc32(platform.node().encode()):x}"
"""Of the processes that are known here: others may write into the same folder."""


def private(path: str, flags: int) -> int:
    """An `opener` for `open`: a file that is made here can be read and written by its owner only."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def write_private(path: Path, data: bytes, *, on_disk: bool = False) -> None:
    """Write a file whole, or leave it as it was; a link in its place is replaced, not followed.

    `on_disk` waits until a power cut cannot undo it. Raises RecordError if it cannot be written.
    """
    with write_whole(path) as unfinished, open(unfinished, "wb", opener=private) as file:
        file.write(data)
        if on_disk:
            file.flush()
            os.fsync(file.fileno())
    if on_disk:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until a file that was made or renamed here just now survives a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some network file systems cannot, and need not.
        with suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def write_whole(path: Path) -> Generator[Path]:
    """Where to write what takes its place at `path` once all of it is written; else nothing is left of it.

    Raises RecordError if it cannot be written.
    """
    # Of its own, so that two processes or threads at once do not write into one file.
    unfinished = path.with_name(f".{path.name}.{_HOST}-{os.getpid()}-{get_native_id()}.part")
    try:
        _remove_what_was_left(path)
        try:
            yield unfinished
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}") from error


def _remove_what_was_left(path: Path) -> None:
    """Remove the unfinished files of processes that were killed before they had written `path`."""
    begin = f".{path.name}.{_HOST}-"
    for left in path.parent.iterdir() if path.parent.is_dir() else ():
        pid = left.name.removeprefix(begin).partition("-")[0]
        if left.name.startswith(begin) and pid.isdecimal() and not _is_running(int(pid)):
            left.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def read_small(path: Path, most_bytes: int) -> bytes | None:
    """A file of ours; `None` if it is missing, longer, or not a regular file, which might never end."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
                return None
            return file.read(most_bytes)
    except OSError:
        return None


@contextmanager
def folder_for(path: Path) -> Generator[None]:
    """The folder of a file to come, made where it lacks; what was made goes again where the work fails.

    Raises RecordError if it cannot be made.
    """
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
