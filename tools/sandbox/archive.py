"""Building and checking tar archives for `put_archive` and `get_archive`; nothing is extracted."""

import errno
import io
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tools.sandbox.inside import tar


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedFile:
    data: bytes
    mode: int = 0o644


class Archive(bytes):
    files: Mapping[str, ArchivedFile]


def pack(files: Mapping[str, ArchivedFile]) -> Archive:
    """Build an archive of files by relative path.

    Raises:
        OSError: if a path is invalid or duplicate or leads through a file, or there are too many files.
    """
    parts: list[bytes] = []
    packed: dict[str, ArchivedFile] = {}
    try:
        for path, file in files.items():
            raw, mode, size = os.fsencode(path), file.mode & 0o777, len(file.data)
            name = clean_path(path)
            if not name:
                raise tar.TarError(raw, "a file without a name")
            if name in packed:
                raise tar.TarError(raw, "it is there twice")
            if len(packed) == tar.MAX_MEMBERS:
                raise tar.TarError(raw, f"more than {tar.MAX_MEMBERS} members")
            parts += (tar.header(raw, mode, size), file.data, tar.padding(size))
            packed[name] = ArchivedFile(data=file.data, mode=mode)
    except tar.TarError as error:
        raise _refusal(error) from None
    _refuse_files_below_files(packed)
    return _archive(b"".join((*parts, tar.END)), packed)


def unpack(archive: bytes) -> dict[str, ArchivedFile]:
    """Return the files of an archive by path; raises as `check`."""
    return dict(check(archive).files)


def clean_path(path: str) -> str:
    """Normalize a member's path; raise OSError if it is absolute, too long, or has `..` or a NUL byte."""
    try:
        return os.fsdecode(tar.clean(os.fsencode(path)))
    except tar.TarError as error:
        raise _refusal(error) from None


def check(archive: bytes) -> Archive:
    """Check that an archive contains only plain files and folders below its root.

    Raises:
        OSError: if a member is special, has an invalid path or huge headers, is duplicate or leads through a
            file; if there are too many; or if this is not an archive. The error names the member.
    """
    if isinstance(archive, Archive):
        return archive
    files: dict[str, ArchivedFile] = {}
    reader = tar.Reader(io.BytesIO(archive).read)
    try:
        for member in reader:
            if not member.folder:
                path = os.fsdecode(member.name)
                files[path] = ArchivedFile(data=b"".join(reader.content()), mode=member.mode)
    except tar.TarError as error:
        raise _refusal(error) from None
    _refuse_files_below_files(files)
    return _archive(archive, files)


def _archive(data: bytes, files: Mapping[str, ArchivedFile]) -> Archive:
    archive = Archive(data)
    archive.files = files
    return archive


def _refuse_files_below_files(paths: Collection[str]) -> None:
    folders: set[str] = set()
    for path in paths:
        for folder in folders_above(path, folders):
            if folder in paths:
                raise OSError(errno.EINVAL, f"not taken from an archive: {folder!r} is a file", path)
            folders.add(folder)


def folders_above(path: str, known: Collection[str]) -> list[str]:
    """Return the folders above a path, from the inside, up to the first known one."""
    folders: list[str] = []
    while (path := path.rpartition("/")[0]) and path not in known:
        folders.append(path)
    return folders


def _refusal(error: tar.TarError) -> OSError:
    member = os.fsdecode(error.member).encode("utf-8", "backslashreplace").decode()
    return OSError(errno.EINVAL, f"not taken from an archive: {error.reason}", member)
