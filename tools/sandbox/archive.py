"""Files as a tar archive and back, for `put_archive` and `get_archive`; nothing is extracted here."""

import errno
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass

from tools.sandbox.inside import tar


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedFile:
    """One regular file of an archive."""

    data: bytes
    mode: int = 0o644


def pack(files: Mapping[str, ArchivedFile]) -> bytes:
    """An archive of these files, by their paths below the folder that it will be put into.

    Raises:
        OSError: a path is absolute, contains `..` or a NUL byte, is too long, or leads through another file.
    """
    parts: list[bytes] = []
    try:
        for path, file in files.items():
            size = len(file.data)
            parts += (tar.header(os.fsencode(path), file.mode & 0o777, size), file.data, tar.padding(size))
    except tar.TarError as error:
        raise _refusal(error) from None
    archive = b"".join((*parts, tar.END))
    check(archive)
    return archive


def unpack(archive: bytes) -> dict[str, ArchivedFile]:
    """The files of an archive, by their paths; its folders are left out.

    Raises:
        OSError: it is not what `check` accepts.
    """
    files: dict[str, ArchivedFile] = {}
    reader = tar.Reader(io.BytesIO(archive).read)
    try:
        for member in reader:
            if not member.folder:
                path = os.fsdecode(member.name)
                files[path] = ArchivedFile(data=b"".join(reader.content()), mode=member.mode)
    except tar.TarError as error:
        raise _refusal(error) from None
    for path in files:
        parent = path.rpartition("/")[0]
        while parent:
            if parent in files:
                raise OSError(errno.EINVAL, f"not taken from an archive: {parent!r} is a file", path)
            parent = parent.rpartition("/")[0]
    return files


def clean_path(path: str) -> str:
    """A member's path without `.` and doubled slashes.

    Raises:
        OSError: it is absolute, contains `..` or a NUL byte, or is too long.
    """
    try:
        return os.fsdecode(tar.clean(os.fsencode(path)))
    except tar.TarError as error:
        raise _refusal(error) from None


def check(archive: bytes) -> None:
    """Make sure that an archive holds only plain files and folders, each below the folder it is put into.

    Raises:
        OSError: a member is a link, a device, a FIFO or sparse, has an absolute path or one with `..`, has
            huge headers, is there twice or leads through a file; there are too many; or this is no archive.
            It names the member.
    """
    unpack(archive)


def _refusal(error: tar.TarError) -> OSError:
    member = os.fsdecode(error.member).encode("utf-8", "backslashreplace").decode()
    return OSError(errno.EINVAL, f"not taken from an archive: {error.reason}", member)
