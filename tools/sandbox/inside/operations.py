"""What the host's requests start, apart from the shell's commands: programs, and our own work on files."""

from __future__ import annotations

import os
from collections.abc import Callable

from tools.sandbox.inside import archives, frames
from tools.sandbox.inside import file_operations as files
from tools.sandbox.inside.account import Account
from tools.sandbox.inside.spawn import Program, fork, only_stdio, start

Begin = Callable[[tuple[int, int, int]], int]
"""Starts a process with these standard descriptors; its id."""


class Operations:
    """Requests as things to start."""

    __slots__ = ("_account",)

    def __init__(self, account: Account) -> None:
        self._account = account

    def asked(self, kind: bytes, fields: list[bytes]) -> tuple[Begin, bytes]:
        """What starts the process of a request, and what it reads from stdin."""
        if kind == frames.EXEC:
            return self._program(fields)
        operation, stdin = self._on_files(kind, self._path(fields[0]), fields[1:])
        action = only_stdio(operation)
        return lambda stdio: fork(self._account, stdio, action, bounded=False), stdin

    def _program(self, fields: list[bytes]) -> tuple[Begin, bytes]:
        cwd, stdin, env_size, *rest = fields
        pairs = [os.fsdecode(item).partition("=") for item in rest[: int(env_size)]]
        env = self._account.environment({name: value for name, _, value in pairs})
        argv = [os.fsdecode(item) for item in rest[int(env_size) :]]
        program = Program(argv, env, self._path(cwd))
        return lambda stdio: start(self._account, stdio, program), stdin

    @staticmethod
    def _on_files(kind: bytes, path: str, fields: list[bytes]) -> tuple[Callable[[], int], bytes]:
        if kind == frames.READ:
            return lambda: files.read(path, int(fields[0])), b""
        if kind == frames.PACK:
            return lambda: archives.pack(path, int(fields[0])), b""
        if kind == frames.WRITE:
            return lambda: files.write(path, int(fields[0])), fields[1]
        return lambda: archives.unpack(path), fields[0]

    def _path(self, path: bytes) -> str:
        return os.path.join(self._account.workdir, os.fsdecode(path))
