"""A whole tree as a tar archive and back: links, modes and times too, made and read by the agent's user.

No host reads such an archive: it goes from one sandbox into others.
"""

from __future__ import annotations

import os


def pack(folder: str) -> None:
    """Send the tree below a folder to stdout; sockets are left out."""
    # It would be loaded in each supervisor, for few of them.
    import tarfile  # noqa: PLC0415

    with open(1, "wb", closefd=False) as stdout, tarfile.open(fileobj=stdout, mode="w|") as archive:
        for name in sorted(os.listdir(folder)):
            archive.add(os.path.join(folder, name), name)


def unpack(folder: str) -> None:
    """Put what comes on stdin below a folder; what is there already stays: it is a verifier's."""
    import tarfile  # noqa: PLC0415

    folders: list[tuple[tarfile.TarInfo, str]] = []
    with open(0, "rb", closefd=False) as stdin, tarfile.open(fileobj=stdin, mode="r|") as archive:
        # Newer ones change modes and refuse links; here it is all within a sandbox.
        archive.extraction_filter = lambda member, _: member
        for member in archive:
            at = os.path.join(folder, member.name)
            if member.isdir():
                if not os.path.isdir(at):
                    os.mkdir(at)
                    folders.append((member, at))
            elif not os.path.lexists(at):
                archive.extract(member, folder)
        # Last: a folder may be closed, and what comes into it changes its time.
        for member, at in reversed(folders):
            archive.utime(member, at)
            archive.chmod(member, at)
