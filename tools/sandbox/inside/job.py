"""One running command: its streams, its deadline and how it is brought to an end."""

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
"""How much can be read: the number of x86 and ARM."""


class Capture:
    """Reads one descriptor without blocking; `total` is exact, `kept()` is at most `cap` bytes."""

    def __init__(self, fd: int, cap: int) -> None:
        self.fd = fd
        self.total = 0
        self.closed = False
        self._cap = cap
        self._head = bytearray()
        self._tail = bytearray()

    def read(self) -> int:
        """Take what is there, at most one chunk; 0 when nothing is, or at the end of the stream."""
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
        """Take everything written so far, but not what a writer that lives on keeps adding."""
        if self.closed:
            return
        there = bytearray(4)
        fcntl.ioctl(self.fd, _FIONREAD, there)
        # The last read is for the end of the stream.
        left = int.from_bytes(there, sys.byteorder) + 1
        while left > 0:
            count = self.read()
            if not count:
                return
            left -= count

    def kept(self) -> bytes:
        """Head and tail, joined where the middle was cut."""
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
"""How long the shell may take to leave a command whose processes are dead."""
_STEP_S = 0.01


class Job:
    """A command between its start and its result; `shell` is set when it runs in the persistent shell."""

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
        """Write some of stdin; `False` once there is nothing left or no reader."""
        try:
            self.stdin = self.stdin[os.write(self.stdin_fd, self.stdin[: 1 << 16]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return bool(self.stdin)

    def next_tick_s(self) -> float:
        """Seconds until `tick` has something to do."""
        due = self._deadline if self._ending is None else self._pressed + _STEP_S
        return max(0.0, due - time.monotonic())

    def tick(self) -> None:
        """End the command when its time or its output is up, and go on ending it."""
        if self._ending is None:
            if time.monotonic() >= self._deadline:
                self._timed_out = True
                self.end()
            elif max(self.out.total, self.err.total) > self._output_limit:
                self.end()
        elif time.monotonic() - self._pressed >= _STEP_S:
            # Not whenever some output comes: a shell under a hail of signals gets nowhere.
            self._press()

    def end(self) -> None:
        if self._ending is None:
            self._ending = time.monotonic()
        self._press()

    def result(self, code: int, message: bytes = b"") -> Done:
        """What came of it, after everything that was written before the end is collected.

        A `message` is the stderr of a command that could not start.
        """
        if self._ending is not None:
            code = 128 + signal.SIGKILL
        self.out.drain()
        self.err.drain()
        return Done(
            exit_code=code,
            stdout=self.out.kept(),
            stderr=self.err.kept() + message,
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
        # To look for the processes may have taken long.
        self._pressed = time.monotonic()

    def _press_shell(self, shell: Shell) -> None:
        # Stopped, the shell cannot start the next command of the list that is being killed.
        send(shell.pid, signal.SIGSTOP)
        kill_new(self._before, shell.pid)
        if self._ending is not None and time.monotonic() - self._ending > _PATIENCE_S:
            shell.kill()
        else:
            shell.interrupt()
        send(shell.pid, signal.SIGCONT)


_LONGEST_MS = 2**31 - 1
"""The longest wait that the kernel takes; longer ones are repeated."""


class Watch:
    """What the event loop of a sandbox waits for."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}

    def wait(self, timeout_ms: int) -> None:
        """Handle what comes, at the latest until the time is up; -1 waits for ever."""
        for fd, _ in self._poll.poll(min(timeout_ms, _LONGEST_MS)):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler()

    def on(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def when_writable(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLOUT)

    def off(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def close(self, fd: int) -> None:
        if fd in self._handlers:
            self.off(fd)
            os.close(fd)

    def collect(self, stream: Capture) -> None:
        """Read a stream for as long as anybody can write to it, then close it."""
        self.on(stream.fd, lambda: self._read(stream))

    def _read(self, stream: Capture) -> None:
        stream.read()
        if stream.closed:
            self.close(stream.fd)
