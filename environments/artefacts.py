"""Files that hooks take out of the agent's sandbox, kept so that rewards can be computed without it."""

import asyncio
import errno
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from environments.trajectory import Artefact
from tools.sandbox.archive import ArchivedFile, check, unpack
from tools.sandbox.base import MAX_READ_BYTES, NoSandbox, Sandbox, SandboxRecord
from tools.sandbox.host.layout import WORKDIR

FolderFile = tuple[str, str, int, int]
"""Of a folder that was taken: path below it, SHA-256, bytes, mode."""


class TakenFiles:
    """The agent's files, read as a `Sandbox` reads; of each path the last content of each turn is kept."""

    def __init__(self, sandbox: Sandbox, max_bytes: int) -> None:
        """Nothing is taken yet. `max_bytes` is for all contents, equal ones counted once; 0 keeps nothing."""
        self._sandbox = sandbox
        self._is_kept, self._left = max_bytes > 0, max_bytes
        self._taken: dict[tuple[int | None, str], Artefact] = {}
        self.turn: int | None = 0
        """How many turns were scored before; `None`: all."""
        self.contents: dict[str, bytes] = {}
        """By SHA-256."""

    @property
    def has_sandbox(self) -> bool:
        """Whether there is anything to read."""
        return not isinstance(self._sandbox, NoSandbox)

    @property
    def workdir(self) -> str:
        """See `Sandbox`."""
        return self._sandbox.workdir if self.has_sandbox else WORKDIR

    @property
    def record(self) -> SandboxRecord:
        """See `Sandbox`."""
        return self._sandbox.record

    def paused(self) -> AbstractAsyncContextManager[None]:
        """See `Sandbox`."""
        return self._sandbox.paused()

    async def read_file(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """See `Sandbox`."""
        try:
            data = await self._sandbox.read_file(path, max_bytes=max_bytes)
        except OSError as error:
            self._keep_error(path, error, max_bytes)
            raise
        self._keep(Artefact(path=path), data, {})
        return data

    async def get_archive(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """See `Sandbox`; what a `__pycache__` holds is not kept."""
        try:
            archive = check(await self._sandbox.get_archive(path, max_bytes=max_bytes))
        except OSError as error:
            self._keep_error(path, error, max_bytes)
            raise
        if self._is_kept:
            names, contents = await asyncio.to_thread(_folder, unpack(archive))
            self._keep(Artefact(path=path, is_folder=True), names, contents)
        return archive

    async def made(self, path: str, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """What `make` gives, kept under this path."""
        data = await make()
        self._keep(Artefact(path=path), data, {})
        return data

    def artefacts(self, scored: Iterable[int]) -> tuple[Artefact, ...]:
        """What was taken, by the order of the turns that it was taken in.

        Args:
            scored: the indices of the turns, in the order they were scored; they may have gaps.
        """
        indices = list(scored)
        ranks = {index: rank for rank, index in enumerate(sorted(indices))}
        by_turn: dict[int | None, int | None] = {at: ranks[index] for at, index in enumerate(indices)}
        return tuple(replace(each, turn=by_turn.get(each.turn, each.turn)) for each in self._taken.values())

    def _keep(self, artefact: Artefact, data: bytes, more: Mapping[str, bytes]) -> None:
        if not self._is_kept:
            return
        digest = sha256(data)
        new = {name: each for name, each in {**more, digest: data}.items() if name not in self.contents}
        if (size := sum(map(len, new.values()))) > self._left:
            self._note(replace(artefact, size=size))
            return
        self._left -= size
        self.contents |= new
        self._note(replace(artefact, digest=digest, size=len(data)))

    def _keep_error(self, path: str, error: OSError, max_bytes: int) -> None:
        if self._is_kept:
            code = errno.errorcode.get(error.errno or 0, "EIO")
            self._note(Artefact(path=path, error=code, size=max_bytes if code == "EFBIG" else 0))

    def _note(self, artefact: Artefact) -> None:
        path = utf8_path(artefact.path)
        self._taken[self.turn, path] = replace(artefact, path=path, turn=self.turn)


def utf8_path(path: str) -> str:
    """A path as JSON can hold it: its bytes may be no UTF-8."""
    return path.encode("utf-8", "backslashreplace").decode()


def sha256(data: bytes) -> str:
    """The name of a content."""
    return hashlib.sha256(data).hexdigest()


def folder_files(names: bytes) -> list[FolderFile]:
    """The files of a folder that was taken, from its content.

    Raises:
        ValueError: it is no such content.
    """
    try:
        return [
            (str(path), str(digest), int(size), int(mode)) for path, digest, size, mode in json.loads(names)
        ]
    except (TypeError, RecursionError) as error:
        raise ValueError(f"no list of files: {error}") from None


def _folder(files: Mapping[str, ArchivedFile]) -> tuple[bytes, dict[str, bytes]]:
    """A folder's list of its files, and their contents by their digests."""
    kept = {path: file for path, file in files.items() if "__pycache__" not in path.split("/")}
    digests = {path: sha256(file.data) for path, file in kept.items()}
    names = [(path, digests[path], len(file.data), file.mode) for path, file in kept.items()]
    return json.dumps(names).encode(), {digests[path]: file.data for path, file in kept.items()}
