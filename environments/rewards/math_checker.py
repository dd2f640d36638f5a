"""Comparison of mathematical answers by math-verify, in processes that an answer may hang or crash."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import MutableMapping
from importlib.util import find_spec
from pathlib import Path

from tools.errors import ConfigError, RewardError
from tools.extras import needs_extra

TIMEOUTS = "math_timeouts"
_PROGRAM = Path(__file__).with_name("math_program.py")
_START, _EXPECTED_READ = b"s", b"e"
_EQUAL, _UNREADABLE, _EXHAUSTED, _LOST = b"=", b"?", b"x", b"-"
_TRIES = 3
_MAX_QUEUED = 64
_FULL_S = 0.05


class MathChecker:
    """Compares mathematical texts with math-verify; one object serves all rollouts of an environment.

    A program starts with the first check and forks a process for each. It ends with `close`, with the object
    or with this process.
    """

    def __init__(self, *, cpu_s: int = 3) -> None:
        """Set the limit of a check.

        Args:
            cpu_s: Processor time, so that a busy machine makes no answer wrong.

        Raises:
            ConfigError: if math-verify is not installed, or `cpu_s` is less than 1.
        """
        with needs_extra("math", "MathChecker"):
            if find_spec("math_verify") is None:
                raise ModuleNotFoundError(name="math_verify")
        if cpu_s < 1:
            raise ConfigError(f"MathChecker: cpu_s is {cpu_s}; give whole seconds, at least 1")
        self._cpu_s = cpu_s
        self._program: _Program | None = None

    async def equal(
        self, answer: str | None, expected: str, metrics: MutableMapping[str, float] | None = None
    ) -> bool:
        r"""Whether math-verify finds the answer equal to the expected one.

        A text is a LaTeX expression (`\frac{1}{2}`, as returned by `boxed`), or any text with expressions
        between delimiters (`$…$`, `\(…\)`, `\[…\]`, `\boxed{…}`). An answer that cannot be read, or that
        hangs its check, is not equal.

        Args:
            answer: The agent's answer; `None` is not equal.
            expected: The right answer.
            metrics: `ctx.metrics`, where `math_timeouts` counts checks that hung.

        Raises:
            RewardError: if the expected answer cannot be read, or checks end for another reason.
        """
        words = b"" if answer is None else await self._check(answer, expected)
        if _UNREADABLE in words or (_EXHAUSTED in words and _EXPECTED_READ not in words):
            raise RewardError(f"math-verify cannot read the expected answer {expected!r:.200}")
        if metrics is not None:
            metrics[TIMEOUTS] = metrics.get(TIMEOUTS, 0.0) + (_EXHAUSTED in words)
        return _EQUAL in words

    def close(self) -> None:
        """End the program with all its checks; the next check starts it again."""
        if self._program is not None:
            self._program.end()

    async def _check(self, answer: str, expected: str) -> bytes:
        request = json.dumps([expected, answer]).encode() + b"\n"
        for _ in range(_TRIES):
            if self._program is None or self._program.has_ended:
                self._program = _Program(self._cpu_s)
            program = self._program
            words = await program.ask(request)
            if not words:  # the program itself is gone
                program.end()
            elif words.strip(_START + _EXPECTED_READ) and _LOST not in words:
                return words
        raise RewardError(
            f"a check of math-verify was lost {_TRIES} times: its processes are ended, or cannot start"
        )


class _Program:
    def __init__(self, cpu_s: int) -> None:
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        argv = [sys.executable, "-P", str(_PROGRAM), str(cpu_s), str(os.cpu_count() or 1)]
        with theirs:
            self._process = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                # No keys or tokens of this process: its input is written by agents.
                env={"PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,
            )
        self._queued = 0
        self.end = weakref.finalize(self, _end, self._process, self._control)

    @property
    def has_ended(self) -> bool:
        return not self.end.alive or self._process.poll() is not None

    async def ask(self, request: bytes) -> bytes:
        while self._queued >= _MAX_QUEUED:  # noqa: ASYNC110  # an Event would belong to one event loop
            await asyncio.sleep(_FULL_S)
        self._queued += 1
        try:
            ours, theirs = socket.socketpair()
            loop = asyncio.get_running_loop()
            words = b""
            with ours, contextlib.suppress(OSError):
                ours.setblocking(False)
                with theirs:
                    socket.send_fds(self._control, [b" "], [theirs.fileno()])
                await loop.sock_sendall(ours, request)
                while word := await loop.sock_recv(ours, 16):
                    words += word
            return words
        finally:
            self._queued -= 1


def _end(process: "subprocess.Popen[bytes]", control: socket.socket) -> None:
    control.close()
    if process.poll() is None:  # its pid may belong to another process once it has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
