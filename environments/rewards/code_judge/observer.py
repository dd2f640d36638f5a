"""The program that runs an agent's commands once more, and prints how they called the function of the task.

It runs in a fresh sandbox that has the agent's files, but the original solution with a few lines at its end
that note every call from outside. What it prints is a claim: the commands could have written it themselves.
So `comparison.py` finds out elsewhere whether these calls fail. What the commands print comes out as stderr.
With a right solution in the request the function answers as that one does: what is printed then differs by
what shows the failure.
Only the standard library is there when this runs, and what ends all that a command started.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from tools.sandbox.inside.kernel import adopt_orphans
from tools.sandbox.inside.processes import kill_new, runnable

MAX_NOTES_BYTES = 128 << 10
KEPT_BYTES = 64 << 10
"""Of the output of a command, at its start and at its end: less than its agent saw."""
POLL_S = 0.02
SOLUTION = "solution.py"

_NOTING = """

def _note_calls(name, path, max_bytes, right):
    import functools, os
    function = globals()[name]
    if os.path.exists(right):
        answers = {"__name__": __name__}
        with open(right) as file:
            exec(compile(file.read(), right, "exec"), answers)
        function = answers[name]

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
    adopt_orphans()
    request = json.load(sys.stdin)
    folder = Path.cwd() / f".{os.urandom(8).hex()}"
    folder.mkdir(mode=0o700)
    notes = folder / "calls"
    notes.touch()
    if request["right"]:
        (folder / "right").write_text(request["right"])
    _put_solution(request, notes)
    shells = (f"{folder}/bash" for folder in os.get_exec_path())
    shell = next((each for each in shells if os.access(each, os.X_OK)), "sh")
    clock = Clock(request["starved_s"])
    for command in request["commands"]:
        # They were written where the workspace had this name and was the home.
        command = command.replace(request["workspace"], str(Path.cwd()))
        call = OpenCall(notes, clock, request["cpu_s"], request["wall_s"])
        with (folder / "output").open("w+b") as output:
            _run([shell, "-c", command], call, clock, request["total_s"], output)
            printed = _ends(output).replace(str(Path.cwd()).encode(), request["workspace"].encode())
        sys.stderr.buffer.write(printed + b"\n")
    with notes.open("rb") as file:
        sys.stdout.buffer.write(file.read(MAX_NOTES_BYTES))


def _put_solution(request: Mapping[str, Any], notes: Path) -> None:
    solution = Path(SOLUTION)
    with contextlib.suppress(FileNotFoundError):
        solution.unlink()
    paths = f"{str(notes)!r}, {MAX_NOTES_BYTES}, {str(notes.with_name('right'))!r}"
    call = f"_note_calls({request['entry_point']!r}, {paths})\n"
    solution.write_text(f"{request['solution']}{_NOTING}{call}")


class Clock:
    """Time that stands still while a command's one busy process waits for a processor, up to a limit."""

    def __init__(self, most_waited_s: float) -> None:
        self.now_s = 0.0
        self._left_s = most_waited_s
        self._last, self._waited_s = time.monotonic(), dict[str, float]()

    def tick(self, session: int) -> None:
        """Go on to now."""
        now, waited = time.monotonic(), _waited_s(session)
        waits = [total - self._waited_s.get(pid, 0.0) for pid, total in waited.items()]
        passed_s = now - self._last
        # Those that share a processor among themselves wait at their own cost.
        waited_s = max(waits, default=0.0) if len(runnable()) <= 1 else 0.0
        stood_s = min(waited_s, passed_s, self._left_s)
        self.now_s += passed_s - stood_s
        self._left_s -= stood_s
        self._last, self._waited_s = now, waited


class OpenCall:
    """The call that was noted last, for as long as nothing is noted of how it ended."""

    def __init__(self, notes: Path, clock: Clock, cpu_s: float, wall_s: float) -> None:
        self._notes, self._clock, self._cpu_s, self._wall_s = notes, clock, cpu_s, wall_s
        self._bytes, self._is_open = -1, False
        self._before_s, self._since = 0.0, 0.0

    def hangs(self, session: int) -> bool:
        """Whether it has taken too long: processor time of the session's processes, or wall clock."""
        size = self._notes.stat().st_size
        if size != self._bytes:
            self._bytes, self._since = size, self._clock.now_s
            self._is_open = self._last_note().startswith(b"('called'")
            self._before_s = _cpu_s(session) if self._is_open else 0.0
        if not self._is_open:
            return False
        spent_s = _cpu_s(session) - self._before_s
        return spent_s > self._cpu_s or self._clock.now_s - self._since > self._wall_s

    def _last_note(self) -> bytes:
        return self._notes.read_bytes().rpartition(b"\n")[0].rpartition(b"\n")[2]


def _stats(session: int) -> Iterator[tuple[Path, list[str]]]:
    """The running processes of a session, with the kernel's information on each."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                yield stat.parent, fields


def _cpu_s(session: int) -> float:
    """Processor time of the processes of a session that still run."""
    ticks = sum(int(fields[11]) + int(fields[12]) for _, fields in _stats(session))
    return ticks / os.sysconf("SC_CLK_TCK")


def _waited_s(session: int) -> dict[str, float]:
    """For how long each of them waited for a processor; nothing if the kernel does not report it."""
    waited: dict[str, float] = {}
    for process, _ in _stats(session):
        with contextlib.suppress(OSError, ValueError, IndexError):
            waited[process.name] = int((process / "schedstat").read_bytes().split()[1]) / 1e9
    return waited


def _ends(output: IO[bytes]) -> bytes:
    size = output.seek(0, os.SEEK_END)
    output.seek(0)
    head = output.read(KEPT_BYTES)
    output.seek(max(KEPT_BYTES, size - KEPT_BYTES))
    return head + output.read(KEPT_BYTES)


def _run(argv: list[str], call: OpenCall, clock: Clock, total_s: float, output: IO[bytes]) -> None:
    """Run one command until it ends, the time is up or a call does not come back."""
    process = subprocess.Popen(
        argv,
        env={**os.environ, "HOME": str(Path.cwd())},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    while process.poll() is None and clock.now_s < total_s and not call.hangs(process.pid):
        time.sleep(POLL_S)
        clock.tick(process.pid)
    kill_new(set())
    process.wait()


if __name__ == "__main__":
    main()
