"""Standard streams that a run outlives: without a reader or space for its output it goes on in silence."""

import io
import logging
import os
import select
import signal
import stat
import sys
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, TextIO

WAIT_S, WAIT_SHARE = 5.0, 0.05
"""How long a run waits for readers of its output: so many seconds, and a share of the time that it runs. What
does not fit then is dropped."""
HUNG_THREAD = "turnwise-hung-observer"
"""The name of a thread that may never end."""
logger = logging.getLogger(__name__)


class _OutlivedFile(io.FileIO):
    """A descriptor that leads nowhere after its first error, for all of its writers."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self.running_since: float | None = None
        """When a run began, which drops what nobody reads; `None` before."""
        self.is_stuck = False
        self.dropped = 0
        """Writes of which something was dropped."""
        self._own, self._waited_s = descriptor, 0.0
        with suppress(OSError):
            if os.isatty(descriptor) or stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                # Opened again, since other programs that have the descriptor would see O_NONBLOCK too.
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self._own = os.open(f"/dev/fd/{descriptor}", flags)
                weakref.finalize(self, os.close, self._own)

    def write(self, data: object, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]  # `None` there: would block
        view = memoryview(data).cast("B")  # pyright: ignore[reportArgumentType]
        size = view.nbytes
        try:
            while view and self._is_ready():
                with suppress(BlockingIOError):
                    # So much never blocks where a pipe could not be opened again.
                    view = view[os.write(self._own, view[: select.PIPE_BUF]) :]
        except OSError:
            lead_nowhere(self.fileno())
            self._own = self.fileno()
        else:
            self.dropped += bool(view)
        return size

    def _is_ready(self) -> bool:
        now, left_s = monotonic(), None
        if self.running_since is not None:
            left_s = max(0.0, WAIT_S + WAIT_SHARE * (now - self.running_since) - self._waited_s)
        self.is_stuck = not select.select([], [self._own], [], left_s)[1]
        self._waited_s += monotonic() - now
        return not self.is_stuck


class _OutlivedText(io.TextIOWrapper):
    """A stream with several writers: closing it only flushes it."""

    def __init__(self, file: _OutlivedFile, **options: Any) -> None:
        super().__init__(io.BufferedWriter(file), **options)
        self.file = file

    def close(self) -> None:
        self.flush()


@contextmanager
def outlived_console() -> Generator[None]:
    """While entered, whoever writes to stdout and stderr meets no error, and no signal ends it silently."""
    before = sys.stdout, sys.stderr
    ours = [_outlived(stream) for stream in before]
    sys.stdout, sys.stderr = ours
    in_main_thread = threading.current_thread() is threading.main_thread()
    # Functions, since programs that are started would inherit that a signal is ignored.
    handlers = {signal.SIGHUP: _go_on, signal.SIGUSR1: _end, signal.SIGUSR2: _end} if in_main_thread else {}
    earlier = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        files = [stream.file for stream in ours if isinstance(stream, _OutlivedText)]
        if dropped := sum(file.dropped for file in files):
            logger.warning("%d writes of output were dropped, since nobody read them", dropped)
        for stream in ours:
            stream.flush()
        for file in files:
            if file.is_stuck:
                lead_nowhere(file.fileno())
        sys.stdout, sys.stderr = before
        for number, handler in earlier.items():
            signal.signal(number, handler)


def drop_unread_output() -> None:
    """From now on, wait for readers of output no longer than `WAIT_S` and `WAIT_SHARE` allow."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, _OutlivedText):
            stream.file.running_since = monotonic()


def lead_nowhere(descriptor: int) -> None:
    """Send what is written to a descriptor to /dev/null, what is buffered for it too."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    if nowhere == descriptor:  # it was closed
        os.set_inheritable(descriptor, True)
        return
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def open_closed_descriptors() -> None:
    """Open what a program was started without: the next file would become its stdin, stdout or stderr."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            lead_nowhere(descriptor)


def _outlived(stream: TextIO | None) -> TextIO:
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    if stream not in (sys.__stdout__, sys.__stderr__):
        return stream  # a stream of the program's own
    try:
        stream.flush()
    except OSError:
        lead_nowhere(stream.fileno())
    # Text that the console cannot show, such as half a surrogate pair, ends nothing either.
    file = _OutlivedFile(stream.fileno())
    return _OutlivedText(file, encoding=stream.encoding, errors="backslashreplace", line_buffering=True)


def _end(number: int, frame: object) -> None:
    """While groups roll out, a run ends in order instead."""
    os.write(2, f"turnwise: ended by {signal.Signals(number).name}; the same command tries again\n".encode())
    os._exit(128 + number)


def _go_on(number: int, frame: object) -> None:
    """The terminal is closed; what is written from now on fails, and leads nowhere."""
