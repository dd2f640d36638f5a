"""The process that checks run in, and what it told: that it ends, hangs or stands still is a row, too."""

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import orjson

from environments.env_checks.finding import Finding

_SILENCE_S = 30.0
"""Without a sign of life the interpreter itself is held, by code in C."""
_END_S = 5.0


@dataclass(slots=True, kw_only=True)
class Told:
    """What the process told."""

    findings: list[Finding] = field(default_factory=list[Finding])
    shown: dict[str, Any] = field(default_factory=dict[str, Any])
    exit_code: int | None = None
    """Where it ended before it had anything to tell: a usage error."""
    _check: str = ""
    _doing: str = ""
    _said: str = ""
    _is_whole: bool = False
    _has_begun: bool = False

    def take(self, message: dict[str, Any]) -> None:
        """One line."""
        self._has_begun = True
        if "finding" in message:
            self.findings.append(Finding(**message["finding"]))
        elif "shown" in message:
            self.shown[message["shown"]] = message["value"]
        if "begins" in message:
            self._check, self._doing = message["begins"], ""
        self._doing = message.get("doing", self._doing)
        self._said = message.get("says", self._said)
        self._is_whole = self._is_whole or "end" in message

    @property
    def is_whole(self) -> bool:
        """Whether all checks were made."""
        return self._is_whole

    @property
    def has_begun(self) -> bool:
        """Whether it came as far as the first check."""
        return self._has_begun

    def ended(self, reason: str, names: Sequence[str]) -> None:
        """Tell of the rest, when the process ended in the middle of it."""
        said = f"; {self._said}" if self._said else ""
        where = f" in {self._doing}" if self._doing else ""
        left = [name for name in names if name not in {each.check for each in self.findings}]
        current = self._check if self._check in left else left[0]
        for name in left:
            self.findings.append(
                Finding(check=name, result="fail", found=f"{reason}{where}{said}")
                if name == current
                else Finding(check=name, result="skipped", found="the process had ended")
            )


def supervised(command: Sequence[str], names: Sequence[str], *, limit_s: float) -> Told:
    """Run a command that reports through `--report-fd`, for so long at most; nothing of it is left."""
    reading, writing = os.pipe()
    told = Told()
    with (
        os.fdopen(reading, "rb", buffering=0) as pipe,
        TemporaryDirectory(prefix="turnwise-") as temporary,
    ):
        try:
            process = subprocess.Popen(
                [*command, "--report-fd", str(writing)],
                pass_fds=[writing],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                start_new_session=True,
                env={
                    **os.environ,
                    "TMPDIR": temporary,
                },  # what is left there at the end was left by a rollout
            )
        finally:
            os.close(writing)
        reason: str | None = "interrupted"
        try:
            reason = _read(pipe, told, limit_s)
        finally:
            code = _end(process, wait_s=_END_S if reason is None else 0)
    if not told.has_begun and code == 2:  # it has told why
        told.exit_code = code
    elif not told.is_whole:
        told.ended(reason or f"the process ended with {_code(code)}", names)
    return told


def _read(pipe: Any, told: Told, limit_s: float) -> str | None:
    """Read to the end; why it was not waited for, if it was not."""
    ends = monotonic() + limit_s
    rest, last_sign = b"", monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            now = monotonic()
            if now > ends:
                return f"it takes longer than {limit_s:g} s (--limit)"
            if told.has_begun and now - last_sign > _SILENCE_S:
                return f"Python itself stood still for {_SILENCE_S:g} s: code in C holds the interpreter"
            if not selector.select(timeout=0.5):
                continue
            chunk = pipe.read(1 << 16)
            if not chunk:
                return None
            last_sign = now
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                told.take(orjson.loads(line))
            if told.is_whole:
                return None


def _end(process: "subprocess.Popen[bytes]", *, wait_s: float) -> int:
    """Its exit code, once it and all that it started is gone."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(wait_s)
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _code(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
