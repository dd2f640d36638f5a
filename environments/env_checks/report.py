"""What checks find, line by line, and the process that writes it: however that ends, each has an answer."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

Result = Literal["ok", "warn", "fail", "skipped"]
Answer = tuple[Result, str]
"""Result and explanation of a check."""


class Report:
    """Writes to a file as things are found: the process may not live to report them later. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Create the file."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        self._lock = threading.Lock()

    def add(self, values: Mapping[str, Any]) -> None:
        """Write a line, whose values take the place of former ones.

        Args:
            values: by the name of a check, its answer; `shown NAME`: what stands above the table; `check`:
                the one that begins, `None` at the end; `doing`: the call that begins; `blocked`: the line of
                the watchdog.
        """
        # An environment's text may have half of a character.
        line = json.dumps(values, default=str, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        with self._lock:
            try:
                os.write(self._descriptor, line)
            except OSError:
                os._exit(1)  # the environment's code closed the file


def supervised(command: Sequence[str], names: Sequence[str], *, limit_s: float) -> dict[str, Any] | int:
    """Run a command that writes its report to `--report FILE`; no process of it is left.

    Args:
        command: see above.
        names: of all checks.
        limit_s: seconds.

    Returns:
        The report, in which each check has an answer; or the exit code of a usage error.
    """
    with TemporaryDirectory(prefix="turnwise-") as folder:
        path, temporary = Path(folder, "report"), Path(folder, "temporary")
        temporary.mkdir()  # what is left there at the end was left by a rollout
        process = subprocess.Popen(
            [*command, "--report", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        reason = f"it takes longer than {limit_s:g} s (--limit)"
        try:
            code = process.wait(limit_s)
            how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
            reason = f"the process ended with {how}"
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    if not lines and code == 2:  # it has printed why
        return code
    report: dict[str, Any] = {"check": names[0]}
    for line in lines:
        report |= json.loads(line)
    if report["check"] is not None:
        where = f" in {report['doing']}" if report.get("doing") else ""
        why = f"; {report['blocked']}" if report.get("blocked") else ""
        report[report["check"]] = "fail", f"{reason}{where}{why}"
    ended: Answer = "skipped", "the process had ended"
    return dict.fromkeys(names, ended) | report
