"""The program of the `python` toolset inside the sandbox: a client of a persistent interpreter.

With `--serve` it is that interpreter. The agent controls both, so their output is no evidence. They
communicate by FIFOs (`in`, `out`, `done`), since not every sandbox has UNIX sockets.
"""

from __future__ import annotations

import ast
import json
import linecache
import os
import select
import shutil
import signal
import subprocess
import sys
import traceback
import types

OK, RAISED, ENDED, FAILED, ANEW = 0, 1, 2, 3, 4
"""Exit codes of a call; `ANEW` is added if an earlier interpreter was lost."""
_FOLDER = ".turnwise-python"
_SERVE = "--serve"
_STEP_S = 0.1


def main() -> int:
    request = json.load(sys.stdin)
    folder = os.path.join(os.environ.get("TMPDIR") or "/tmp", _FOLDER)
    if request.get("end"):
        _end(folder)
        return OK
    found, anew = _find_interpreter(folder), 0
    if found is None:
        anew = ANEW if os.path.lexists(folder) else 0
        _end(folder)
    try:
        pid, fd = found or _start(folder, request["source"])
        code = _ask(folder, pid, fd, json.dumps(request["code"]).encode() + b"\n")
    except OSError as error:
        print(error, file=sys.stderr)
        code = FAILED
    if code in (ENDED, FAILED):
        _end(folder)
    return code + anew


def _find_interpreter(folder: str) -> tuple[int, int] | None:
    try:
        pid = int(os.readlink(f"{folder}/pid"))
        fd = os.open(f"{folder}/in", os.O_WRONLY | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    return (pid, fd) if _is_alive(pid) else None


def _start(folder: str, source: str) -> tuple[int, int]:
    os.mkdir(folder, 0o700)
    for name in ("in", "out", "done"):
        os.mkfifo(f"{folder}/{name}", 0o600)
    argv = ["python3", "-I", "-c", source, _SERVE, folder]
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(argv, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)
    os.symlink(str(process.pid), f"{folder}/pid")
    return process.pid, os.open(f"{folder}/in", os.O_RDWR)


def _ask(folder: str, pid: int, fd: int, line: bytes) -> int:
    # opened for writing too, so that no FIFO reaches its end early
    out, done = (os.open(f"{folder}/{name}", os.O_RDWR | os.O_NONBLOCK) for name in ("out", "done"))
    os.set_blocking(fd, True)
    os.write(fd, line)
    answer = b""
    while not answer and _is_alive(pid):
        ready = select.select([out, done], [], [], _STEP_S)[0]
        answer = os.read(done, 1) if done in ready else b""
        _pass_on(out)
    _pass_on(out)
    return int(answer) if answer in (b"0", b"1") else ENDED


def _pass_on(out: int) -> None:
    try:
        data = os.read(out, 1 << 20)
    except BlockingIOError:
        return
    while data:
        data = data[os.write(1, data) :]


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def _end(folder: str) -> None:
    try:
        os.chmod(folder, 0o700)
        if (pid := int(os.readlink(f"{folder}/pid"))) > 1:
            os.killpg(pid, signal.SIGKILL)
    except (OSError, ValueError, OverflowError):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        os.unlink(folder)


def serve(folder: str) -> None:
    """Run each piece of code in one `__main__`, as an interactive interpreter does."""
    own = os.getpid()
    sys.path[:] = ["", *os.environ.get("PYTHONPATH", "").split(":"), *sys.path]
    sys.argv = [""]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    for number, line in enumerate(open(f"{folder}/in", "r+b", 0), start=1):  # noqa: SIM115
        # Reopened by path: the code may have closed or replaced its output.
        out = os.open(f"{folder}/out", os.O_RDWR)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.close(out)
        sys.stdout = open(1, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
        sys.stderr = sys.stdout
        code = _run(json.loads(line), f"<call {number}>", vars(module))
        sys.stdout.flush()
        if os.getpid() != own:
            os._exit(0)
        done = os.open(f"{folder}/done", os.O_RDWR)
        os.write(done, b"%d" % code)
        os.close(done)


def _run(code: str, name: str, names: dict[str, object]) -> int:
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    try:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), names)
        if value is not None:
            names["_"] = value
            print(repr(value))
        return OK
    except BaseException as error:  # noqa: BLE001  # `exit()` and interrupts of the code's, too
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in ("<string>", ast.__file__):
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        return RAISED


if __name__ == "__main__":
    if sys.argv[1:2] == [_SERVE]:
        serve(sys.argv[2])
    else:
        sys.exit(main())
