"""A verifier's files, where no process of the agent's user can change, remove, rename or replace them.

Each of them is below its own read-only folder, and at its path in the workspace. What
keeps it there is mounts where a sandbox has its own (`mounts.hold`), or what is here: another user, or
Landlock. In a container this file is executed as a program: it imports nothing of ours.
"""

from __future__ import annotations

import os

Files = list[tuple[str, bytes]]
"""Paths in the workspace, or absolute ones, and contents."""

FILES, HOME, PYTHON = "files", "home", "python"
_READ_ONLY = 0o444
_OF_EVERYBODY = 0o1777
"""Who may make files in a folder, but not remove or rename those of others."""


def keep(files: Files, folder: str) -> None:
    """Write them below a folder of their own, next to an empty home; the folder is there."""
    for name in (FILES, HOME):
        os.mkdir(f"{folder}/{name}")
        os.chmod(f"{folder}/{name}", 0o755)
    for path, data in files:
        write(kept_at(path, folder), data, 0o755)


def kept_at(path: str, folder: str) -> str:
    """Where a file is below the folder of their own."""
    return f"{folder}/{FILES}/{path.lstrip('/')}"


def copy_as_owner(files: Files, workdir: str) -> None:
    """Write them into the workspace as another user than the agent's; the workspace is that user's, too."""
    os.chmod(workdir, _OF_EVERYBODY)
    for path, data in files:
        write(os.path.join(workdir, path), data, _OF_EVERYBODY)


def link(files: Files, folder: str, workdir: str) -> None:
    """Link to them from the workspace, in which the agent is to be kept from removing anything."""
    for path, _ in files:
        at = os.path.join(workdir, path)
        _make_folders(os.path.dirname(at), 0o755)
        os.symlink(kept_at(path, folder), at)
    # Python looks for modules where a link leads to. Those beside the link come behind its own, because a
    # build may have left a `json.py` there.
    beside = f"import sys\nsys.path.append({workdir!r})\n"
    write(f"{folder}/{PYTHON}/sitecustomize.py", beside.encode(), 0o755)


def write(path: str, data: bytes, folder_mode: int) -> None:
    """Write a read-only file, in folders that are made with this mode."""
    _make_folders(os.path.dirname(path), folder_mode)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _READ_ONLY)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fchmod(fd, _READ_ONLY)
    finally:
        os.close(fd)


def _make_folders(path: str, mode: int) -> None:
    if os.path.isdir(path):
        return
    _make_folders(os.path.dirname(path), mode)
    os.mkdir(path)
    os.chmod(path, mode)
