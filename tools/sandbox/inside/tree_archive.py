"""A whole tree as a tar archive and back: links, modes and times too, made and read by the agent's user.

No host reads such an archive: it goes from one sandbox into others.
"""

from __future__ import annotations

import os


def pack(folder: str) -> None:
    import tarfile  # noqa: PLC0415

    with open(1, "wb", closefd=False) as stdout, tarfile.open(fileobj=stdout, mode="w|") as archive:
        for name in sorted(os.listdir(folder)):
            archive.add(os.path.join(folder, name), name)


def unpack(folder: str) -> None:
    """Extract stdin below a folder; existing files are a verifier's and stay."""
    import tarfile  # noqa: PLC0415

    folders: list[tuple[tarfile.TarInfo, str]] = []
    with open(0, "rb", closefd=False) as stdin, tarfile.open(fileobj=stdin, mode="r|") as archive:
        # Newer filters change modes and refuse links, which are harmless here.
        archive.extraction_filter = lambda member, _: member
        for member in archive:
            at = os.path.join(folder, member.name)
            if member.isdir():
                if not os.path.isdir(at):
                    os.mkdir(at)
                    folders.append((member, at))
            elif not os.path.lexists(at):
                archive.extract(member, folder)
        # Last: folders may be read-only, and extraction changes their times.
        for member, at in reversed(folders):
            archive.utime(member, at)
            archive.chmod(member, at)
