"""The rollout JSONL: one group a line, on disk when the group ends, and resumable."""

import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from environments.record.group_line import decode_group, encode_group, parse_line
from environments.record.origin import RunOrigin, origin_of_line, refuse_other_run
from environments.trajectory import CreditedGroup
from tools.errors import RecordError

GroupKey = tuple[str, int]
"""`(item_id, epoch)`: names a group within a run."""


class Recorder:
    """Appends groups to a JSONL file that one process at a time may write."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        """Open the file, locked; read which groups it already holds; cut off a torn last line.

        Raises:
            RecordError: not writable, in use by another process, or a line is malformed.
        """
        self.path = path
        self.finished: set[GroupKey] = set()
        """Groups that need not run again; a failed group is not among them."""
        self._failed_before: set[GroupKey] = set()
        self.torn_bytes = 0
        """Length of the unfinished last line that was dropped."""
        self.origin: RunOrigin | None = None
        """The run whose groups the file holds; `None` when it holds none that is finished."""
        self.written = 0
        # Threads append: a line that failed must not be cut off behind another's back.
        self._one_at_a_time = Lock()
        self._fd = _open_locked(path, fresh=fresh)
        try:
            self._take_up()
        except BaseException:
            os.close(self._fd)
            raise

    def holds(self, item_id: str, epoch: int) -> bool:
        """Whether this group is finished and need not run again."""
        return (item_id, epoch) in self.finished

    def failed_before(self, item_id: str, epoch: int) -> bool:
        """Whether this group was in the file from the start, and no try of it had finished."""
        return (item_id, epoch) in self._failed_before

    def refuse_other_run(self, now: RunOrigin) -> None:
        """Refuse to add the groups of another run.

        Raises:
            RecordError: the file's environment, policy, credit or group size is another.
        """
        instead = "choose another --out, or start over with --fresh"
        refuse_other_run(str(self.path), self.origin, now, instead=instead)

    def append(self, credited: CreditedGroup) -> None:
        """Write one group and wait until it is on disk.

        Raises:
            RecordError: the disk is full or gone; a half-written line is cut off again.
        """
        try:
            line = encode_group(credited)
        except (TypeError, ValueError) as error:
            raise RecordError(f"item {credited.group.item_id!r} cannot be recorded: {error}") from error
        with self._one_at_a_time:
            self._write(line)
        self.written += 1
        if credited.status != "failed":
            self.finished.add((credited.group.item_id, credited.group.epoch))

    def close(self) -> None:
        """Release the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        end = os.lseek(self._fd, 0, os.SEEK_END)
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, end)
            raise RecordError(
                f"cannot write {self.path}: {error.strerror}; the groups before it are safe"
            ) from error

    def _take_up(self) -> None:
        whole = 0
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    break
                fields = parse_line(line, self.path, number)
                key = str(fields.get("item_id")), int(fields.get("epoch") or 0)
                if fields.get("status") == "failed":
                    self._failed_before.add(key)
                else:
                    self.origin = self.origin or origin_of_line(fields)
                    self.finished.add(key)
                whole += len(line)
        self._failed_before -= self.finished
        self.torn_bytes = os.fstat(self._fd).st_size - whole
        os.ftruncate(self._fd, whole)


def read_groups(path: Path) -> Iterator[CreditedGroup]:
    """The groups of a record, in the order they ended.

    Raises:
        RecordError: unreadable, or a line is malformed (file and line number are named).
    """
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                yield decode_group(line, path, number)
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error


def _open_locked(path: Path, *, fresh: bool) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RecordError(f"cannot write {path}: not a regular file, so it could not be resumed")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if fresh:
            os.ftruncate(fd, 0)
    except BlockingIOError:
        os.close(fd)
        raise RecordError(
            f"{path} is being written by another process; choose another path or wait"
        ) from None
    return fd
