"""What a run writes beside its record: its `log`, bounded, and `summary.json`."""

import fcntl
import io
import json
import os
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, cast

from rich.console import Console

from environments.policy.inference.endpoint import without_credentials
from environments.record.origin import GroupKey
from environments.record.private_file import private, read_small, write_private
from environments.record.recorder import Record, groups_of
from environments.trajectory import CreditedGroup
from tools.errors import RecordError

MOST_BYTES = 1_000_000
"""Of a run; of what earlier runs logged, the last half of it is kept."""
MOMENT = "%Y-%m-%d %H:%M:%S UTC"
SCHEMA = "turnwise.run/1"
_LONGEST = 64 * 1024 * 1024
"""Bytes of a summary that is read; a longer one is damaged."""


class RunLog:
    """Takes lines from the start; they are written once it is known where. What fails here ends no run."""

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._fd = -1
        self._left = MOST_BYTES
        self._one_at_a_time = Lock()  # the watchdog's thread logs, too

    def add(self, text: str) -> None:
        """Takes in what the run showed."""
        with self._one_at_a_time:
            data = f"{without_credentials(text).rstrip()}\n".encode("utf-8", "backslashreplace")
            if self._left <= 0:
                return
            self._left -= len(data)
            if self._left <= 0:
                data = b"(no more is kept of what this run says)\n"
            if self._fd < 0:
                self._waiting.append(data.decode())
            else:
                with suppress(OSError):  # a full disk
                    os.write(self._fd, data)

    def add_printed(self, show: Callable[[Console], None]) -> None:
        """Takes in what a function prints."""
        shown = io.StringIO()
        show(Console(file=shown, width=120, force_terminal=False))
        self.add(shown.getvalue())

    def open(self, path: Path, *, title: str) -> None:
        """Writes to a file from here on, after a line with the date; until its end, `goes_on`."""
        with suppress(OSError, RecordError):
            if not path.is_symlink() and path.is_file() and path.stat().st_size > MOST_BYTES:
                with path.open("rb") as file:
                    file.seek(-MOST_BYTES // 2, os.SEEK_END)
                    _, _, kept = file.read().partition(b"\n")
                write_private(path, b"(what was said earlier is cut off)\n" + kept)
            self._fd = private(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        waiting, self._waiting = self._waiting, []
        self.add("\n".join([f"== {moment()} · {title}", *(line.rstrip("\n") for line in waiting)]))

    def close(self) -> None:
        """Releases the file."""
        with self._one_at_a_time:
            fd, self._fd, self._left = self._fd, -1, 0
            if fd >= 0:
                os.close(fd)


def goes_on(log: Path) -> bool:
    """Whether a process is running that writes this log."""
    try:
        fd = os.open(log, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(fd)
    return False


def moment() -> str:
    """Now, for people: `2026-11-22 19:34:12 UTC`."""
    return datetime.now(UTC).strftime(MOMENT)


def write_summary(path: Path, fields: Mapping[str, Any]) -> None:
    """Writes it whole, or leaves it as it was. Raises RecordError if it cannot be written."""
    text = json.dumps({"schema": SCHEMA, **fields}, indent=2, ensure_ascii=False, allow_nan=False)
    write_private(path, text.encode("utf-8", "backslashreplace") + b"\n")


def read_summary(path: Path) -> dict[str, Any] | None:
    """Returns what was written; `None` where there is nothing, or nothing of ours."""
    try:
        fields: Any = json.loads(read_small(path, _LONGEST) or b"")
    except (ValueError, RecursionError):
        return None
    known = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}
    return known if known.get("schema") == SCHEMA else None


def counted_groups(record: Record, finished: Container[GroupKey]) -> Iterator[CreditedGroup]:
    """The groups of a record, of which one that failed and was done again counts once.

    `finished` are its groups that did not fail in the end. Raises RecordError if it is unreadable, or a line
    is malformed.
    """
    counts = CountedOnce(finished)
    return (credited for credited in groups_of(record) if counts(credited))


class CountedOnce:
    """Decides for each group of a record, in order, whether it counts."""

    def __init__(self, finished: Container[GroupKey]) -> None:
        """`finished` holds the groups that did not fail in the end."""
        self._finished = finished
        self._failed: set[GroupKey] = set()

    def __call__(self, credited: CreditedGroup) -> bool:
        """Whether it is neither one that was done again later nor one that failed before."""
        key = credited.group.item_id, credited.group.epoch
        if credited.status != "failed":
            return True
        counts = key not in self._finished and key not in self._failed
        self._failed.add(key)
        return counts
