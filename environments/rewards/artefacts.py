"""Files that hooks take out of the agent's sandbox, kept so that rewards can be computed without it."""

import asyncio
import errno
import hashlib
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace

from environments.trajectory import Artefact, Trajectory
from tools.sandbox.archive import pack, unpack
from tools.sandbox.base import MAX_READ_BYTES, NoSandbox, Sandbox, SandboxRecord
from tools.sandbox.host.layout import WORKDIR


class TakenFiles:
    """The agent's files, read as a `Sandbox` reads; of each path the last content of each turn is kept."""

    def __init__(self, sandbox: Sandbox, max_bytes: int) -> None:
        """Nothing is taken yet. `max_bytes` is for all contents, equal ones counted once; 0 keeps nothing."""
        self._sandbox, self._is_kept, self._left = sandbox, max_bytes > 0, max_bytes
        self._taken: dict[tuple[int | None, str, bool], Artefact] = {}
        self.has_sandbox = not isinstance(sandbox, NoSandbox)
        self.turn: int | None = 0
        """How many turns were scored before; `None`: all."""
        self.contents: dict[str, bytes] = {}
        """By SHA-256."""

    @property
    def workdir(self) -> str:
        return WORKDIR if isinstance(self._sandbox, NoSandbox) else self._sandbox.workdir

    @property
    def record(self) -> SandboxRecord:
        return self._sandbox.record

    def paused(self) -> AbstractAsyncContextManager[None]:
        return self._sandbox.paused()

    async def read_file(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        with self._errors(Artefact(path=path), max_bytes):
            data = await self._sandbox.read_file(path, max_bytes=max_bytes)
        self._keep(Artefact(path=path), data)
        return data

    async def get_archive(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """See `Sandbox`; of a `__pycache__` there is nothing, its bytecode need not match its source."""
        folder = Artefact(path=path, is_folder=True)
        with self._errors(folder, max_bytes):
            archive = await self._sandbox.get_archive(path, max_bytes=max_bytes)
            archive = await asyncio.to_thread(_without_bytecode, archive)
        self._keep(folder, bytes(archive))
        return archive

    async def made(self, path: str, make: Callable[[], Awaitable[bytes]]) -> bytes:
        data = await make()
        self._keep(Artefact(path=path), data)
        return data

    def add_to(self, trajectory: Trajectory, scored: Sequence[int]) -> Trajectory:
        """Add what was taken; `scored` are the indices of turns as they were scored, perhaps with gaps."""
        ranks = sorted(scored)
        turns: dict[int | None, int] = {at: ranks.index(index) for at, index in enumerate(scored)}
        taken = (replace(each, turn=turns.get(turn, turn)) for (turn, _, _), each in self._taken.items())
        return replace(trajectory, artefacts=tuple(taken), contents=self.contents)

    def _keep(self, artefact: Artefact, data: bytes) -> None:
        if not self._is_kept:
            return
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self.contents and len(data) <= self._left:
            self._left -= len(data)
            self.contents[digest] = data
        self._note(replace(artefact, digest=digest if digest in self.contents else None, size=len(data)))

    def _note(self, artefact: Artefact) -> None:
        if self._is_kept:
            path = utf8_path(artefact.path)
            self._taken[self.turn, path, artefact.is_folder] = replace(artefact, path=path, turn=self.turn)

    @contextmanager
    def _errors(self, artefact: Artefact, max_bytes: int) -> Generator[None]:
        try:
            yield
        except OSError as error:
            code = errno.errorcode.get(error.errno or 0, "EIO")
            self._note(replace(artefact, error=code, size=max_bytes if code == "EFBIG" else 0))
            raise


def utf8_path(path: str) -> str:
    """A path as JSON can hold it: its bytes may be no UTF-8."""
    return path.encode("utf-8", "backslashreplace").decode()


def _without_bytecode(archive: bytes) -> bytes:
    files = unpack(archive)
    kept = {path: file for path, file in files.items() if "__pycache__" not in path.split("/")}
    return archive if len(kept) == len(files) else pack(kept)
