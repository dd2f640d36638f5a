"""The report of checks: the file, the child process that writes it, and the parts above the table."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from tools.plain_text import one_line, printable
from tools.sandbox.host.ownership import guard_command

Result = Literal["ok", "warn", "fail", "skipped"]
Answer = tuple[Result, str]
PARTS = {
    "prompt": "Prompt, as the model sees it",
    "tools": "Tools, as the model sees them",
    "hooks": "Calls of the first rollout, in order, and what each gave",
    "rollout": "The first rollout",
}
_MOST_LINES = 40


class Report:
    """A file that gets each finding at once, since the process may be killed. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        self._lock = threading.Lock()

    def add(self, values: Mapping[str, Any]) -> None:
        """Write values that replace former ones of the same name."""
        # Text of an environment may have lone surrogates.
        line = json.dumps(values, default=str, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        with self._lock:
            try:
                os.write(self._descriptor, line)
            except OSError:
                os._exit(1)  # the environment's code closed the file


def run_supervised(command: Sequence[str], names: Sequence[str], *, limit_s: float) -> dict[str, Any] | int:
    """Run a command that writes its report to `--report FILE`, and end all its processes."""
    with TemporaryDirectory(prefix="turnwise-") as folder:
        path, temporary = Path(folder, "report"), Path(folder, "temporary")
        temporary.mkdir()  # files that remain were left by a rollout
        process = subprocess.Popen(
            guard_command([*command, "--report", str(path)]),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        reason = f"it takes longer than {limit_s:g} s (--limit)"
        try:
            code = process.wait(limit_s)
            signals = {128 + each: f"signal {each.name}" for each in signal.Signals}
            reason = f"the process ended with {signals.get(code, f'exit code {code}')}"
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGTERM)
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


def part_lines(report: Mapping[str, Any], width: int) -> Iterator[str]:
    for name, title in PARTS.items():
        if values := report.get(f"shown {name}"):
            lines = list(_lines(name, values, width - 2))
            yield title
            yield from (f"  {line}" for line in lines[:_MOST_LINES])
            if len(lines) > _MOST_LINES:
                yield f"  … and {len(lines) - _MOST_LINES} more lines (--json has them)"
            yield ""


def _lines(part: str, values: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    for each in values:
        if part == "prompt":
            yield from _wrap(f"{each['role']}: {each['content']}", width)
        elif part == "tools":
            yield from _wrap(json.dumps(each, ensure_ascii=False), width)
        elif part == "hooks":
            longest = max(len(call["name"]) for call in values)
            given = _cut(each["given"], width - longest - 15)
            yield f"{each['name']:<{longest}} {1000 * each['seconds']:>8.1f} ms  {given}"
        else:
            reward = "" if each["reward"] is None else f" [{each['reward']:.3g}]"
            acts = " ".join([each["says"], *each["calls"]]).strip() or "(nothing)"
            yield f"turn {each['turn'] + 1}{reward}: {_cut(acts, width - 20)}"
            yield from (f"    → {_cut(answer, width - 8)}" for answer in each["answers"])


def _wrap(text: str, width: int) -> Iterator[str]:
    for line in text.splitlines():
        plain = printable(line, "\N{REPLACEMENT CHARACTER}")
        yield from textwrap.wrap(plain, max(20, width), subsequent_indent="    ") or [""]


def _cut(text: str, width: int) -> str:
    line, width = one_line(text), max(20, width)
    return line if len(line) <= width else f"{line[: width - 1]}…"
