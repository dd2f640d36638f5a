"""The program that runs an agent's commands again, and prints their calls of the task's function.

It runs in a fresh sandbox with the agent's files and the original solution, to which it appends lines that
note every call from outside. The output of the commands goes to stderr. Only the standard library and
`tools.sandbox.inside` are available here.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import IO

from tools.sandbox.inside.kernel import adopt_orphans
from tools.sandbox.inside.processes import kill_new

MAX_NOTES_BYTES = 128 << 10
KEPT_BYTES = 64 << 10
SOLUTION = "solution.py"
_POLL_S = 0.002

_NOTING = """

def _note_calls(name, path, max_bytes, right, cpu_s):
    import functools, os, resource, time
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

    def bound(end_s):
        try:
            hard_s = resource.getrlimit(resource.RLIMIT_CPU)[1]
            resource.setrlimit(resource.RLIMIT_CPU, (min(end_s, hard_s), hard_s))
        except Exception:
            pass

    @functools.wraps(function)
    def noted(*args, **kwargs):
        globals()[name] = function  # nested calls are not noted
        note("called", args, kwargs)
        bound(int(time.process_time()) + 1 + cpu_s)  # an endless call ends its process
        try:
            result = function(*args, **kwargs)
            note("returned", result)
            return result
        except BaseException as error:
            note("raised", type(error).__name__)
            raise
        finally:
            bound(1 << 30)
            globals()[name] = noted

    globals()[name] = noted


"""


def main() -> None:
    adopt_orphans()
    request = json.load(sys.stdin)
    here, workspace = str(Path.cwd()), request["workspace"]
    folder = Path.cwd() / f".{os.urandom(8).hex()}"
    folder.mkdir(mode=0o700)
    notes, right, solution = folder / "calls", folder / "right", Path(SOLUTION)
    notes.touch()
    if request["right"]:
        right.write_text(request["right"])
    with contextlib.suppress(FileNotFoundError):
        solution.unlink()
    given = (request["entry_point"], str(notes), MAX_NOTES_BYTES, str(right), request["call_cpu_s"])
    solution.write_text(f"{request['solution']}{_NOTING}_note_calls{given!r}\n")
    shells = (f"{folder}/bash" for folder in os.get_exec_path())
    shell = next((each for each in shells if os.access(each, os.X_OK)), "sh")
    due = time.monotonic() + request["wall_s"]
    for left, command in zip(range(len(request["commands"]), 0, -1), request["commands"], strict=True):
        with (folder / "output").open("w+b") as output:
            # The agent wrote its commands for another workspace.
            argv = [shell, "-c", command.replace(workspace, here)]
            share_s = (due - time.monotonic()) / left  # a command that waits leaves time for the next
            _run_shell(argv, request["cpu_s"], share_s, output)
            sys.stderr.buffer.write(_ends(output).replace(here.encode(), workspace.encode()) + b"\n")
    with notes.open("rb") as file:
        sys.stdout.buffer.write(file.read(MAX_NOTES_BYTES))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _ends(output: IO[bytes]) -> bytes:
    size = output.seek(0, os.SEEK_END)
    output.seek(0)
    head = output.read(KEPT_BYTES)
    output.seek(max(KEPT_BYTES, size - KEPT_BYTES))
    return head + output.read(KEPT_BYTES)


def _run_shell(argv: list[str], cpu_s: int, timeout_s: float, output: IO[bytes]) -> None:
    # Not by `subprocess`, whose import costs as much as a shell.
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            for number, fd in enumerate((os.open(os.devnull, os.O_RDONLY), output.fileno(), output.fileno())):
                os.dup2(fd, number)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
                signal.signal(number, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
            os.execvpe(argv[0], argv, {**os.environ, "HOME": str(Path.cwd())})
        finally:
            os._exit(127)
    due = time.monotonic() + timeout_s
    # Not by a pidfd, which a Python that was built for an old C library does not have.
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None and time.monotonic() < due:
        time.sleep(_POLL_S)
    kill_new(set())
    os.waitpid(pid, 0)
