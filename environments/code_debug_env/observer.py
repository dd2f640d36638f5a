"""The program that runs an agent's commands once more, and prints how they called the function of the task.

It runs in a fresh sandbox that has the agent's files, but the original solution with a few lines at its end
that note every call from outside. What it prints is a claim: the commands could have written it themselves.
So `comparison.py` finds out elsewhere whether these calls fail.
Only the standard library is there when this runs.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_NOTES_BYTES = 128 << 10
POLL_S = 0.02
SOLUTION = "solution.py"

_NOTING = """

def _note_calls(name, path, max_bytes):
    import functools, os
    function = globals()[name]

    def note(*entry):
        try:
            line = repr(entry).encode() + b"\\n"
            fd = os.open(path, os.O_WRONLY | os.O_APPEND)
            try:
                if os.fstat(fd).st_size + len(line) < max_bytes:
                    os.write(fd, line)
            finally:
                os.close(fd)
        except Exception:
            pass

    @functools.wraps(function)
    def noted(*args, **kwargs):
        globals()[name] = function  # calls of its own are no news
        note("called", args, kwargs)
        try:
            result = function(*args, **kwargs)
            note("returned", result)
            return result
        except BaseException as error:
            note("raised", type(error).__name__)
            raise
        finally:
            globals()[name] = noted

    globals()[name] = noted


"""


def main() -> None:
    """Run the commands of the request on standard input, and print the calls."""
    request = json.load(sys.stdin)
    folder = Path(tempfile.mkdtemp(dir=Path.cwd(), prefix="."))
    notes = folder / "calls"
    notes.touch()
    _put_solution(request, notes)
    shell = shutil.which("bash") or "sh"
    deadline = time.monotonic() + request["total_s"]
    for command in request["commands"]:
        # They were written where the workspace had this name and was the home.
        command = command.replace(request["workspace"], str(Path.cwd()))
        _run([shell, "-c", command], OpenCall(notes, request["cpu_s"], request["wall_s"]), deadline)
    with notes.open("rb") as file:
        sys.stdout.buffer.write(file.read(MAX_NOTES_BYTES))


def _put_solution(request: Mapping[str, Any], notes: Path) -> None:
    solution = Path(SOLUTION)
    with contextlib.suppress(FileNotFoundError):
        solution.unlink()
    call = f"_note_calls({request['entry_point']!r}, {str(notes)!r}, {MAX_NOTES_BYTES})\n"
    solution.write_text(f"{request['solution']}{_NOTING}{call}")


class OpenCall:
    """The call that was noted last, for as long as nothing is noted of how it ended."""

    def __init__(self, notes: Path, cpu_s: float, wall_s: float) -> None:
        self._notes, self._cpu_s, self._wall_s = notes, cpu_s, wall_s
        self._bytes, self._is_open = -1, False
        self._before_s, self._since = 0.0, 0.0

    def hangs(self, session: int) -> bool:
        """Whether it has taken too long: processor time of the session's processes, or wall clock."""
        size = self._notes.stat().st_size
        if size != self._bytes:
            self._bytes, self._since = size, time.monotonic()
            self._is_open = self._last_note().startswith(b"('called'")
            self._before_s = _cpu_s(session) if self._is_open else 0.0
        if not self._is_open:
            return False
        spent_s = _cpu_s(session) - self._before_s
        return spent_s > self._cpu_s or time.monotonic() - self._since > self._wall_s

    def _last_note(self) -> bytes:
        return self._notes.read_bytes().rpartition(b"\n")[0].rpartition(b"\n")[2]


def _cpu_s(session: int) -> float:
    """Processor time of the processes of a session that still run."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _run(argv: list[str], call: OpenCall, deadline: float) -> None:
    """Run one command until it ends, the time is up or a call does not come back."""
    process = subprocess.Popen(
        argv,
        env={**os.environ, "HOME": str(Path.cwd())},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while process.poll() is None and time.monotonic() < deadline and not call.hangs(process.pid):
        time.sleep(POLL_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    main()
