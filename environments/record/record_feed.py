"""A record as a feed: groups as they are written, each at least once after a cursor file's position."""

import asyncio
import hashlib
import logging
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from environments.record.group_line import LineChecks, decode_group
from environments.record.private_file import write_private
from environments.record.run_folder import record_at
from environments.rollout.lifecycle.weight_versions import STALE, staleness, withhold
from environments.trajectory import CreditedGroup
from environments.wire.training_rows import MADE_UP, Columns
from environments.wire.views import TOKENS_PER_TURN, VIEWS, Divisor, columns_in
from tools.errors import CreditError, RecordError, UsageError, WireError

Weights = Sequence[str] | Callable[[], Sequence[str]]
_SCALED = ("turn_rows", "prefix_rows")
logger = logging.getLogger(__name__)


class Cursor(BaseModel):
    """A reader's position behind one line of a record."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    record: str
    """SHA-256 of the record's first line, which identifies the record on every machine."""
    number: PositiveInt
    start: int
    offset: PositiveInt
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedGroup:
    """A group of a growing record, with its rows for a trainer."""

    credited: CreditedGroup
    row_groups: tuple[Columns, ...]
    """Rows that train together, as `turnwise export` writes them in this view: columns by name."""
    left_out: Mapping[str, int]
    """Groups left out so far: `failed`, `no_credit`, `alone` or `stale`."""
    cursor: Cursor
    _feed: "_Feed" = field(repr=False, compare=False)

    def acknowledge(self) -> None:
        """Note on disk, in the cursor file, that this and all earlier groups were processed.

        Raises:
            RecordError: if the cursor file cannot be written.
        """
        self._feed.acknowledge(self.cursor)


def follow(  # noqa: PLR0913  # one feed, all of it by keyword
    path: str | Path,
    *,
    after: str | Path,
    view: str | None = None,
    score_divisor: Divisor | None = None,
    weights: Weights | None = None,
    max_staleness: int | None = None,
    poll_s: float = 1.0,
) -> AsyncGenerator[FollowedGroup]:
    """Yield the groups of a record in the order they ended, then wait for new ones; it never ends by itself.

    Delivery is at least once: the next call repeats groups that were not acknowledged. The record may lie on
    a shared file system, and need not exist yet. Memory is that of one group.

    Args:
        path: a record, the folder of a run, or `ENV/NAME` of one below `runs/`.
        after: the cursor file, in a folder that exists; without a cursor, all groups are given.
        view: `token_advantages`, `binary_masks`, `turn_rows` or `prefix_rows`: the rows to make of a group.
            With a view, only groups that are `ok` are given.
        score_divisor: divisor of advantage times tokens in `turn_rows` and `prefix_rows`; 1024 if unset.
        weights: versions that the trainer has loaded, oldest first: a growing sequence, or a function that
            returns one.
        max_staleness: how many versions may be newer than the oldest that sampled a rollout. Older rollouts,
            and those of unknown versions, are compared with but not trained. A group without other rollouts
            is left out, and acknowledged with the next one.
        poll_s: seconds between looks at the file.

    Raises:
        UsageError: if arguments do not fit each other.
        RecordError: if the record is no longer that of the cursor, a line is malformed, or a file cannot be
            read.
    """
    if view is not None and view not in VIEWS:
        raise UsageError(f"no view {view!r}; choose one of {sorted(VIEWS)}")
    if score_divisor is not None and view not in _SCALED:
        raise UsageError(f"score_divisor is for the views {' and '.join(_SCALED)}, not {view}")
    if (weights is None) != (max_staleness is None) or isinstance(weights, str):
        raise UsageError(
            "max_staleness and weights need each other; weights are names of versions, oldest first"
        )
    feed = _Feed(Path(path), Path(after).absolute())
    loaded = () if weights is None else weights
    return _groups(feed, view, score_divisor or TOKENS_PER_TURN, loaded, max_staleness, poll_s)


async def _groups(
    feed: "_Feed", view: str | None, divisor: Divisor, weights: Weights, most: int | None, poll_s: float
) -> AsyncGenerator[FollowedGroup]:
    left_out, has_warned = Counter[str](), False
    await asyncio.to_thread(feed.begin)
    while True:
        loaded = tuple(weights() if callable(weights) else weights)
        read = await asyncio.to_thread(feed.next_group, view, divisor, partial(_withhold, loaded, most))
        if read is None:
            await asyncio.sleep(poll_s)
            continue
        credited, rows, cursor = read
        if most is not None and (stale := credited.group.stale) is not None:
            left_out[STALE] += 1
            logger.warning("%s, line %d, is left out as %s", feed.path, cursor.number, stale)
        elif view is not None and credited.status != "ok":
            left_out[credited.status] += 1
        else:
            so_far = dict(left_out)
            if rows and not has_warned and not all(each.exact for each in credited.group.trajectories):
                has_warned = True
                logger.warning("%s, line %d: %s", feed.path, cursor.number, MADE_UP)
            yield FollowedGroup(
                credited=credited, row_groups=rows, left_out=so_far, cursor=cursor, _feed=feed
            )


