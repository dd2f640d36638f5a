"""A sandbox whose commands and files go through our supervisor inside: what the backends share."""

import asyncio
import errno
import math
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from tools.sandbox import archive as archives
from tools.sandbox.base import MAX_OUTPUT_BYTES, MAX_READ_BYTES, ExecResult, SandboxRecord
from tools.sandbox.inside import messages
from tools.sandbox.inside.messages import Reply, Request
from tools.waiting import to_the_end

_FILE_S = 60.0
_WORDS_BYTES = 16_384
"""Enough for a path and what is wrong with it."""


class Requests(Protocol):
    """The way to a supervisor."""

    async def request(self, request: Request) -> Reply:
        """Send a request and wait for its answer.

        Raises:
            SandboxUnavailable: the sandbox is gone.
        """
        ...


class SupervisedSandbox:
    """A `Sandbox` behind a channel; commands that come at the same time wait for each other.

    Beside the protocol's errors, a NUL byte, an empty argv, an environment name with `=` and a time limit
    without end raise `ValueError`, and every call `SandboxUnavailable` when the sandbox is gone.
    """

    def __init__(self, channel: Requests, workdir: str, record: SandboxRecord) -> None:
        self._channel = channel
        self._workdir = workdir
        self._record = record
        self._pauses = 0
        self._pausing = asyncio.Lock()

    @property
    def record(self) -> SandboxRecord:
        """How this sandbox isolates."""
        return self._record

    @property
    def workdir(self) -> str:
        """The writable workspace, an absolute path inside."""
        return self._workdir

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
        """Run one command on its own; unless its time is up, its background processes live on."""
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not argv:
            raise ValueError("an empty command; name a program")
        pairs = [_pair(name, value) for name, value in (env or {}).items()]
        for text in (*pairs, *argv):
            _check_text(text)
        request = messages.RunProgram(
            argv=tuple(argv),
            env=tuple(pairs),
            cwd=_check_text(cwd or ""),
            stdin=stdin,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
        )
        return await self._run(request, cwd)

    async def shell(
        self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = MAX_OUTPUT_BYTES
    ) -> ExecResult:
        """Run a command in the persistent bash; what background jobs write later is dropped."""
        return await self._run(messages.RunInShell(_check_text(command), timeout_s, max_output_bytes), None)

    async def read_file(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """The content of a regular file, read by the agent's user."""
        # Output beyond the cap would be cut in the middle; the reader inside refuses before that.
        request = messages.ReadFile(_check_text(path), max_bytes, _FILE_S, 2 * max_bytes + 2)
        result = await self._run(request, path)
        _check_file(result, path)
        return result.stdout

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file as the agent's user, all of it or nothing."""
        if len(data) > self._record.limits.disk_mb << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        request = messages.WriteFile(_check_text(path), mode, data, _FILE_S, 0)
        _check_file(await self._run(request, path), path)

    async def put_archive(self, archive: bytes, path: str = ".") -> None:
        """Write the files of an archive that was checked, in one request."""
        await asyncio.to_thread(archives.check, archive)
        if len(archive) > self._record.limits.disk_mb << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        request = messages.UnpackArchive(_check_text(path), archive, _FILE_S, _WORDS_BYTES)
        _check_file(await self._run(request, path), path)

    async def get_archive(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """A folder as an archive that was checked, in one request."""
        cap = 2 * max(max_bytes, _WORDS_BYTES) + 2
        result = await self._run(messages.PackFolder(_check_text(path), max_bytes, _FILE_S, cap), path)
        _check_file(result, path)
        # The agent's side made it: it is not trusted.
        return await asyncio.to_thread(archives.check, result.stdout)

    @asynccontextmanager
    async def paused(self) -> AsyncGenerator[None]:
        """Blocks within others, or side by side with them, end when the last one does."""
        try:
            await to_the_end(self._pause(1))
            yield
        finally:
            await to_the_end(self._pause(-1))

    async def _pause(self, change: int) -> None:
        async with self._pausing:
            self._pauses += change
            if self._pauses == (change > 0):  # the first one in, or the last one out
                await self._run(messages.SetPause(change > 0, _FILE_S, 0), None)

    async def _run(self, request: Request, path: str | None) -> ExecResult:
        if not math.isfinite(request.timeout_s):
            raise ValueError(f"a time limit of {request.timeout_s} s; give a number of seconds")
        reply = await self._channel.request(request)
        if isinstance(reply, messages.Refused):
            raise OSError(reply.errno, os.strerror(reply.errno), path)
        return ExecResult(**reply._asdict())


def _check_file(result: ExecResult, path: str) -> None:
    if result.timed_out:
        raise TimeoutError(errno.ETIMEDOUT, "the file operation took too long", path)
    if result.oom_killed or result.exit_code >= 128:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), path)
    if result.exit_code:
        # Of an archive, the member that it is about.
        member, _, reason = result.stderr.decode("utf-8", "replace").partition("\0")
        where = f"{path.rstrip('/')}/{member}" if member else path
        raise OSError(result.exit_code, reason or _reason(result.exit_code), where)


def _reason(code: int) -> str:
    return "not a regular file" if code == errno.EINVAL else os.strerror(code)


def _pair(name: str, value: str) -> str:
    if not name or "=" in name:
        raise ValueError(f"an environment variable cannot be named {name!r}")
    return f"{name}={value}"


def _check_text(text: str) -> str:
    if "\0" in text:
        raise ValueError(f"a NUL byte in {text[:80]!r}")
    return text
