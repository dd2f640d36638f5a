"""Standard streams that a run outlives: without a reader or space for its output it goes on in silence."""

import io
import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

HUNG = "turnwise-hung-observer"
"""The name of a thread of `environments.run.observers` that may never end."""


class _OutlivedFile(io.FileIO):
    """A descriptor that leads nowhere after its first error, for all of its writers."""

    def write(self, data: object, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]  # `None` there: would block
        view = memoryview(data).cast("B")  # pyright: ignore[reportArgumentType]
        size = view.nbytes
        try:
            # `None`: a terminal that another program made non-blocking is full; what does not fit is lost.
            while view and (written := super().write(view)) is not None:
                view = view[written:]
        except OSError:
            lead_nowhere(self.fileno())
        return size


class OutlivedText(io.TextIOWrapper):
    """A stream with several writers: closing it only flushes it."""

    def close(self) -> None:
        """Flush."""
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
        for stream in ours:
            stream.flush()
        sys.stdout, sys.stderr = before
        for number, handler in earlier.items():
            signal.signal(number, handler)


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
    # Without a buffer, whose lock a thread would hold that hangs here.
    file: Any = _OutlivedFile(stream.fileno(), "wb", closefd=False)
    # Text that the console cannot show, such as half a surrogate pair, ends nothing either.
    return OutlivedText(file, encoding=stream.encoding, errors="backslashreplace", line_buffering=True)


def _end(number: int, frame: object) -> None:
    """While groups roll out, a run ends in order instead."""
    os.write(2, f"turnwise: ended by {signal.Signals(number).name}; the same command tries again\n".encode())
    os._exit(128 + number)


def _go_on(number: int, frame: object) -> None:
    """The terminal is closed; what is written from now on fails, and leads nowhere."""
