"""Files from one sandbox into another: those that are there, as many as fit, none in the place of another."""

import asyncio
import hashlib
import json
import os
import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from tools.sandbox.archive import ArchivedFile, clean_path, pack, unpack
from tools.sandbox.base import Sandbox
from tools.sandbox.inside import tar

_BATCH_BYTES = 8 << 20
"""Of one request, or half a workspace: a sandbox holds it in its memory more than once."""
_MEMBER_BYTES = 2048
"""The most that an archive adds to a file's content and path."""
_PAGE_BYTES = 4096


class _Files(Protocol):
    @property
    def workdir(self) -> str: ...
    async def read_file(self, path: str, *, max_bytes: int = ...) -> bytes: ...
    async def get_archive(self, path: str, *, max_bytes: int = ...) -> bytes: ...


def place(path: str, workdir: str) -> str:
    """A path as sandboxes of the same kind share it: below their workspaces, or absolute elsewhere.

    Raises:
        OSError: no archive can carry it.
    """
    absolute = posixpath.normpath(posixpath.join(workdir, path))
    root = workdir.rstrip("/")
    if absolute.startswith(f"{root}/"):
        return clean_path(absolute.removeprefix(f"{root}/"))
    return f"/{clean_path(absolute.lstrip('/'))}"


def size_on_disk(files: Mapping[str, ArchivedFile]) -> int:
    """The most that files and their folders take in a workspace."""
    folders = _all_folders(files)
    pages = sum(max(1, -(-len(file.data) // _PAGE_BYTES)) for file in files.values())
    return (pages + len(folders)) * _PAGE_BYTES


async def take(
    sandbox: _Files, paths: Sequence[str], *, max_bytes: int, beside: Iterable[str] = ()
) -> dict[str, ArchivedFile]:
    """Files and whole folders of a sandbox, by place; what the agent did to them is never an error.

    One that is missing, is no plain file or folder, cannot be read or does not fit is simply not there. Of a
    folder its plain files come. A path that is itself a link is followed, inside; links in a folder are not.

    Args:
        sandbox: where they are.
        paths: a later one wins over an earlier one.
        max_bytes: for all of them on disk.
        beside: places of files that win over all of them.

    Raises:
        SandboxUnavailable: the sandbox does not say what is there.
    """
    taken: list[dict[str, ArchivedFile]] = []
    for path in paths:
        try:
            found = await _found(sandbox, path, max_bytes)
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
            above = _new_folders(path, folders)
            # No file is where another one is, or where a folder of it is.
            if path in occupied or path in folders or occupied.intersection(above):
                continue
            kept[path] = file
            occupied.add(path)
            folders.update(above)
    return kept


def digests_of(files: Mapping[str, ArchivedFile]) -> bytes:
    """Return the JSON by which a sandbox recognises files: size, mode and SHA-256 of each."""
    facts = {
        path: (len(each.data), each.mode, hashlib.sha256(each.data).hexdigest())
        for path, each in files.items()
    }
    return json.dumps(facts).encode()


async def files_beside(
    sandbox: Sandbox, known: Mapping[str, ArchivedFile], digests: bytes, *, max_bytes: int
) -> dict[str, ArchivedFile]:
    """Return the plain files of a workspace without `.git` and `__pycache__`; known ones are not transferred.

    Raises:
        OSError: the others are more than `max_bytes`, holes counted, or cannot be read.
    """
    get = getattr(sandbox, "get_changed", None)
    if get is None:  # a backend of another package
        size = sum(len(file.data) + _MEMBER_BYTES for file in known.values())
        return unpack(await sandbox.get_archive(".", max_bytes=size + max_bytes))
    archive, same = await get(".", digests, max_bytes=max_bytes)
    return {path: known[path] for path in same & known.keys()} | unpack(archive)


async def put(sandbox: Sandbox, files: Mapping[str, ArchivedFile]) -> None:
    """Write files to their places; those in the workspace in as few requests as archives allow.

    Raises:
        OSError: a place is not allowed or in the way of another, or there is no room.
    """
    for batch in _batches(files, sandbox.record.limits.disk_mb << 19):
        await _put(sandbox, batch)


async def offer(sandbox: Sandbox, files: Mapping[str, ArchivedFile]) -> None:
    """Write files that an agent made to their places; what cannot be written is not there, never an error.

    Outside of the workspace that is file by file, since only the sandbox knows the room there.
    """
    for batch in _batches(files, sandbox.record.limits.disk_mb << 19):
        with suppress(OSError):
            await _put(sandbox, batch)


async def _found(sandbox: _Files, path: str, max_bytes: int) -> dict[str, ArchivedFile]:
    try:
        data = await sandbox.read_file(path, max_bytes=max_bytes)
    except IsADirectoryError:
        archive = await sandbox.get_archive(path, max_bytes=max_bytes)
        return await asyncio.to_thread(_unpacked, archive, path, sandbox.workdir)
    return {place(path, sandbox.workdir): ArchivedFile(data=data)}


def _unpacked(archive: bytes, path: str, workdir: str) -> dict[str, ArchivedFile]:
    return {
        place(f"{path}/{name}", workdir): file
        for name, file in unpack(archive).items()
        # Bytecode that need not match its source.
        if "__pycache__" not in name.split("/")
    }


async def _put(sandbox: Sandbox, batch: Mapping[str, ArchivedFile]) -> None:
    path, file = next(iter(batch.items()))
    if path.startswith("/"):
        await sandbox.write_file(path, file.data, mode=file.mode)
    else:
        await sandbox.put_archive(await asyncio.to_thread(pack, batch))


def _batches(files: Mapping[str, ArchivedFile], max_bytes: int) -> Iterator[dict[str, ArchivedFile]]:
    """What one request can carry: a file outside of the workspace, or many in it."""
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
        folders.update(_new_folders(path, folders))
    return folders


def _new_folders(path: str, known: Collection[str]) -> list[str]:
    """The folders above a path up to a known one, above which all are known."""
    folders: list[str] = []
    while (path := path.rpartition("/")[0]) and path not in known:
        folders.append(path)
    return folders
