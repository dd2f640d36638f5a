"""Layers of a sandbox's initial state, and collecting files from one sandbox for another."""

import asyncio
import hashlib
import json
import logging
import os
import posixpath
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from tools.errors import IsolationError
from tools.sandbox.archive import ArchivedFile, clean_path, folders_above, pack, unpack
from tools.sandbox.base import Layer, Sandbox, Snapshot
from tools.sandbox.inside import tar

_LOG = logging.getLogger(__name__)
_BATCH_BYTES = 8 << 20
"""Size of one request; a sandbox holds it in memory more than once."""
_MEMBER_BYTES = 2048
"""Most bytes that an archive adds to a file's content and path."""
_PAGE_BYTES = 4096
MAX_CHANGED_BYTES = 256 << 20


def plain_files(files: Mapping[str, ArchivedFile], *, by_agent: bool = False) -> Layer:
    """Return a layer of files by `place`; with `by_agent`, unwritable ones are left out."""

    async def fill(sandbox: Sandbox) -> None:
        for batch in _batches(files, sandbox.record.limits.disk_mb << 19):
            path, file = next(iter(batch.items()))
            with suppress(*([OSError] if by_agent else [])):
                if path.startswith("/"):
                    await sandbox.write_file(path, file.data, mode=file.mode)
                else:
                    await sandbox.put_archive(await asyncio.to_thread(pack, batch))

    return Layer(fill=fill, by_agent=by_agent and bool(files))


def changes(archive: bytes) -> Layer:
    """Return a layer of what `changed_files` collected, for `whole` sandboxes; a verifier's files win."""

    async def fill(sandbox: Sandbox) -> None:
        await _whole(sandbox).put_changed(archive)

    return Layer(fill=fill, by_agent=True)


async def take_snapshot(sandbox: Sandbox) -> Snapshot:
    """Return a snapshot of a sandbox without its processes.

    Raises:
        OSError: if a file cannot be read, or there is no room.
        SandboxError: if the sandbox is broken.
    """
    own: Any = getattr(sandbox, "snapshot", None)
    made: Snapshot | None = None if own is None else await own()
    if made is not None:
        return made
    pack: Any = getattr(sandbox, "pack_tree", None)
    most = sandbox.record.limits.disk_mb << 20
    archive: bytes = await (sandbox.get_archive(".", max_bytes=most) if pack is None else pack())
    # Unnamed, so that nothing remains however this process ends.
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

    return Snapshot(discard=discard, fill=fill)


async def changed_paths(sandbox: Sandbox) -> list[str]:
    """Return absolute paths that differ from the image: changed, new or removed.

    The kernel's and the engine's own files and a verifier's are left out. Raises as `changed_files`.
    """
    return await _whole(sandbox).changed_paths()


async def changed_files(
    sandbox: Sandbox, *, exclude: Collection[str] = (), max_bytes: int = MAX_CHANGED_BYTES
) -> bytes:
    """Return an archive of changes to the image for `changes`: files, links, folders, modes and owners.

    The engine builds it while the container is frozen, so no program inside can forge it.

    `exclude` are absolute paths to leave out, with everything below.

    Raises:
        AgentCausedError: if it would be too large, or the agent's files cannot be read.
        IsolationError: if the sandbox is not `whole`.
        SandboxUnavailable: if its container is gone or the engine fails.
    """
    return await _whole(sandbox).changed_files(exclude, max_bytes)


def _whole(sandbox: Sandbox) -> Any:
    if not hasattr(sandbox, "changed_files"):
        raise IsolationError(
            f"only a sandbox that is `whole` knows what was changed in it, and this one of backend "
            f"{sandbox.record.backend!r} is not; give SandboxSpec(whole=True) on docker"
        )
    return sandbox


class _Files(Protocol):
    @property
    def workdir(self) -> str: ...
    async def read_file(self, path: str, *, max_bytes: int = ...) -> bytes: ...
    async def get_archive(self, path: str, *, max_bytes: int = ...) -> bytes: ...


