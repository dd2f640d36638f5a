"""Files from one sandbox into another: those that are there, as many as fit, none in the place of another."""

import posixpath
from collections.abc import Iterable, Mapping, Sequence

from tools.sandbox.archive import ArchivedFile, clean_path, pack, unpack
from tools.sandbox.base import MAX_READ_BYTES, Sandbox

_BATCH_BYTES = 8 << 20
"""Of content in one request: a sandbox holds a request in its memory more than once."""
_PAGE_BYTES = 4096


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
    folders = {folder for path in files for folder in _folders(path)}
    pages = sum(max(1, -(-len(file.data) // _PAGE_BYTES)) for file in files.values())
    return (pages + len(folders)) * _PAGE_BYTES


async def take(
    sandbox: Sandbox, paths: Sequence[str], *, max_bytes: int, beside: Iterable[str] = ()
) -> dict[str, ArchivedFile]:
    """Files and whole folders of a sandbox, by place; what the agent did to them is never an error.

    One that is missing, is no plain file or folder, cannot be read or does not fit is simply not there. Of a
    folder its plain files come. A path that is itself a link is followed, inside; links in a folder are not.

    Args:
        sandbox: where they are.
        paths: a later one wins over an earlier one.
        max_bytes: for all of them on disk.
        beside: places of files that win over all of them.
    """
    taken: list[dict[str, ArchivedFile]] = []
    for path in paths:
        try:
            found = await _found(sandbox, path, min(max_bytes, MAX_READ_BYTES))
        except OSError:
            continue
        size = size_on_disk(found)
        if size <= max_bytes:
            max_bytes -= size
            taken.append(found)
    occupied = set(beside)
    folders = {folder for one in occupied for folder in _folders(one)}
    kept: dict[str, ArchivedFile] = {}
    for found in reversed(taken):
        for path, file in found.items():
            above = _folders(path)
            # No file is where another one is, or where a folder of it is.
            if path in occupied or path in folders or occupied.intersection(above):
                continue
            kept[path] = file
            occupied.add(path)
            folders.update(above)
    return kept


async def put(sandbox: Sandbox, files: Mapping[str, ArchivedFile]) -> None:
    """Write files to their places; those in the workspace in as few requests as their size allows.

    Raises:
        OSError: a place is not allowed or in the way of another, or the workspace is full.
    """
    batch: dict[str, ArchivedFile] = {}
    size = 0
    for path, file in files.items():
        if path.startswith("/"):
            await sandbox.write_file(path, file.data, mode=file.mode)
            continue
        if batch and size + len(file.data) > _BATCH_BYTES:
            await sandbox.put_archive(pack(batch))
            batch, size = {}, 0
        batch[path] = file
        size += len(file.data)
    if batch:
        await sandbox.put_archive(pack(batch))


async def _found(sandbox: Sandbox, path: str, max_bytes: int) -> dict[str, ArchivedFile]:
    try:
        data = await sandbox.read_file(path, max_bytes=max_bytes)
    except IsADirectoryError:
        files = unpack(await sandbox.get_archive(path, max_bytes=max_bytes))
        return {place(f"{path}/{name}", sandbox.workdir): file for name, file in files.items()}
    return {place(path, sandbox.workdir): ArchivedFile(data=data)}


def _folders(path: str) -> list[str]:
    folders: list[str] = []
    while path := path.rpartition("/")[0]:
        folders.append(path)
    return folders
