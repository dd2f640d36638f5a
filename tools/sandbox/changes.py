"""What an agent changed in a `whole` sandbox, taken out of it and put into a fresh one of its image."""

from collections.abc import Collection
from typing import Any

from tools.errors import IsolationError
from tools.sandbox.base import Sandbox

MAX_CHANGED_BYTES = 256 << 20


async def changed_paths(sandbox: Sandbox) -> list[str]:
    """Absolute paths of what differs from the image: changed, new or removed.

    Without `/dev`, `/proc`, `/sys`, what the engine writes itself, and a verifier's files.

    Raises:
        IsolationError: the sandbox is not `whole`.
        AgentCausedError: they are more than its limits allow, or too long; with the number.
        SandboxUnavailable: its container is gone, or the engine fails in whatever way.
    """
    return await _whole(sandbox).changed_paths()


async def changed_files(
    sandbox: Sandbox, *, exclude: Collection[str] = (), max_bytes: int = MAX_CHANGED_BYTES
) -> bytes:
    """What differs from the image as an archive for `put_changed`: files, links, folders, modes and owners.

    The engine makes it from outside while nothing in the container runs, so no program in there can forge it.

    Args:
        sandbox: of the agent.
        exclude: absolute paths that are left out, each with all below it.
        max_bytes: of the archive.

    Raises:
        AgentCausedError: it would be larger, or cannot be read for what it is; with the evidence.
        IsolationError: the sandbox is not `whole`.
        SandboxUnavailable: its container is gone, or the engine fails in whatever way.
    """
    return await _whole(sandbox).changed_files(exclude, max_bytes)


async def put_changed(sandbox: Sandbox, archive: bytes) -> None:
    """Make the same changes in a fresh sandbox of the same image, but to a verifier's files; before all else.

    Raises:
        IsolationError: the sandbox is not `whole`.
        SandboxUnavailable: its container is gone, or something cannot be removed or written.
    """
    await _whole(sandbox).put_changed(archive)


def _whole(sandbox: Sandbox) -> Any:
    if not hasattr(sandbox, "changed_files"):
        raise IsolationError(
            f"only a sandbox that is `whole` knows what was changed in it, and this one of backend "
            f"{sandbox.record.backend!r} is not; give SandboxSpec(whole=True) on docker"
        )
    return sandbox