def place(path: str, workdir: str) -> str:
    """Return a path relative to the workspace, or absolute elsewhere; raise OSError if it is invalid."""
    absolute = posixpath.normpath(posixpath.join(workdir, path))
    root = workdir.rstrip("/")
    if absolute.startswith(f"{root}/"):
        return clean_path(absolute.removeprefix(f"{root}/"))
    return f"/{clean_path(absolute.lstrip('/'))}"


def size_on_disk(files: Mapping[str, ArchivedFile]) -> int:
    pages = sum(max(1, -(-len(file.data) // _PAGE_BYTES)) for file in files.values())
    return (pages + len(_all_folders(files))) * _PAGE_BYTES


async def take(
    sandbox: _Files, paths: Sequence[str], *, max_bytes: int, beside: Iterable[str] = ()
) -> dict[str, ArchivedFile]:
    """Collect files and folders of a sandbox by place.

    Paths that are missing, special, unreadable or too large are left out. A link as a path is followed
    inside; links in a folder are not. Later paths take precedence, and files of the places `beside` over all.
    """
    taken: list[dict[str, ArchivedFile]] = []
    for path in paths:
        try:
            found = await _collect(sandbox, path, max_bytes)
        except OSError:
            continue
        size = size_on_disk(found)
        if size <= max_bytes:
            max_bytes -= size
            taken.append(found)
    occupied = set(beside)
    folders = _all_folders(occupied)
    kept: dict[str, ArchivedFile] = {}
    for found in reversed(taken):
        for path, file in found.items():
            above = folders_above(path, folders)
            # A path is either a file or a folder.
            if path in occupied or path in folders or occupied.intersection(above):
                continue
            kept[path] = file
            occupied.add(path)
            folders.update(above)
    return kept


def digests_of(files: Mapping[str, ArchivedFile]) -> bytes:
    facts = {
        path: (len(each.data), each.mode, hashlib.sha256(each.data).hexdigest())
        for path, each in files.items()
    }
    return json.dumps(facts).encode()


async def files_beside(
    sandbox: Sandbox, known: Mapping[str, ArchivedFile], digests: bytes, *, max_bytes: int
) -> dict[str, ArchivedFile]:
    """Return a workspace's plain files except `.git` and `__pycache__`; known ones are not transferred.

    Raises:
        OSError: if others exceed `max_bytes` or cannot be read.
    """
    get = getattr(sandbox, "get_changed", None)
    if get is None:  # a backend of another package
        size = sum(len(file.data) + _MEMBER_BYTES for file in known.values())
        return unpack(await sandbox.get_archive(".", max_bytes=size + max_bytes))
    archive, same = await get(".", digests, max_bytes=max_bytes)
    return {path: known[path] for path in same & known.keys()} | unpack(archive)


async def _collect(sandbox: _Files, path: str, max_bytes: int) -> dict[str, ArchivedFile]:
    try:
        data = await sandbox.read_file(path, max_bytes=max_bytes)
    except IsADirectoryError:
        archive = await sandbox.get_archive(path, max_bytes=max_bytes)
        return {
            place(f"{path}/{name}", sandbox.workdir): file
            for name, file in (await asyncio.to_thread(unpack, archive)).items()
            if "__pycache__" not in name.split("/")
        }
    return {place(path, sandbox.workdir): ArchivedFile(data=data)}


def _batches(files: Mapping[str, ArchivedFile], max_bytes: int) -> Iterator[dict[str, ArchivedFile]]:
    """Yield each request: one file outside the workspace, or many inside."""
    max_bytes = min(max_bytes, _BATCH_BYTES)
    batch: dict[str, ArchivedFile] = {}
    size = 0
    for path, file in files.items():
        if path.startswith("/"):
            yield {path: file}
            continue
        added = len(file.data) + len(os.fsencode(path)) + _MEMBER_BYTES
        if batch and (size + added > max_bytes or len(batch) == tar.MAX_MEMBERS):
            yield batch
            batch, size = {}, 0
        batch[path] = file
        size += added
    if batch:
        yield batch


def _all_folders(paths: Iterable[str]) -> set[str]:
    folders: set[str] = set()
    for path in paths:
        folders.update(folders_above(path, folders))
    return folders
