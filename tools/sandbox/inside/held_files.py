"""A verifier's files, which the agent's user cannot change, remove or replace.

Each file is below a read-only folder and at its path in the workspace, pinned by mounts (`mounts.hold`),
another owner or Landlock. Containers execute this file as a program, so it imports none of our modules.
"""

from __future__ import annotations

import os

Files = list[tuple[str, bytes]]

FILES, HOME, PYTHON = "files", "home", "python"
_READ_ONLY = 0o444
_OF_EVERYBODY = 0o1777
"""Sticky: users may create files, but not remove those of others."""


_IMPORTS = """import os, sys
from importlib.machinery import PathFinder

# The verifier's own files and the standard library come before what an agent left beside them; the program's
# folder, or the current one, comes last. What a program inserts into `sys.path` stays where it is.
FILES, WORKSPACE = {files!r}, {workspace!r}
LIBRARY = [os.path.dirname(os.__file__), os.path.dirname(os.__file__) + "/lib-dynload"]
# Packages that the sandbox lends, or its image.
SET = os.environ.get("PYTHONPATH", "").split(os.pathsep)
LIBRARY += [each for each in SET if each.startswith("/") and not (each + "/").startswith(WORKSPACE + "/")]
STARTED = frozenset(sys.path)


def first_folders():
    program = getattr(sys, "argv", [""])[0]
    return {{"", os.getcwd(), *map(os.path.dirname, (os.path.abspath(program), os.path.realpath(program)))}}


def is_of_agent():
    path = os.path.realpath(getattr(sys, "argv", [""])[0])
    kept = FILES + path[len(WORKSPACE):]
    return path.startswith(WORKSPACE + "/") and os.path.isfile(path) and not os.path.exists(kept)


class VerifierFirst:
    moved = bool(getattr(sys.flags, "safe_path", False))

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if not cls.moved:
            for entry in [each for each in sys.path if each not in STARTED and each in first_folders()][:1]:
                cls.moved = True
                sys.path.remove(entry)
                sys.path += [entry, WORKSPACE + entry[len(FILES):]] if entry.startswith(FILES) else [entry]
        below = [WORKSPACE] if path is None else [each for each in path if each.startswith(WORKSPACE)]
        own = PathFinder.find_spec(name, [FILES + each[len(WORKSPACE):] for each in below])
        if own is not None and own.has_location:
            there = PathFinder.find_spec(name, below)
            is_same = there is not None and there.origin == WORKSPACE + own.origin[len(FILES):]
            return there if is_same else own
        found = PathFinder.find_spec(name, LIBRARY) if path is None else None
        return found if found is not None and found.has_location else None


if not is_of_agent():
    sys.meta_path.insert(0, VerifierFirst)
"""


def keep(files: Files, folder: str, workdir: str, seen_at: str = "") -> None:
    """Write the files below an existing folder (`seen_at` inside), next to an empty home."""
    for name in (FILES, HOME):
        os.mkdir(f"{folder}/{name}")
        os.chmod(f"{folder}/{name}", 0o755)
    imports = _IMPORTS.format(files=f"{seen_at or folder}/{FILES}", workspace=os.path.realpath(workdir))
    write(f"{folder}/{PYTHON}/sitecustomize.py", imports.encode(), 0o755)
    for path, data in files:
        write(locate(path, folder), data, 0o755)


def locate(path: str, folder: str) -> str:
    return f"{folder}/{FILES}/{path.lstrip('/')}"


def copy_as_owner(files: Files, workdir: str) -> None:
    """Write the files into the workspace, which belongs to this user rather than the agent."""
    os.chmod(workdir, _OF_EVERYBODY)
    for path, data in files:
        write(os.path.join(workdir, path), data, _OF_EVERYBODY)


def link(files: Files, folder: str, workdir: str) -> None:
    """Link to the files; Landlock keeps the agent from removing the links."""
    for path, _ in files:
        at = os.path.join(workdir, path)
        _make_folders(os.path.dirname(at), 0o755)
        os.symlink(locate(path, folder), at)


def write(path: str, data: bytes, folder_mode: int) -> None:
    _make_folders(os.path.dirname(path), folder_mode)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _READ_ONLY)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fchmod(fd, _READ_ONLY | (0o111 if data.startswith(b"#!") else 0))
    finally:
        os.close(fd)


def _make_folders(path: str, mode: int) -> None:
    if os.path.isdir(path):
        return
    _make_folders(os.path.dirname(path), mode)
    os.mkdir(path)
    os.chmod(path, mode)
