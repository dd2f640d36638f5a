"""A sandbox whose commands and files go through our supervisor inside: what the backends share."""

import asyncio
import errno
import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from tools.sandbox import archive as archives
from tools.sandbox.base import MAX_OUTPUT_BYTES, MAX_READ_BYTES, ExecResult, SandboxRecord
from tools.sandbox.inside import frames

_FILE_S = 60.0
_WORDS_BYTES = 16_384
"""Enough for a path and what is wrong with it."""


class Requests(Protocol):
    """The way to a supervisor."""

    async def request(self, frame: bytes, timeout_s: float) -> tuple[bytes, list[bytes]]:
        """Send a request and wait for its answer.

        Raises:
            SandboxUnavailable: the sandbox is gone.
        """
        ...


class SupervisedSandbox:
    """A `Sandbox` behind a channel; commands that come at the same time wait for each other."""

    def __init__(self, channel: Requests, workdir: str, record: SandboxRecord) -> None:
        self._channel = channel
        self._workdir = workdir
        self._record = record

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
        """Run one command on its own: a string through `sh -c`, a sequence as argv.

        What it leaves in the background lives on, except when its time is up.

        Raises:
            OSError: a `cwd` was named that is missing, not a directory or not allowed.
            ValueError: a NUL byte, an empty argv, or an environment name with `=`.
            SandboxUnavailable: the sandbox is gone.
        """
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not argv:
            raise ValueError("an empty command; name a program")
        pairs = [_pair(name, value) for name, value in (env or {}).items()]
        words = [_word(text) for text in (*pairs, *argv)]
        fields = (_word(cwd or ""), stdin, b"%d" % len(pairs), *words)
        return await self._run(frames.EXEC, fields, timeout_s, max_output_bytes, cwd)

    async def shell(
        self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = MAX_OUTPUT_BYTES
    ) -> ExecResult:
        """Run a command in the sandbox's one persistent bash: directory, variables and jobs stay.

        Output that jobs in the background write later is dropped.

        Raises:
            ValueError: a NUL byte in the command.
            SandboxUnavailable: the sandbox is gone.
        """
        return await self._run(frames.SHELL, (_word(command),), timeout_s, max_output_bytes, None)

    async def read_file(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """The content of a regular file, resolved inside the sandbox.

        Raises:
            OSError: missing, a directory, not allowed, not a regular file, or larger than `max_bytes`.
            SandboxUnavailable: the sandbox is gone.
        """
        fields = (_word(path), b"%d" % max_bytes)
        # Output beyond the cap would be cut in the middle; the reader inside refuses before that.
        result = await self._run(frames.READ, fields, _FILE_S, 2 * max_bytes + 2, path)
        _check_file(result, path)
        return result.stdout

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file, resolved inside the sandbox; missing parent directories are made.

        Raises:
            OSError: not allowed, a directory is in the way, or the workspace is full.
            SandboxUnavailable: the sandbox is gone.
        """
        if len(data) > self._record.limits.disk_mb << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        fields = (_word(path), b"%d" % mode, data)
        _check_file(await self._run(frames.WRITE, fields, _FILE_S, 0, path), path)

    async def put_archive(self, archive: bytes, path: str = ".") -> None:
        """Write the files of a tar archive below a folder, which is made when it is missing.

        Raises:
            OSError: a member is refused, and then nothing is written; or it is in the way of something, not
                allowed, or the workspace is full.
            SandboxUnavailable: the sandbox is gone.
        """
        await asyncio.to_thread(archives.check, archive)
        if len(archive) > self._record.limits.disk_mb << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        fields = (_word(path), archive)
        _check_file(await self._run(frames.UNPACK, fields, _FILE_S, _WORDS_BYTES, path), path)

    async def get_archive(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """The plain files and folders below a folder as an uncompressed tar archive.

        Raises:
            OSError: missing, not a folder, not allowed, or larger than `max_bytes`.
            SandboxUnavailable: the sandbox is gone.
        """
        fields = (_word(path), b"%d" % max_bytes)
        cap = 2 * max(max_bytes, _WORDS_BYTES) + 2
        result = await self._run(frames.PACK, fields, _FILE_S, cap, path)
        _check_file(result, path)
        # The agent's side made it: nobody has to trust it.
        return await asyncio.to_thread(archives.check, result.stdout)

    async def _run(
        self, kind: bytes, fields: tuple[bytes, ...], timeout_s: float, cap: int, path: str | None
    ) -> ExecResult:
        frame = frames.pack(kind, b"%d" % int(timeout_s * 1e6), b"%d" % cap, *fields)
        answer, values = await self._channel.request(frame, timeout_s)
        if answer == frames.REFUSED:
            code = int(values[0])
            raise OSError(code, os.strerror(code), path)
        code, out_total, err_total, flags, spent, out, err = values
        return ExecResult(
            exit_code=int(code),
            stdout=out,
            stderr=err,
            stdout_total=int(out_total),
            stderr_total=int(err_total),
            timed_out=frames.TIMED_OUT in flags,
            oom_killed=frames.OOM_KILLED in flags,
            shell_restarted=frames.RESTARTED in flags,
            duration_s=int(spent) / 1e6,
        )


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


def _word(text: str) -> bytes:
    if "\0" in text:
        raise ValueError(f"a NUL byte in {text[:80]!r}")
    return os.fsencode(text)
