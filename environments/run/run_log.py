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

from environments.inference.endpoint import without_credentials
from environments.record.contents import GroupKey
from environments.record.private_file import private, read_small, write_private
from environments.record.recorder import Recorder, read_groups
from environments.record.totals import Summary
from environments.trajectory import CreditedGroup
from tools.errors import RecordError

MOST_BYTES = 1_000_000
"""Of a run; of what earlier runs said, the last half of it is kept."""
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
        self._one_at_a_time = Lock()  # the watchdog's thread says something, too

    def add(self, text: str) -> None:
        """Take in what the run said."""
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
                self._write(data)

    def add_printed(self, show: Callable[[Console], None]) -> None:
        """Take in what a function prints."""
        shown = io.StringIO()
        show(Console(file=shown, width=120, force_terminal=False))
        self.add(shown.getvalue())

    def open(self, path: Path, *, title: str) -> None:
        """Write to a file from here on, after a line with the date; until the end `goes_on` tells of it."""
        with suppress(OSError, RecordError):
            _cut(path)
            self._fd = private(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        waiting, self._waiting = self._waiting, []
        self.add("\n".join([f"== {moment()} · {title}", *(line.rstrip("\n") for line in waiting)]))

    def close(self) -> None:
        """Release the file."""
        with self._one_at_a_time:
            fd, self._fd, self._left = self._fd, -1, 0
            if fd >= 0:
                os.close(fd)

    def _write(self, data: bytes) -> None:
        with suppress(OSError):  # a full disk
            os.write(self._fd, data)


def goes_on(log: Path) -> bool:
    """Whether a process is running that writes this log."""
    try:
        fd = os.open(log, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def moment() -> str:
    """Now, for people: `2026-11-22 19:34:12 UTC`."""
    return datetime.now(UTC).strftime(MOMENT)


def _cut(path: Path) -> None:
    """Keep the end of what earlier runs said."""
    if not path.is_symlink() and path.is_file() and path.stat().st_size > MOST_BYTES:
        with path.open("rb") as file:
            file.seek(-MOST_BYTES // 2, os.SEEK_END)
            _, _, kept = file.read().partition(b"\n")
        write_private(path, b"(what was said earlier is cut off)\n" + kept)


def write_summary(path: Path, fields: Mapping[str, Any]) -> None:
    """Write it whole, or leave it as it was.

    Raises:
        RecordError: it cannot be written.
    """
    text = json.dumps({"schema": SCHEMA, **fields}, indent=2, ensure_ascii=False, allow_nan=False)
    write_private(path, text.encode("utf-8", "backslashreplace") + b"\n")


def read_summary(path: Path) -> dict[str, Any] | None:
    """What was written; `None` where there is nothing, or nothing of ours."""
    try:
        fields: Any = json.loads(read_small(path, _LONGEST) or b"")
    except (ValueError, RecursionError):
        return None
    known = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}
    return known if known.get("schema") == SCHEMA else None


def covered_by(fields: Mapping[str, Any] | None) -> dict[str, Any]:
    """How much of the record a summary is of: `groups` and `bytes`, as far as it says so."""
    of: Any = (fields or {}).get("of")
    return cast("dict[str, Any]", of) if isinstance(of, dict) else {}


def summary_of(recorder: Recorder) -> Summary:
    """What all groups of a record come to, see `counted_groups`.

    Raises:
        RecordError: unreadable, or a line is malformed.
    """
    summary = Summary()
    for credited in counted_groups(recorder.path, recorder.finished):
        summary.add(credited)
    return summary


def counted_groups(path: Path, finished: Container[GroupKey]) -> Iterator[CreditedGroup]:
    """The groups of a record, of which one that failed and was done again counts once.

    Args:
        path: the record.
        finished: its groups that did not fail in the end.

    Raises:
        RecordError: unreadable, or a line is malformed.
    """
    counts = CountedOnce(finished)
    return (credited for credited in read_groups(path) if counts(credited))


class CountedOnce:
    """Says of each group of a record, in order, whether it counts."""

    def __init__(self, finished: Container[GroupKey]) -> None:
        """Know the groups that did not fail in the end."""
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
