"""The process of a supervisor, as a program that we started or in whatever other way it came to be."""

import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Protocol

from tools.sandbox import machine
from tools.sandbox.processes import children

_WORDS_BYTES = 2000


class Process(Protocol):
    """The outermost process of one sandbox."""

    def ends(self, *, within_s: float) -> bool:
        """Wait for its end; whether it came."""
        ...

    def kill(self) -> None:
        """End it and everything in its PID namespace."""
        ...

    def last_words(self) -> str:
        """What it wrote to stderr."""
        ...

    def close(self) -> None:
        """Give back what was held for it."""
        ...


class Program:
    """A supervisor below a program of ours, such as bubblewrap."""

    def __init__(self, command: Sequence[str], fds: Sequence[int]) -> None:
        self._log = machine.memory_file(b"")
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._log,
                env=machine.ENVIRONMENT, cwd="/", pass_fds=fds, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(self._log)
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ends(self, *, within_s: float) -> bool:
        """Wait for its end; whether it came."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it and its direct children: one of them is process 1 of the sandbox."""
        for pid in [*children(self._process.pid), self._process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it went meanwhile

    def last_words(self) -> str:
        """The last line of what it wrote to stderr: of a traceback the one that says what was wrong."""
        size = os.fstat(self._log).st_size
        text = os.pread(self._log, _WORDS_BYTES, max(0, size - _WORDS_BYTES)).decode("utf-8", "replace")
        return (text.strip().splitlines() or [""])[-1]

    def close(self) -> None:
        """Give back what was held for it."""
        os.close(self._log)