def _withhold(loaded: Sequence[str], most: int | None, credited: CreditedGroup) -> CreditedGroup:

    def too_old(versions: Sequence[str | None]) -> str | None:
        for version in versions:
            if version is not None and version not in loaded:
                return f"{STALE}: the trainer has not loaded {version!r}, which sampled some of its turns"
        return staleness(versions, loaded, most or 0)

    return credited if most is None else withhold(credited, too_old)


class _Feed:
    """Reads a record line by line; a network file system shows new data only to a newly opened file."""

    def __init__(self, place: Path, cursor_file: Path) -> None:
        self.path: Path | None = None
        self._place, self._cursor_file = place, cursor_file
        self._at: Cursor | None = None
        self._acknowledged = 0
        self._lock = Lock()
        self._known: tuple[int, int, int] | None = None
        """Identity of the file for which the read position `_at` is valid."""
        self._is_at_end = True
        self._checks: LineChecks | None = None

    def begin(self) -> None:
        try:
            self._at = Cursor.model_validate_json(self._cursor_file.read_bytes())
            self._acknowledged = self._at.offset
        except FileNotFoundError as error:
            if not self._cursor_file.parent.is_dir():
                raise RecordError(f"no folder for the cursor file {self._cursor_file}") from error
        except OSError as error:
            raise RecordError(f"cannot read {self._cursor_file}: {error.strerror}") from error
        except ValidationError as error:
            raise RecordError(
                f"{self._cursor_file} is not a cursor file: {error.errors()[0]['msg']}"
            ) from error
        if self._at is None and self._find() is None:
            logger.warning("no record at %s yet: waiting for it", self._place)

    def acknowledge(self, cursor: Cursor) -> None:
        with self._lock:
            if cursor.offset > self._acknowledged:
                write_private(self._cursor_file, cursor.model_dump_json().encode() + b"\n", on_disk=True)
                self._acknowledged = cursor.offset

    def next_group(
        self, view: str | None, divisor: Divisor, withhold: Callable[[CreditedGroup], CreditedGroup]
    ) -> tuple[CreditedGroup, tuple[Columns, ...], Cursor] | None:
        while True:
            line, path = self._line(), self.path
            # Read twice: while a resumed run cuts off a torn line, one read may return parts of two lines.
            if line is None or line != self._line() or path is None:
                return None
            sha, at = hashlib.sha256(line).hexdigest(), self._at
            record, number, start = (sha, 0, 0) if at is None else (at.record, at.number, at.offset)
            if self._checks is None:
                self._checks = LineChecks(path)
                with path.open("rb") as file:
                    for before, former in enumerate(islice(file, number), start=1):
                        self._checks.is_new(former, before)
            is_new, end = self._checks.is_new(line, number + 1), start + len(line)
            self._at = at = Cursor(record=record, number=number + 1, start=start, offset=end, line=sha)
            if is_new:
                break
        credited = withhold(decode_group(line, path, at.number))
        try:
            rows = columns_in(view, credited, divisor) if view and credited.status == "ok" else []
        except (WireError, CreditError, ValueError) as error:
            raise RecordError(f"{path}, line {at.number}: {error}") from error
        return credited, tuple(rows), at

    def _line(self) -> bytes | None:
        line, at, path = b"", self._at, self._find()
        begin = 0 if at is None else at.offset
        difference = "is not there"
        try:
            if path is not None:
                with path.open("rb", buffering=1 << 20) as file:
                    status = os.fstat(file.fileno())
                    known = (status.st_ino, status.st_size, status.st_mtime_ns)
                    is_same, self._known = known == self._known, known
                    if is_same and self._is_at_end:
                        return None
                    file.seek(begin)
                    line = file.readline()
                    # Checked after the line was read, so that the line is of the same record.
                    difference = None if at is None or is_same else _difference(file, at)
                self._is_at_end = not _is_whole(line)
                if self._is_at_end and line.endswith(b"\n"):
                    logger.warning(
                        "%s: zeros in the line at byte %d; waiting for the rest of it", path, begin
                    )
        except FileNotFoundError:
            pass
        except OSError as error:
            raise RecordError(f"cannot read {path}: {error.strerror}") from error
        if at is not None and difference is not None:
            raise RecordError(
                f"{path or self._place} {difference}, and {self._cursor_file} is of record {at.record[:12]}, "
                f"followed to its line {at.number}, byte {at.offset}: follow the file that has it (--fresh "
                f"renames a run's folder to NAME.1, .2, …), or begin anew with another cursor file"
            )
        return line if _is_whole(line) else None

    def _find(self) -> Path | None:
        try:
            self.path = self.path or record_at(self._place).absolute()
        except RecordError:
            return None
        return self.path


def _is_whole(line: bytes) -> bool:
    """Whether a line is complete; a network file system may show zeros first."""
    return line.endswith(b"\n") and b"\0" not in line


def _difference(file: BinaryIO, at: Cursor) -> str | None:
    file.seek(0)
    record = hashlib.sha256(file.readline()).hexdigest()
    file.seek(at.start)
    line = hashlib.sha256(file.read(at.offset - at.start)).hexdigest()
    if (size := os.fstat(file.fileno()).st_size) < at.offset:
        return f"has {size} bytes"
    if record != at.record:
        return f"is record {record[:12]}"
    return None if line == at.line else f"has another line {at.number}"
