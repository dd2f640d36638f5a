"""What was prepared in one sandbox, so that others begin with it: the backend's own way, or an archive."""

import asyncio
import logging
import os
import tempfile
import time
from typing import IO, Any

from tools.sandbox.base import Sandbox, Snapshot

_LOG = logging.getLogger(__name__)


async def take_snapshot(sandbox: Sandbox) -> Snapshot:
    """What sandboxes begin with that are to be like this one now; its processes are not part of it.

    Raises:
        OSError: a file cannot be read, or there is no room.
        SandboxError: the sandbox is broken.
    """
    own: Any = getattr(sandbox, "snapshot", None)
    made: Snapshot | None = None if own is None else await own()
    return await _archived(sandbox) if made is None else made


async def _archived(sandbox: Sandbox) -> Snapshot:
    pack: Any = getattr(sandbox, "pack_tree", None)
    if pack is None:
        most = sandbox.record.limits.disk_mb << 20
        archive = await sandbox.get_archive(".", max_bytes=most)
    else:
        archive = await pack()
    # Without a name: nothing of it is left, however this process ends.
    file = await asyncio.to_thread(_written, archive)
    return _Archive(file, len(archive)).snapshot()


class _Archive:
    """A file that is unpacked in each sandbox."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._size = file, size
        self._is_logged = False

    def snapshot(self) -> Snapshot:
        """It, as what others begin with."""
        return Snapshot(options={}, discard=self._discard, fill=self._fill)

    async def _fill(self, sandbox: Sandbox) -> None:
        begun = time.monotonic()
        archive = await asyncio.to_thread(self._read)
        unpack: Any = getattr(sandbox, "unpack_tree", None)
        await (sandbox.put_archive(archive) if unpack is None else unpack(archive))
        if not self._is_logged:
            self._is_logged = True
            _LOG.warning(
                "sandboxes of tier %s begin with a copy of what was prepared: %.2f s for %.1f MB%s",
                sandbox.record.tier, time.monotonic() - begun, self._size / 1e6,
                "" if unpack else ", without its links",
            )  # fmt: skip

    def _read(self) -> bytes:
        return os.pread(self._file.fileno(), self._size, 0)

    async def _discard(self) -> None:
        self._file.close()


def _written(archive: bytes) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115  # closed when it is discarded
    file.write(archive)
    file.flush()
    return file
