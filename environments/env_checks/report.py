"""What checks report, and the process that they run in: however it ends, each check has its row."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

Result = Literal["ok", "warn", "fail", "skipped"]
Answer = tuple[Result, str]
"""Result and explanation of a check."""
_ENDED: Answer = ("skipped", "the process had ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One row of the table."""

    check: str
    result: Result
    found: str
    """In words; of a check that was skipped, why."""


class Report:
    """Writes to a file as things are found: the process may not live to report them later. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Create the file."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        self._lock = threading.Lock()

    def add(self, **message: Any) -> None:
        """Write a line.

        Args:
            message: `finding`: a row; `shown` and `value`: what stands above the table; `begins`: a check;
                `doing`: the call that begins; `says`: a line of the watchdog; `end`: all checks were made.
        """
        # An environment's text may have half of a character.
        line = json.dumps(message, default=str, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        with self._lock:
            try:
                os.write(self._descriptor, line)
            except OSError:
                os._exit(1)  # the environment's code closed the file

    def add_finding(self, check: str, answer: Answer) -> None:
        """Write a row."""
        self.add(finding=asdict(Finding(check=check, result=answer[0], found=answer[1])))


@dataclass(slots=True, kw_only=True)
class CheckResults:
    """What the process reported."""

    findings: list[Finding] = field(default_factory=list[Finding])
    shown: dict[str, Any] = field(default_factory=dict[str, Any])
    exit_code: int | None = None
    """Where it ended before the first check: a usage error."""


def supervised(command: Sequence[str], names: Sequence[str], *, limit_s: float) -> CheckResults:
    """Run a command that writes its report to `--report FILE`; no process of it is left.

    Args:
        command: see above.
        names: of all checks.
        limit_s: seconds.
    """
    with TemporaryDirectory(prefix="turnwise-") as folder:
        report, temporary = Path(folder, "report"), Path(folder, "temporary")
        temporary.mkdir()  # what is left there at the end was left by a rollout
        process = subprocess.Popen(
            [*command, "--report", str(report)],
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
        lines = report.read_bytes().split(b"\n")[:-1] if report.exists() else []
    if not lines and code == 2:  # it has printed why
        return CheckResults(exit_code=code)
    return _results([json.loads(line) for line in lines], names, reason)


def _results(messages: Sequence[Mapping[str, Any]], names: Sequence[str], reason: str) -> CheckResults:
    """The findings; where the report has no end, its last check failed, and the others were skipped."""
    results, last = CheckResults(), {"begins": "", "doing": "", "says": ""}
    for message in messages:
        if "finding" in message:
            results.findings.append(Finding(**message["finding"]))
        elif "shown" in message:
            results.shown[message["shown"]] = message["value"]
        elif "begins" in message:
            last["doing"] = ""
        last |= {kind: message[kind] for kind in last.keys() & message.keys()}
    if messages and "end" in messages[-1]:
        return results
    made = {each.check for each in results.findings}
    left = [name for name in names if name not in made]
    ended_in = last["begins"] if last["begins"] in left else left[0]
    where = f" in {last['doing']}" if last["doing"] else ""
    why = f"; {last['says']}" if last["says"] else ""
    for name in left:
        result, found = ("fail", f"{reason}{where}{why}") if name == ended_in else _ENDED
        results.findings.append(Finding(check=name, result=result, found=found))
    return results
