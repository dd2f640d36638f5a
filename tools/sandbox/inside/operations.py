"""What the host's requests start, apart from the shell's commands: programs, and our own work on files."""

from __future__ import annotations

import os
from collections.abc import Callable

from tools.sandbox.inside import archives, file_operations
from tools.sandbox.inside.account import Account
from tools.sandbox.inside.messages import FileRequest, PackFolder, ReadFile, RunProgram, WriteFile
from tools.sandbox.inside.spawn import Program, fork, only_stdio, start

Begin = Callable[[tuple[int, int, int]], int]
"""Starts a process with these standard descriptors; its id."""


def program(account: Account, request: RunProgram) -> tuple[Begin, bytes]:
    """What starts a program, and what it reads from stdin."""
    pairs = [pair.partition("=") for pair in request.env]
    env = account.environment({name: value for name, _, value in pairs})
    wanted = Program(list(request.argv), env, os.path.join(account.workdir, request.cwd))
    return lambda stdio: start(account, stdio, wanted), request.stdin


def on_files(account: Account, request: FileRequest) -> tuple[Begin, bytes]:
    """What starts an operation on files, and what it reads from stdin."""
    operation, stdin = _operation(request, os.path.join(account.workdir, request.path))
    action = only_stdio(operation)
    return lambda stdio: fork(account, stdio, action, bounded=False), stdin


def _operation(request: FileRequest, path: str) -> tuple[Callable[[], int], bytes]:
    if isinstance(request, ReadFile):
        return lambda: file_operations.read(path, request.max_bytes), b""
    if isinstance(request, PackFolder):
        return lambda: archives.pack(path, request.max_bytes), b""
    if isinstance(request, WriteFile):
        return lambda: file_operations.write(path, request.mode), request.data
    return lambda: archives.unpack(path), request.archive
