"""The index of a record: a file beside it that says where each group stands, and which group it is.

Nothing is lost with it. It may be torn, behind the record or ahead of it, or another record's: whoever reads
it believes of it what the record bears out, see `environments.record.entries`.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson

from environments.record.contents import FACTS
from environments.record.private_file import private

_OURS = b"turnwise.index/"
_HEADER = _OURS + f"1 {' '.join(FACTS)}\n".encode()
"""An index that knows other facts of a group is made anew."""
_CRC_DIGITS = 8
INDEXED_BYTES = 16 << 20
"""A smaller record needs none: all of it is read in less than half a second."""

Stamp = tuple[int, int]
"""Inode of a record, and when it was changed last, in ns: no user can set that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a record."""

    number: int
    """Of the line, from 1."""
    start: int
    """Of the line in the file, in bytes."""
    end: int
    checksum: int
    """CRC-32 of the line: it tells what was changed, not what was forged."""
    facts: Mapping[str, Any]
    """Those fields of the line that say which group it is, see `Contents.add`."""

    @classmethod
    def of(cls, line: bytes, facts: Mapping[str, Any], *, number: int, start: int) -> "Entry":
        """The entry of a line with these facts; `null` says nothing."""
        facts = {name: value for name, value in facts.items() if value is not None}
        return cls(number=number, start=start, end=start + len(line), checksum=crc32(line), facts=facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexContent:
    """What an index says, up to the first line that is none of an index."""

    entries: Sequence[Entry] = ()
    marks: Sequence[tuple[int, int]] = ()
    """With each entry, the length of the index in bytes, and the checksum that the next line goes on from."""
    stamp: Stamp | None = None
    """The record as it was when the last entry had been written; `None`: not known."""


def index_path(record: Path) -> Path:
    """Where the index of a record is."""
    return record.with_name(record.name + ".index")


def read_index(record: Path) -> IndexContent:
    """What the index of a record says; nothing where there is none."""
    try:
        fd = _opened(index_path(record), os.O_RDONLY)
    except OSError:
        return IndexContent()
    with os.fdopen(fd, "rb") as file:
        return _content(file.read())


class IndexFile:
    """The index of a record that is being written. Where it cannot be, the record goes on without one."""

    def __init__(self, record: Path) -> None:
        """Open it where there is one; it is made when the record is large enough, which is locked already."""
        self._path = index_path(record)
        self._fd = -1
        self._is_wanted = True
        self._waiting: list[Entry] = []
        """The entries of a record that is too small yet."""
        self._checksum = 0
        self.content = IndexContent()
        if os.path.lexists(self._path):
            self._open()

    def keep(self, count: int) -> None:
        """Throw away all but the first entries; those that are appended follow them."""
        size, self._checksum = self.content.marks[count - 1] if count else (len(_HEADER), 0)
        try:
            if self._fd >= 0 and os.fstat(self._fd).st_size != size:
                os.ftruncate(self._fd, size)
        except OSError:
            self.close()

    def append(self, entry: Entry, stamp: Stamp | None) -> None:
        """Add the entry of the record's next line.

        Args:
            entry: the entry.
            stamp: of the record with that line as its last; `None`: more follow, or somebody else changed it.
        """
        if self._is_wanted:
            self._waiting.append(entry)
            if entry.end < INDEXED_BYTES:
                return
            self._open()
        *before, last = self._waiting or [entry]
        self._waiting = []
        for each in before:
            self._write_entry(each, None)
        self._write_entry(last, stamp)

    def stamp(self, stamp: Stamp) -> None:
        """Say how the record is now that its last entry is there."""
        self._write({"at": stamp})

    def close(self) -> None:
        """Release the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        self._is_wanted = False
        with suppress(OSError):
            self._fd = _opened(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            self._begin()

    def _begin(self) -> None:
        with os.fdopen(self._fd, "rb", closefd=False) as file:
            content = file.read()
        if not _is_ours(content):
            self.close()
            return
        os.fchmod(self._fd, 0o600)
        if not content.startswith(_HEADER):
            os.ftruncate(self._fd, 0)
            os.write(self._fd, _HEADER)
        self.content = _content(content)

    def _write_entry(self, entry: Entry, stamp: Stamp | None) -> None:
        self._write({"end": entry.end, "crc": entry.checksum, "at": stamp, "of": entry.facts})

    def _write(self, fields: Mapping[str, Any]) -> None:
        if self._fd < 0:
            return
        text = orjson.dumps(fields)
        self._checksum = crc32(text, self._checksum)
        line = _line(self._checksum, text)
        try:
            if os.write(self._fd, line) != len(line):
                self.close()
        except OSError:
            self.close()


def stamp_of(fd: int) -> Stamp:
    """The stamp of an open record."""
    status = os.fstat(fd)
    return status.st_ino, status.st_ctime_ns


def _opened(path: Path, flags: int) -> int:
    """A regular file, which is not a link to another; neither a pipe nor a device holds anybody up.

    Raises:
        OSError: it is none.
    """
    fd = private(str(path), flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path} is not a regular file")
    return fd


def _is_ours(content: bytes) -> bool:
    """Whether an index begins so, or would have, if it had been written to its end."""
    return content.startswith(_OURS) or _OURS.startswith(content)


def _content(content: bytes) -> IndexContent:
    if not content.startswith(_HEADER):
        return IndexContent()
    entries: list[Entry] = []
    marks: list[tuple[int, int]] = []
    stamp: Stamp | None = None
    checksum, size = 0, len(_HEADER)
    for line in content[size:].splitlines(keepends=True):
        text = line[_CRC_DIGITS + 1 : -1]
        checksum = crc32(text, checksum)
        if line != _line(checksum, text):
            break
        size += len(line)
        fields: dict[str, Any] = orjson.loads(text)
        stamp = None if fields["at"] is None else (fields["at"][0], fields["at"][1])
        if "of" in fields:
            entries.append(_entry(fields, entries[-1] if entries else None))
            marks.append((size, checksum))
        elif marks:
            marks[-1] = size, checksum
    return IndexContent(entries=entries, marks=marks, stamp=stamp)


def _entry(fields: Mapping[str, Any], before: Entry | None) -> Entry:
    return Entry(
        number=1 if before is None else before.number + 1,
        start=0 if before is None else before.end,
        end=fields["end"],
        checksum=fields["crc"],
        facts=fields["of"],
    )


def _line(checksum: int, text: bytes) -> bytes:
    return b"%08x %b\n" % (checksum, text)
