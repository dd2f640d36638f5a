"""Sandboxes with our supervisor, whatever the backend."""

import asyncio
import errno
import math
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Protocol

from tools.errors import IsolationError, SandboxUnavailable
from tools.sandbox import archive as archives
from tools.sandbox.base import (
    MAX_OUTPUT_BYTES,
    MAX_READ_BYTES,
    ExecResult,
    SandboxFileError,
    SandboxRecord,
    Snapshot,
)
from tools.sandbox.inside import messages
from tools.sandbox.inside.messages import FileRequest, Reply, Request
from tools.waiting import to_the_end

_FILE_S, _DISTURBED_S = 60.0, 15.0
"""Time limits of a file operation and of its first try."""
_TREE_S = 300.0
_DISTURBED = (errno.EAGAIN, errno.ENOMEM, errno.EINTR)
"""Errors that running processes of the agent may cause."""
_WORDS_BYTES = 16_384


class Requests(Protocol):
    """A channel to the supervisor of a sandbox."""

    async def request(self, request: Request) -> Reply: ...


class SupervisedSandbox:
    """A `Sandbox` over a channel; concurrent commands queue.

    NUL bytes, an empty argv, environment names with `=` and infinite time limits raise ValueError.
    """

    def __init__(
        self,
        channel: Requests,
        workdir: str,
        record: SandboxRecord,
        listen: Callable[[], Awaitable[socket.socket]] | None = None,
        snapshot: "Callable[[SupervisedSandbox], Awaitable[Snapshot | None]] | None" = None,
    ) -> None:
        self._channel = channel
        self._listen = listen
        self._snapshot = snapshot
        self.workdir = workdir
        self.record = record
        self._pauses = 0
        self._pausing = asyncio.Lock()

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float = 60.0,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> ExecResult:
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not argv:
            raise ValueError("an empty command; name a program")
        for name in env or ():
            if not name or "=" in name:
                raise ValueError(f"an environment variable cannot be named {name!r}")
        pairs = [f"{name}={value}" for name, value in (env or {}).items()]
        for text in (*pairs, *argv):
            _check_text(text)
        folder = _check_text(cwd or "")
        request = messages.RunProgram(tuple(argv), tuple(pairs), folder, stdin, timeout_s, max_output_bytes)
        return await self._run(request, cwd)

    async def run_python(self, source: str, *, stdin: bytes = b"", timeout_s: float = 60.0) -> ExecResult:
        """Run our own program as the agent in a fork of the supervisor.

        It has only the standard library, and must not contain secrets.
        """
        request = messages.RunPython(_check_text(source), stdin, timeout_s, MAX_OUTPUT_BYTES)
        return await self._run(request, None)

    async def shell(
        self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = MAX_OUTPUT_BYTES
    ) -> ExecResult:
        return await self._run(messages.RunInShell(_check_text(command), timeout_s, max_output_bytes), None)

    async def read_file(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        # Larger output would be truncated; the reader inside refuses earlier.
        request = messages.ReadFile(_check_text(path), max_bytes, _FILE_S, 2 * max_bytes + 2)
        return (await self._on_files(request)).stdout

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        if len(data) > self.record.limits.disk_mb << 20:
            raise file_error(errno.ENOSPC, path)
        await self._on_files(messages.WriteFile(_check_text(path), mode, data, _FILE_S, 0))

    async def put_archive(self, archive: bytes, path: str = ".") -> None:
        await asyncio.to_thread(archives.check, archive)
        if len(archive) > self.record.limits.disk_mb << 20:
            raise file_error(errno.ENOSPC, path)
        await self._on_files(messages.UnpackArchive(_check_text(path), archive, _FILE_S, _WORDS_BYTES))

    async def get_archive(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        archive, _ = await self.get_changed(path, b"", max_bytes=max_bytes)
        return archive

    async def get_changed(self, path: str, known: bytes, *, max_bytes: int) -> tuple[bytes, frozenset[str]]:
        """Return a folder without known files (see `PackFolder`), and the paths of known files."""
        cap = 2 * max(max_bytes, _WORDS_BYTES, len(known)) + 2
        request = messages.PackFolder(_check_text(path), max_bytes, known, _FILE_S, cap)
        result = await self._on_files(request)
        # An archive from inside is untrusted.
        archive = await asyncio.to_thread(archives.check, result.stdout)
        return archive, frozenset(map(os.fsdecode, result.stderr.split(b"\0")[:-1]))

    async def snapshot(self) -> Snapshot | None:
        return None if self._snapshot is None else await self._snapshot(self)

    async def pack_tree(self, path: str = ".") -> bytes:
        # Four times the disk; larger archives, of sparse files, are refused.
        most = self.record.limits.disk_mb << 22
        result = await self._on_files(messages.PackTree(_check_text(path), _TREE_S, most))
        if result.truncated:
            raise file_error(errno.EFBIG, path)
        return result.stdout

    async def unpack_tree(self, archive: bytes, path: str = ".") -> None:
        await self._on_files(messages.UnpackTree(_check_text(path), archive, _TREE_S, _WORDS_BYTES))

    @asynccontextmanager
    async def paused(self) -> AsyncGenerator[None]:
        try:
            await to_the_end(self._pause(1))
            yield
        finally:
            await to_the_end(self._pause(-1))

    async def listener(self) -> socket.socket:
        if self._listen is None:
            tier, network = self.record.tier, self.record.limits.network
            raise IsolationError(
                f"a sandbox of tier {tier} with network {network!r} has no loopback of its own to listen on; "
                "use tier B with network 'none', or docker"
            )
        return await self._listen()

    async def _pause(self, change: int) -> None:
        async with self._pausing:
            self._pauses += change
            if self._pauses == (change > 0):  # the first pause begins, or the last one ends
                await self._run(messages.SetPause(change > 0, _FILE_S, 0), None)

    async def _on_files(self, request: FileRequest) -> ExecResult:
        """Run a file operation; repeat it with the agent's processes stopped if it failed."""
        try:
            first = request._replace(timeout_s=max(_DISTURBED_S, request.timeout_s - _FILE_S))
            result = await self._run(first, request.path)
            is_disturbed = result.timed_out or result.exit_code >= 128 or result.exit_code in _DISTURBED
        except SandboxFileError as error:
            if error.errno not in _DISTURBED:
                raise
            result, is_disturbed = None, True
        if result is None or is_disturbed:
            async with self.paused():
                result = await self._run(request, request.path)
        if result.timed_out and not result.shell_restarted:
            raise SandboxUnavailable(f"an operation on {request.path!r} took too long")
        if result.exit_code >= 128:
            raise file_error(errno.ENOMEM, request.path)
        if result.exit_code:
            member, _, reason = result.stderr.decode("utf-8", "replace").partition("\0")
            where = f"{request.path.rstrip('/')}/{member}" if member else request.path
            raise file_error(result.exit_code, where, reason)
        return result

    async def _run(self, request: Request, path: str | None) -> ExecResult:
        if not math.isfinite(request.timeout_s):
            raise ValueError(f"a time limit of {request.timeout_s} s; give a number of seconds")
        reply = await self._channel.request(request)
        if isinstance(reply, messages.Refused):
            raise file_error(reply.errno, path)
        return ExecResult(**reply._asdict())


def file_error(code: int, path: str | None, reason: str = "") -> OSError:
    reason = reason or ("not a regular file" if code == errno.EINVAL else os.strerror(code))
    return _mark(type(OSError(code, reason)))(code, reason, path)


@cache
def _mark(kind: type[OSError]) -> type[OSError]:
    return type(kind.__name__, (SandboxFileError, kind), {"__module__": "builtins"})


def _check_text(text: str) -> str:
    if "\0" in text:
        raise ValueError(f"a NUL byte in {text[:80]!r}")
    return text
