"""Removal of folders that an agent filled, without following links."""

import itertools
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC


def remove(folder: str) -> None:
    """Remove a folder as far as possible.

    Subfolders first move up, so that any depth needs only two descriptors.
    """
    try:
        top = _opened(None, folder)
    except OSError:
        return
    try:
        _empty(top)
        Path(folder).rmdir()
    except OSError:
        return
    finally:
        os.close(top)


def _empty(top: int) -> None:
    names = map(f".{secrets.token_hex(8)}.{{}}".format, itertools.count())
    while folders := [name for name in _names(top) if not _removed(top, name)]:
        for name in folders:
            _flatten(top, name, names)


def _flatten(top: int, name: str, names: Iterator[str]) -> None:
    """Remove one folder after moving its subfolders to the top."""
    inner = _opened(top, name)
    try:
        for each in _names(inner):
            if not _removed(inner, each):
                # Changing `..` requires a writable folder.
                os.close(_opened(inner, each))
                os.rename(each, next(names), src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)


def _opened(parent: int | None, name: str) -> int:
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | _NO_LINK, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)  # noqa: PTH101  # a descriptor by its path
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
    finally:
        os.close(handle)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def _removed(parent: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=parent)
    except IsADirectoryError:
        return False
    return True
