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
        _run([shell, "-c", command], notes, deadline, request["call_s"])
    with notes.open("rb") as file:
        sys.stdout.buffer.write(file.read(MAX_NOTES_BYTES))


def _put_solution(request: Mapping[str, Any], notes: Path) -> None:
    solution = Path(SOLUTION)
    with contextlib.suppress(FileNotFoundError):
        solution.unlink()
    call = f"_note_calls({request['entry_point']!r}, {str(notes)!r}, {MAX_NOTES_BYTES})\n"
    solution.write_text(f"{request['solution']}{_NOTING}{call}")


def _run(argv: list[str], notes: Path, deadline: float, call_s: float) -> None:
    """Run one command until it ends, the time is up or a call does not come back."""
    process = subprocess.Popen(
        argv,
        env={**os.environ, "HOME": str(Path.cwd())},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while process.poll() is None and time.monotonic() < deadline and not _hangs(notes, call_s):
        time.sleep(POLL_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _hangs(notes: Path, call_s: float) -> bool:
    """Whether the last note is a call, and an old one."""
    if time.time() - notes.stat().st_mtime < call_s:
        return False
    return notes.read_bytes().rpartition(b"\n")[0].rpartition(b"\n")[2].startswith(b"('called'")


if __name__ == "__main__":
    main()
