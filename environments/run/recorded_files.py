"""The agent's files as a record has them: what a rollout's hooks took out of its sandbox, turn by turn."""

import errno
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import NoReturn, cast

from environments.rewards.artefacts import TakenFiles, utf8_path
from environments.trajectory import Trajectory
from tools.sandbox.archive import check
from tools.sandbox.base import MAX_READ_BYTES, NoSandbox, Sandbox, SandboxRecord
from tools.sandbox.host.supervised import file_error


class RecordedFiles(TakenFiles):
    """Reads what was kept, and the errors that there were; what was not kept ends the command."""

    def __init__(self, recorded: Trajectory, refuse: Callable[[str], NoReturn]) -> None:
        """`refuse` takes what a hook does that cannot be done, in words."""
        super().__init__(cast("Sandbox", NoSandbox()), 0)
        self._recorded, self._refuse = recorded, refuse
        self.has_sandbox = recorded.sandbox is not None
        self._known = {(each.turn, each.path, each.is_folder): each for each in recorded.artefacts}

    @property
    def record(self) -> SandboxRecord:
        """How the rollout was isolated."""
        return self._recorded.sandbox or super().record

    def paused(self) -> AbstractAsyncContextManager[None]:
        """Nothing goes on."""
        return nullcontext()

    async def read_file(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """The file that was read in this turn."""
        return self._content(path, max_bytes, is_folder=False)

    async def get_archive(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """The folder that was read in this turn."""
        archive = self._content(path, max_bytes, is_folder=True)
        try:
            return check(archive)
        except OSError as error:
            self._refuse(f"takes {path!r:.100}, which is no folder beside the record: {error}")

    async def made(self, path: str, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """What was made in this turn."""
        return self._content(path, sys.maxsize, is_folder=False)

    def _content(self, path: str, max_bytes: int, *, is_folder: bool) -> bytes:
        when = "after the last turn" if self.turn is None else f"in turn {self.turn + 1}"
        what = f"takes {path!r:.100} {when}, which"
        kept = self._known.get((self.turn, utf8_path(path), is_folder))
        if kept is None:
            self._refuse(f"{what} its rollout did not take, or did not keep (--env.artefacts_mb)")
        if kept.error == "EFBIG" and max_bytes > kept.size:
            self._refuse(f"{what} had more than {kept.size:,} bytes and was not kept")
        if kept.error is not None:
            raise file_error(getattr(errno, kept.error, errno.EIO), path)
        if kept.size > max_bytes:
            raise file_error(errno.EFBIG, path)
        if kept.digest is None:
            self._refuse(f"{what} did not fit into what was kept: {kept.size:,} bytes (--env.artefacts_mb)")
        data = self._recorded.contents.get(kept.digest)
        if data is None:
            self._refuse(f"{what} is not beside the record as it names it: SHA-256 {kept.digest!r:.100}")
        return data
