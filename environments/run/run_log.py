"""The `log` of a run's folder: what each run said, bounded; nothing that goes wrong with it ends a run."""

import fcntl
import io
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from rich.console import Console

from environments.inference.endpoint import without_credentials
from environments.record.private_file import private, write_private
from tools.errors import RecordError

MOST_BYTES = 1_000_000
"""Of a run; of what earlier runs said, the last half of it is kept."""

MOMENT = "%Y-%m-%d %H:%M:%S UTC"


class RunLog:
    """Takes lines from the start; they are written once it is known where."""

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
