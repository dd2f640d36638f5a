"""One running command: its streams, its deadline and its end."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Callable

from tools.sandbox.inside.messages import Done, Request
from tools.sandbox.inside.processes import Identity, kill_new, send
from tools.sandbox.inside.shell import Shell

CHUNK_BYTES = 1 << 18
_FIONREAD = 0x541B
"""ioctl for the number of readable bytes, on x86 and ARM."""


class Capture:
    """Reads a descriptor without blocking, keeping at most `cap` bytes of head and tail."""

    def __init__(self, fd: int, cap: int) -> None:
        self.fd = fd
        self.total = 0
        self.closed = False
        self._cap = cap
        self._head = bytearray()
        self._tail = bytearray()

    def read(self) -> int:
        """Read at most one chunk; return 0 if nothing is available or at the end."""
        if self.closed:
            return 0
        try:
            data = os.read(self.fd, CHUNK_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self.closed = True
        self._keep(data)
        return len(data)

    def drain(self) -> None:
        """Read what has been written so far; background writers may continue."""
        if self.closed:
            return
        there = bytearray(4)
        fcntl.ioctl(self.fd, _FIONREAD, there)
        # One more read detects the end of the stream.
        left = int.from_bytes(there, sys.byteorder) + 1
        while left > 0:
            count = self.read()
            if not count:
                return
            left -= count

    def output(self) -> bytes:
        tail_cap = self._cap - self._cap // 2
        return bytes(self._head) + bytes(self._tail[-tail_cap:] if tail_cap else b"")

    def _keep(self, data: bytes) -> None:
        self.total += len(data)
        room = self._cap // 2 - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        tail_cap = self._cap - self._cap // 2
        self._tail += data
        if len(self._tail) > 2 * tail_cap + CHUNK_BYTES:
            del self._tail[: len(self._tail) - tail_cap]


_PATIENCE_S = 0.9
"""Time limit of the shell for leaving a killed command."""
_STEP_S = 0.01


class Job:
    """A command from its start to its result; `shell` is set in the persistent shell."""

    def __init__(
        self, request: Request, output_limit: int, before: set[Identity], oom_count: Callable[[], int]
    ) -> None:
        self._cap = request.max_output_bytes
        self._output_limit = output_limit
        self._before = before
        self._oom_count = oom_count
        self._oom = oom_count()
        self._started = time.monotonic()
        self._deadline = self._started + request.timeout_s
        self._ending: float | None = None
        self._pressed = 0.0
        self._timed_out = False
        self.pid = 0
        self.shell: Shell | None = None
        self.restarted = False
        self.stdin = memoryview(b"")
        self.stdin_fd = -1
        self.out = self.err = Capture(-1, 0)

    def attach(self, out: int, err: int) -> None:
        self.out = Capture(out, self._cap)
        self.err = Capture(err, self._cap)

    def feed(self) -> bool:
        """Write some of stdin; return whether more is left."""
        try:
            self.stdin = self.stdin[os.write(self.stdin_fd, self.stdin[: 1 << 16]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return bool(self.stdin)

    def next_tick_s(self) -> float:
        due = self._deadline if self._ending is None else self._pressed + _STEP_S
        return max(0.0, due - time.monotonic())

    def tick(self) -> None:
        if self._ending is None:
            if time.monotonic() >= self._deadline:
                self._timed_out = True
                self.end()
            elif max(self.out.total, self.err.total) > self._output_limit:
                self.end()
        elif time.monotonic() - self._pressed >= _STEP_S:
            # Repeated at intervals: a shell that gets signals all the time never proceeds.
            self._press()

    def end(self) -> None:
        if self._ending is None:
            self._ending = time.monotonic()
        self._press()

    def result(self, code: int, message: bytes = b"") -> Done:
        """Collect the result; `message` is the stderr of a command that did not start."""
        if self._ending is not None:
            code = 128 + signal.SIGKILL
        self.out.drain()
        self.err.drain()
        return Done(
            exit_code=code,
            stdout=self.out.output(),
            stderr=self.err.output() + message,
            stdout_total=self.out.total,
            stderr_total=self.err.total + len(message),
            timed_out=self._timed_out,
            oom_killed=self._oom_count() > self._oom,
            shell_restarted=self.restarted,
            duration_s=time.monotonic() - self._started,
        )

    def _press(self) -> None:
        if self.shell is None:
            kill_new(self._before)
        else:
            self._press_shell(self.shell)
        self._pressed = time.monotonic()

    def _press_shell(self, shell: Shell) -> None:
        # A stopped shell cannot start the next command of a list.
        send(shell.pid, signal.SIGSTOP)
        kill_new(self._before, shell.pid)
        if self._ending is not None and time.monotonic() - self._ending > _PATIENCE_S:
            shell.kill()
        else:
            shell.interrupt()
        send(shell.pid, signal.SIGCONT)


_LONGEST_MS = 2**31 - 1


class Watch:
    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}

    def wait(self, timeout_ms: int) -> None:
        """Handle events that arrive within the timeout; -1 waits forever."""
        for fd, _ in self._poll.poll(min(timeout_ms, _LONGEST_MS)):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler()

    def on(self, fd: int, handler: Callable[[], None], event: int = select.POLLIN) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, event)

    def off(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def close(self, fd: int) -> None:
        if fd in self._handlers:
            self.off(fd)
            os.close(fd)

    def collect(self, stream: Capture) -> None:
        def read() -> None:
            stream.read()
            if stream.closed:
                self.close(stream.fd)

        self.on(stream.fd, read)
