"""Where each group of a record stands: as its index says and the record bears out, or else from the lines."""

import os
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from zlib import crc32

import orjson

from environments.record.contents import FACTS
from environments.record.group_line import decode_group, parse_line
from environments.record.index_file import Entry, IndexContent, read_index, stamp_of
from environments.trajectory import CreditedGroup
from tools.errors import RecordError

ALWAYS_CHECKED = 64 << 20
"""A record up to so many bytes is compared with its index as a whole, however unchanged it looks."""
_PIECE = 1 << 20


def read_entries(path: Path) -> list[Entry]:
    """Where each group of a record stands, and which it is; a torn last line is left out.

    Of the lines that the record's index knows nothing is read but what `borne_out` needs, and nothing is
    written: the index belongs to the process that writes the record.

    Raises:
        RecordError: unreadable, or a line that the index does not know is malformed.
    """
    try:
        # The index first: it is behind a record that somebody writes meanwhile, never ahead of it.
        content = read_index(path)
        with path.open("rb") as record:
            entries = borne_out(content, record.fileno())
            start = entries[-1].end if entries else 0
            record.seek(start)
            entries += entries_of(whole_lines(record), path, number=len(entries) + 1, start=start)
            return entries
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error


def whole_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a record but a torn last one, which no reader takes: its group was never finished.

    A run that writes it, or was killed meanwhile, left it without an end; one of a whole JSON value has lost
    nothing but that end, as in a file that was edited.
    """
    return takewhile(_is_whole, lines)


def read_group_at(path: Path, entry: Entry, *, rows: bool = True) -> CreditedGroup:
    """One group of a record, of which nothing else is read; without `rows` its trajectories have none.

    Raises:
        RecordError: unreadable, malformed, or not the line any more that the entry is of.
    """
    try:
        with path.open("rb") as record:
            line = os.pread(record.fileno(), entry.end - entry.start, entry.start)
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error
    if crc32(line) != entry.checksum:
        raise RecordError(f"{path}, line {entry.number}: it was changed since it was looked up")
    return decode_group(line, path, entry.number, rows=rows)


def entries_of(lines: Iterable[bytes], path: Path, *, number: int, start: int) -> Iterator[Entry]:
    """The entries of whole lines that stand in a record from a line and an offset on.

    Raises:
        RecordError: a line is malformed.
    """
    for at, line in enumerate(lines, start=number):
        entry = Entry.of(line, parse_line(line, path, at).parsed(FACTS), number=at, start=start)
        yield entry
        start = entry.end


def borne_out(content: IndexContent, record: int) -> list[Entry]:
    """The entries of an index whose lines are still in the record as they were.

    Every line is compared by its checksum, which needs no parser; of a large record whose inode, size and
    time of change are as the index has them, only the last one.

    Args:
        content: what the index says.
        record: the open record.

    Raises:
        OSError: the record cannot be read.
    """
    entries = content.entries
    size = os.fstat(record).st_size
    if entries and size > ALWAYS_CHECKED and size == entries[-1].end and content.stamp == stamp_of(record):
        if _is_there(entries[-1], record):
            return list(entries)
        return []
    return list(takewhile(lambda entry: entry.end <= size and _is_there(entry, record), entries))


def _is_whole(line: bytes) -> bool:
    if line.endswith(b"\n"):
        return True
    try:
        orjson.loads(line)
    except ValueError:
        return False
    return True


def _is_there(entry: Entry, record: int) -> bool:
    checksum, at = 0, entry.start
    piece = b""
    while at < entry.end:
        piece = os.pread(record, min(_PIECE, entry.end - at), at)
        if not piece:
            return False
        checksum = crc32(piece, checksum)
        at += len(piece)
    return checksum == entry.checksum and piece.endswith(b"\n")
