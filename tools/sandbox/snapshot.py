"""What was prepared in one sandbox, so that others begin with it: the backend's own way, or an archive."""

import asyncio
import logging
import os
import tempfile
import time
from typing import Any

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
    most = sandbox.record.limits.disk_mb << 20
    archive: bytes = await (sandbox.get_archive(".", max_bytes=most) if pack is None else pack())
    # Without a name: nothing of it is left, however this process ends.
    file = await asyncio.to_thread(tempfile.TemporaryFile)
    await asyncio.to_thread(file.write, archive)
    file.flush()
    size, logged = len(archive), list[str]()

    async def fill(copy: Sandbox) -> None:
        begun = time.monotonic()
        read = await asyncio.to_thread(os.pread, file.fileno(), size, 0)
        unpack: Any = getattr(copy, "unpack_tree", None)
        await (copy.put_archive(read) if unpack is None else unpack(read))
        if not logged:
            how = "" if unpack else ", without its links"
            logged.append(f"{time.monotonic() - begun:.2f} s for {size / 1e6:.1f} MB{how}")
            _LOG.warning("sandboxes of this kind begin with a copy of what was prepared: %s", logged[0])

    async def discard() -> None:
        file.close()

    return Snapshot(options={}, discard=discard, fill=fill)
