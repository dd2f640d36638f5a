"""Guards of a host program, its parent and grandparent, which end it with all its descendants.

They act when their owner or a guard ends, or on SIGTERM. There are two, because a program can kill its
parent.
"""

from __future__ import annotations

import os
import select
import signal

from tools.sandbox.inside import kernel
from tools.sandbox.inside.processes import kill_new, send

_KILL_S = 10.0
"""Time for killing a fork bomb on a busy machine."""


def main(owner: int, folder: str, argv: list[str]) -> None:
    """Run a program and exit with its code; remove the folder if the owner ended first."""
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123  # pathlib loads slowly
        if b"\0LC_CTYPE=" not in b"\0" + file.read():
            os.environ.pop("LC_CTYPE", None)
    enter_guarded(owner, folder)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"{argv[0]} cannot be started: {error}\n".encode())
        os._exit(127)


def enter_guarded(owner: int, folder: str) -> None:
    """Return in a new process that leads its session; this one and a fork become its guards.

    Without pidfds of other processes it returns in this process.
    """
    try:
        above = [os.pidfd_open(owner), os.pidfd_open(os.getpid())]
    except ProcessLookupError:
        os._exit(0)
    except OSError:
        return
    if os.getppid() != owner:
        os._exit(0)
    kernel.adopt_orphans()
    if inner := os.fork():
        code = _await_end(inner, above[:1])
        if folder and os.getppid() != owner:
            os.execvp("rm", ["rm", "-rf", "--", folder])
        os._exit(code if code >= 0 else 128 - code)
    os.setsid()  # the inner guard survives a kill of the outer one's group
    kernel.adopt_orphans()
    if program := os.fork():
        code = _await_end(program, above)
        send(os.getppid(), signal.SIGCONT)
        os._exit(code if code >= 0 else 128 - code)
    os.setsid()


def _await_end(child: int, above: list[int]) -> int:
    """Wait for the child or a process above, end everything below, return the child's exit code."""

    def stop(*_: object) -> None:
        raise SystemExit

    def reap_orphans(*_: object) -> None:
        with_status = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            while (ended := os.waitid(os.P_ALL, 0, with_status)) and ended.si_pid != child:
                os.waitpid(ended.si_pid, 0)
        except ChildProcessError:
            pass

    nowhere, poll = os.open(os.devnull, os.O_RDWR), select.poll()
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)  # readers of its output must see its end
    for fd in (*above, os.pidfd_open(child)):
        poll.register(fd, select.POLLIN)
    signal.signal(signal.SIGCHLD, reap_orphans)
    try:
        signal.signal(signal.SIGTERM, stop)
        poll.poll()
    except SystemExit:
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    send(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    kill_new(set(), wait_s=_KILL_S)
    return os.waitstatus_to_exitcode(status)
