"""Standard streams that never end a run: without a reader or disk space, output is dropped."""

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
"""Limits on how long a run waits for readers of its output: seconds, plus a share of its running time.
Later output is dropped."""
HUNG_THREAD = "turnwise-hung-observer"
logger = logging.getLogger(__name__)


class _RobustFile(io.FileIO):
    """A descriptor that is redirected to /dev/null after its first error, for all its writers."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self.running_since: float | None = None
        self.is_stuck = False
        self.dropped = 0
        self._own, self._waited_s = descriptor, 0.0
        with suppress(OSError):
            if os.isatty(descriptor) or stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                # Opened anew: O_NONBLOCK would apply to all programs that share the descriptor.
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self._own = os.open(f"/dev/fd/{descriptor}", flags)
                weakref.finalize(self, os.close, self._own)

    def write(self, data: object, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]  # `None` there: would block
        view = memoryview(data).cast("B")  # pyright: ignore[reportArgumentType]
        size = view.nbytes
        try:
            while view and self._is_ready():
                with suppress(BlockingIOError):
                    # PIPE_BUF bytes never block, for a pipe that could not be opened anew.
                    view = view[os.write(self._own, view[: select.PIPE_BUF]) :]
        except OSError:
            redirect_to_null(self.fileno())
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


class _RobustText(io.TextIOWrapper):
    def __init__(self, file: _RobustFile, **options: Any) -> None:
        super().__init__(io.BufferedWriter(file), **options)
        self.file = file

    def close(self) -> None:
        self.flush()


@contextmanager
def robust_console() -> Generator[None]:
    """While entered, writes to stdout and stderr raise no error, and no signal ends the process silently."""
    before = sys.stdout, sys.stderr
    ours = [_wrap(stream) for stream in before]
    sys.stdout, sys.stderr = ours
    in_main_thread = threading.current_thread() is threading.main_thread()
    # Functions instead of SIG_IGN, which child processes would inherit.
    handlers = (
        {signal.SIGHUP: _ignore_hangup, signal.SIGUSR1: _exit_on_signal, signal.SIGUSR2: _exit_on_signal}
        if in_main_thread
        else {}
    )
    earlier = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        files = [stream.file for stream in ours if isinstance(stream, _RobustText)]
        if dropped := sum(file.dropped for file in files):
            logger.warning("%d writes of output were dropped, since nobody read them", dropped)
        for stream in ours:
            stream.flush()
        for file in files:
            if file.is_stuck:
                redirect_to_null(file.fileno())
        sys.stdout, sys.stderr = before
        for number, handler in earlier.items():
            signal.signal(number, handler)


def drop_unread_output() -> None:
    """From now on, wait for readers of output no longer than `WAIT_S` and `WAIT_SHARE` allow."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, _RobustText):
            stream.file.running_since = monotonic()


def redirect_to_null(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    if nowhere == descriptor:  # it was closed
        os.set_inheritable(descriptor, True)
        return
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def open_closed_descriptors() -> None:
    """Open missing standard descriptors, or the next opened file would become stdin, stdout or stderr."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            redirect_to_null(descriptor)


def _wrap(stream: TextIO | None) -> TextIO:
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    if stream not in (sys.__stdout__, sys.__stderr__):
        return stream  # replaced by the program
    try:
        stream.flush()
    except OSError:
        redirect_to_null(stream.fileno())
    # backslashreplace: text that the console cannot encode raises no error.
    file = _RobustFile(stream.fileno())
    return _RobustText(file, encoding=stream.encoding, errors="backslashreplace", line_buffering=True)


def _exit_on_signal(number: int, frame: object) -> None:
    os.write(2, f"turnwise: ended by {signal.Signals(number).name}; the same command tries again\n".encode())
    os._exit(128 + number)


def _ignore_hangup(number: int, frame: object) -> None: ...
