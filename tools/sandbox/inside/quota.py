"""How much a folder holds, counted now and then: where no file system can bound it."""

from __future__ import annotations

import os
import stat
import time

_BLOCK_BYTES = 512
_OFTEN_S, _SELDOM_S = 0.05, 0.25
"""Between two looks at the file system's free space: while it changes, and while it does not."""
_RECOUNT_S = 1.0
_SHARE = 10
"""Counting takes at most one part in this many of the time."""


class Quota:
    """The most bytes and files that a folder may hold.

    It counts again when so much of the file system's free space went since the last time that half of the
    room left could be gone, or after a second. Files that are deleted but open are not counted, nor is what
    lies below directories of another user that cannot be read.
    """

    def __init__(self, folder: str, max_bytes: int, max_files: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._free = self._left = self._used = (0, 0)
        self._counted_at = self._spent_s = 0.0
        self._stale = False

    def look(self) -> tuple[bool, float]:
        """Whether the folder is over its bounds and has grown since the last count; when to look next."""
        seen = os.statvfs(self._folder)
        free = (seen.f_bfree * seen.f_frsize, seen.f_ffree)
        quiet, self._free = free == self._free, free
        self._stale = self._stale or not quiet
        return self._stale and self._due(free) and self._recount(free), _SELDOM_S if quiet else _OFTEN_S

    def settle(self) -> None:
        """Take what is there now as known, after those who wrote it are gone."""
        self._used = self._count()

    def _due(self, free: tuple[int, int]) -> bool:
        age_s = time.monotonic() - self._counted_at
        if age_s < _SHARE * self._spent_s:
            return False
        bytes_gone, files_gone = self._left[0] - free[0], self._left[1] - free[1]
        bytes_room, files_room = self._max_bytes - self._used[0], self._max_files - self._used[1]
        return age_s > _RECOUNT_S or 2 * bytes_gone > bytes_room or 2 * files_gone > files_room

    def _recount(self, free: tuple[int, int]) -> bool:
        started = time.monotonic()
        before, self._used = self._used, self._count()
        self._left, self._stale = free, False
        self._counted_at = time.monotonic()
        self._spent_s = self._counted_at - started
        over = self._used[0] > self._max_bytes or self._used[1] > self._max_files
        return over and (self._used[0] > before[0] or self._used[1] > before[1])

    def _count(self) -> tuple[int, int]:
        """Bytes on disk and files; it stops far above the bounds."""
        used = files = 0
        linked: set[int] = set()
        folders, root = [self._folder], os.path.realpath(self._folder)
        while folders and files <= 2 * self._max_files:
            for entry in _entries(folders.pop(), root):
                status = _status(entry)
                if status is None or status.st_ino in linked:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    folders.append(entry.path)
                elif status.st_nlink > 1:
                    linked.add(status.st_ino)
                used += status.st_blocks * _BLOCK_BYTES
                files += 1
        return used, files


def _entries(folder: str, root: str) -> list[os.DirEntry[str]]:
    try:
        return _listed(folder)
    except PermissionError:
        pass
    except OSError:
        return []  # gone meanwhile
    try:
        _open_up(folder, root)
        return _listed(folder)
    except OSError:
        return []  # gone meanwhile, or of another user


def _open_up(folder: str, root: str) -> None:
    """Take back a folder of our own user, closed so that nobody would count what it holds."""
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        itself = f"/proc/self/fd/{handle}"
        # The agent may put a link in the place of a folder above it at any moment: never outside.
        if os.readlink(itself).startswith(f"{root}/"):
            os.chmod(itself, stat.S_IRWXU)
    finally:
        os.close(handle)


def _listed(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return list(found)


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:
        return None
