"""Starting agent processes."""

from __future__ import annotations

import os
import resource
import select
import signal
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

from tools.sandbox.inside.account import Account
from tools.sandbox.inside.processes import send

_DESCRIPTORS = 4096
_GIVEN = 10
"""Programs get descriptors below this number."""
_START_S = 5.0
_STEP_MS = 200


# Loaded here, because `os.execvpe` imports it in children.
_ = warnings


class StartError(Exception):
    """A command did not start, with step and errno."""

    def __init__(self, step: str, code: int) -> None:
        super().__init__(step, code)
        self.step = step
        self.code = code


class Program(NamedTuple):
    argv: list[str]
    env: dict[str, str]
    cwd: str
    kept: tuple[int, int] | None = None
    """A descriptor, and its number in the program."""


def own_descriptor_limit() -> None:
    """Set the descriptor limit independently of the parent's."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most if 0 <= most < _DESCRIPTORS else _DESCRIPTORS, most))


def start(account: Account, stdio: tuple[int, int, int], program: Program) -> int:
    return fork(account, stdio, lambda: _execute(program))


def fork(
    account: Account, stdio: tuple[int, int, int], action: Callable[[], object], bounded: bool = True
) -> int:
    """Fork a child that becomes the agent and executes a program, or returns a code."""
    errors, report = os.pipe2(os.O_CLOEXEC)
    try:
        pid = account.fork(is_own=not bounded)
    except OSError as error:
        os.close(errors)
        os.close(report)
        raise StartError("fork", error.errno or 0) from None
    if pid == 0:
        try:
            _child(account, stdio, action, report, bounded)
        finally:
            os._exit(70)
    os.close(report)
    try:
        text = _report(errors, pid)
    finally:
        os.close(errors)
    if text:
        send(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        step, code = text.decode().split()
        raise StartError(step, int(code))
    return pid


def only_stdio(operation: Callable[[], int]) -> Callable[[], object]:
    """Wrap a function so that only the standard descriptors are open."""

    def action() -> int:
        os.closerange(3, _DESCRIPTORS)
        return operation()

    return action


def pipe_for_output() -> tuple[int, int]:
    """Return a pipe with a non-blocking read end; its write end can be reopened as `/dev/stdout`."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reader, False)
    os.fchmod(writer, 0o622)
    return reader, writer


def _report(errors: int, pid: int) -> bytes:
    """Return a child's start error. The wait is bounded, because other agent processes may stop it."""
    poll = select.poll()
    poll.register(errors, select.POLLIN)
    due = time.monotonic() + _START_S
    while not poll.poll(_STEP_MS):
        send(pid, signal.SIGCONT if time.monotonic() < due else signal.SIGKILL)
    return os.read(errors, 64)


def _execute(program: Program) -> None:
    try:
        os.chdir(program.cwd)
    except OSError as error:
        raise StartError("cwd", error.errno or 0) from None
    if program.kept is not None:
        fd, number = program.kept
        # Duplicated onto itself, it would stay close-on-exec.
        os.dup2(_apart(fd), number, inheritable=True)
    os.execvpe(program.argv[0], program.argv, program.env)


def _apart(fd: int) -> int:
    """Duplicate a descriptor to a number that no program uses; any fixed one may be in use."""
    copies: list[int] = []
    while fd < _GIVEN:
        fd = os.dup(fd)
        copies.append(fd)
    for copy in copies[:-1]:
        os.close(copy)
    return fd


def _child(
    account: Account, stdio: tuple[int, int, int], action: Callable[[], object], report: int, bounded: bool
) -> None:
    try:
        os.setsid()
        report = _apart(report)
        for target, fd in enumerate([_apart(fd) for fd in stdio]):
            os.dup2(fd, target, inheritable=True)
        account.enter(bounded)
        result = action()
        os._exit(result if isinstance(result, int) else 70)
    except StartError as error:
        os.write(report, f"{error.step} {error.code}".encode())
    except OSError as error:
        os.write(report, f"exec {error.errno or 0}".encode())
