"""Files as a tar archive and back, for `put_archive` and `get_archive`; nothing is extracted here."""

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
    """An archive that is what `check` accepts, and its files: it is not read a second time."""

    files: Mapping[str, ArchivedFile]


def pack(files: Mapping[str, ArchivedFile]) -> Archive:
    """An archive of these files, by their paths below the folder that it will be put into.

    Raises:
        OSError: a path is absolute, contains `..` or a NUL byte, is too long, there twice, or leads through
            another file; or there are too many.
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
    """The files of an archive, by their paths; its folders are left out.

    Raises:
        OSError: it is not what `check` accepts.
    """
    return dict(check(archive).files)


def clean_path(path: str) -> str:
    """A member's path without `.` and doubled slashes.

    Raises:
        OSError: it is absolute, contains `..` or a NUL byte, or is too long.
    """
    try:
        return os.fsdecode(tar.clean(os.fsencode(path)))
    except tar.TarError as error:
        raise _refusal(error) from None


def check(archive: bytes) -> Archive:
    """Make sure that an archive holds only plain files and folders, each below the folder it is put into.

    Raises:
        OSError: a member is a link, a device, a FIFO or sparse, has an absolute path or one with `..`, has
            huge headers, is there twice or leads through a file; there are too many; or this is no archive.
            It names the member.
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
        parent = path.rpartition("/")[0]
        # What is above a folder that is known is known too.
        while parent and parent not in folders:
            if parent in paths:
                raise OSError(errno.EINVAL, f"not taken from an archive: {parent!r} is a file", path)
            folders.add(parent)
            parent = parent.rpartition("/")[0]


def _refusal(error: tar.TarError) -> OSError:
    member = os.fsdecode(error.member).encode("utf-8", "backslashreplace").decode()
    return OSError(errno.EINVAL, f"not taken from an archive: {error.reason}", member)
