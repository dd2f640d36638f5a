"""The sandbox as a tool gets it: no command may take longer than the rollout allows."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Unpack

from tools.sandbox.base import (
    MAX_OUTPUT_BYTES,
    MAX_READ_BYTES,
    ExecOptions,
    ExecResult,
    Sandbox,
    SandboxRecord,
)


@dataclass(slots=True)
class LimitedSandbox:
    """A sandbox for one call of a tool."""

    sandbox: Sandbox
    limit_s: float
    commands: int = 0
    """Those that are running; each one ends by its own limit."""

    @property
    def record(self) -> SandboxRecord:
        """What the sandbox is."""
        return self.sandbox.record

    @property
    def workdir(self) -> str:
        """Its workspace."""
        return self.sandbox.workdir

    async def exec(
        self, command: str | Sequence[str], *, timeout_s: float = 60.0, **options: Unpack[ExecOptions]
    ) -> ExecResult:
        """As a sandbox does it, within the limit."""
        with self._command():
            return await self.sandbox.exec(command, timeout_s=min(timeout_s, self.limit_s), **options)

    async def shell(
        self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = MAX_OUTPUT_BYTES
    ) -> ExecResult:
        """As a sandbox does it, within the limit."""
        limit_s = min(timeout_s, self.limit_s)
        with self._command():
            return await self.sandbox.shell(command, timeout_s=limit_s, max_output_bytes=max_output_bytes)

    @contextmanager
    def _command(self) -> Generator[None]:
        self.commands += 1
        try:
            yield
        finally:
            self.commands -= 1

    async def read_file(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """As a sandbox does it."""
        return await self.sandbox.read_file(path, max_bytes=max_bytes)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """As a sandbox does it."""
        await self.sandbox.write_file(path, data, mode=mode)

    async def put_archive(self, archive: bytes, path: str = ".") -> None:
        """As a sandbox does it."""
        await self.sandbox.put_archive(archive, path)

    async def get_archive(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """As a sandbox does it."""
        return await self.sandbox.get_archive(path, max_bytes=max_bytes)
