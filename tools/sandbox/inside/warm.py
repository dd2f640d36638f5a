"""A Python interpreter that is forked before the agent's files enter a sandbox, and waits for a program.

It runs one program, and no other process is forked from it but by that program. So it inherits the imports of
the fork server and no secret. A program that begins with `IMPORTS` cannot tell it from a cold interpreter:
after this line both have the same modules.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from tools.sandbox.inside.account import Account, Configuration
from tools.sandbox.inside.kernel import CONTROL, show_process
from tools.sandbox.inside.messages import Request, RunProgram
from tools.sandbox.inside.spawn import Program, start

COMMAND = ("python3", "-I", "-S", "-c")
IMPORTS = "import __future__, ast, contextlib, ctypes, json, pathlib, platform, resource, select, typing"
_STREAMS = 3
_DESCRIPTORS = 4096
_CODE_BYTES = 1 << 16
_NAMES = {"__name__", "__doc__", "__package__", "__loader__", "__spec__", "__annotations__", "__builtins__"}


class WarmInterpreter:
    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self._control = control

    def run(self, account: Account, streams: tuple[int, int, int], program: Program) -> int:
        try:
            socket.send_fds(self._control, [program.argv[-1].encode()], streams)
        except OSError:  # it has ended
            return start(account, streams, program)
        return self.pid

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def can_be_warm(config: Configuration) -> bool:
    """Whether this is an untouched sandbox of a verdict, which keeps processes from each other."""
    settings = config.settings
    if not settings.get("held") or settings.get("confine") != "1" or not config.seccomp:
        return False
    paths = (f"{folder}/python3" for folder in config.env["PATH"].split(":"))
    found = next((path for path in paths if os.access(path, os.X_OK)), "")
    return found == sys.executable and settings.get("shell_lost") != "1"


def is_warm_program(request: Request) -> bool:
    if not isinstance(request, RunProgram) or request.env or request.cwd:
        return False
    code = request.argv[-1]
    fits = len(os.fsencode(code)) <= _CODE_BYTES
    return fits and request.argv[:-1] == COMMAND and code.startswith(f"{IMPORTS}\n")


def fork_interpreter(config: Configuration) -> WarmInterpreter | str:
    """Fork a child that waits for the source of a Python program.

    Return the child in the parent, and the source in the child.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    account = Account(config.settings, config.env)
    pid = account.fork()
    if pid:
        theirs.close()
        return WarmInterpreter(pid, ours)
    code = b""
    try:
        os.setsid()
        account.enter(bounded=True)
        os.chdir(account.workdir)
        os.dup2(theirs.fileno(), CONTROL)
        os.closerange(CONTROL + 1, _DESCRIPTORS)
        with socket.socket(fileno=CONTROL) as control:
            code, fds, _, _ = socket.recv_fds(control, _CODE_BYTES, _STREAMS)
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
    finally:
        if not code:
            os._exit(70)
    os.environ.clear()
    os.environ.update(account.environment({}))
    return code.decode()


def become_main(code: str, modules: set[str]) -> tuple[str, dict[str, object]]:
    """Reset this process to a cold interpreter's state after `IMPORTS`; return the code and its namespace."""
    for name in sys.modules.keys() - modules:
        del sys.modules[name]
    for path in [each for each in sys.path_importer_cache if each.startswith("/proc/")]:
        del sys.path_importer_cache[path]
    sys.argv, sys.orig_argv = ["-c"], [*COMMAND, code]
    names = vars(sys.modules["__main__"])
    for name in names.keys() - _NAMES:
        del names[name]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    show_process()
    return code, names
