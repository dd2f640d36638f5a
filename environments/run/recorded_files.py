"""The agent's files as a record has them: what a rollout's hooks took out of its sandbox, turn by turn."""

import errno
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import NoReturn, cast

from environments.artefacts import TakenFiles, folder_files, utf8_path
from environments.trajectory import Artefact, Trajectory
from tools.sandbox.archive import ArchivedFile, pack
from tools.sandbox.base import MAX_READ_BYTES, NoSandbox, Sandbox, SandboxRecord
from tools.sandbox.host.layout import WORKDIR
from tools.sandbox.host.supervised import file_error


class RecordedFiles(TakenFiles):
    """Reads what was kept; what was not ends the command."""

    def __init__(self, recorded: Trajectory, refuse: Callable[[str], NoReturn]) -> None:
        """`refuse` takes what a hook does that cannot be done, in words."""
        super().__init__(cast("Sandbox", NoSandbox()), 0)
        self._recorded, self._refuse = recorded, refuse
        self._known = {(each.turn, each.path): each for each in recorded.artefacts}

    @property
    def has_sandbox(self) -> bool:
        """Whether the rollout had one."""
        return self._recorded.sandbox is not None

    @property
    def workdir(self) -> str:
        """That of our own sandboxes."""
        return WORKDIR

    @property
    def record(self) -> SandboxRecord:
        """How the rollout was isolated."""
        return self._recorded.sandbox or super().record

    def paused(self) -> AbstractAsyncContextManager[None]:
        """Nothing goes on."""
        return nullcontext()

    async def read_file(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """The file, or the error that there was instead."""
        found = self._found(path, max_bytes)
        if found.is_folder:
            raise file_error(errno.EISDIR, path)
        if found.size > max_bytes:
            raise file_error(errno.EFBIG, path)
        return self._content(path, found.digest)

    async def get_archive(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """The folder, or the error that there was instead."""
        found = self._found(path, max_bytes)
        if not found.is_folder:
            raise file_error(errno.ENOTDIR, path)
        try:
            return pack(
                {
                    name: ArchivedFile(data=self._content(path, digest), mode=mode)
                    for name, digest, _, mode in folder_files(self._content(path, found.digest))
                }
            )
        except (ValueError, OSError) as error:
            self._refuse(f"takes {path!r:.100}, and its record is damaged: {error}")

    async def made(self, path: str, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """What was made then."""
        return self._content(path, self._found(path, 0).digest)

    def _found(self, path: str, max_bytes: int) -> Artefact:
        when = "after the last turn" if self.turn is None else f"in turn {self.turn + 1}"
        what = f"takes {path!r:.100} {when}, which"
        found = self._known.get((self.turn, utf8_path(path)))
        if found is None:
            self._refuse(f"{what} its rollout did not, or it was not kept (--env.artefacts_mb)")
        if found.error is not None and not (found.error == "EFBIG" and max_bytes > found.size):
            raise file_error(getattr(errno, found.error, errno.EIO), path)
        if found.digest is None:
            self._refuse(f"{what} was too large to be kept ({found.size:,} bytes)")
        return found

    def _content(self, path: str, digest: str | None) -> bytes:
        data = self._recorded.contents.get(digest or "")
        if data is None:
            self._refuse(
                f"takes {path!r:.100}, whose content {digest} is missing beside the record, or another"
            )
        return data
