"""The record: a JSONL file with one group per line, from which runs are resumed."""

import hashlib
import io
import logging
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Self
from urllib.parse import quote

from environments.record.group_line import (
    LineChecks,
    as_failed,
    decode_group,
    encode_group,
    parse_head,
    parse_line,
    with_crc,
    with_origin,
)
from environments.record.origin import SHARD, Contents, GroupKey, OtherRunError, RunOrigin, refuse_other_run
from environments.record.private_file import AppendFile, folder_for, is_whole, write_private, write_whole
from environments.record.run_folder import Shard, missing_shards, records_of
from environments.rollout.items.tasks import PastGroup
from environments.trajectory import CreditedGroup
from tools.errors import RecordError

_LARGEST_BYTES = 1 << 30
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
_UNREADABLE = (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, KeyError)
logger = logging.getLogger(__name__)
_INSTEAD = "choose another --out, start over with --fresh, or go on all the same with --accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    content: bytes
    """The line without the facts that `append_line` adds."""
    fingerprint: str | None
    group_id: str = ""
    artefacts: bytes | None = None


def serialise(credited: CreditedGroup, *, fingerprint: str | None) -> tuple[GroupLine, CreditedGroup]:
    """Return a group's line and the recorded group, which is a failed one if no line can hold it."""
    group = credited.group
    credited = replace(credited, group=replace(group, fingerprint=group.fingerprint or fingerprint))
    try:
        content = encode_group(credited)
    except RecordError as error:
        credited = as_failed(credited, error)
        content = encode_group(credited)
    group = credited.group
    named = [(each.digest or "", t.contents) for t in group.trajectories for each in t.artefacts]
    contents = {digest: contents[digest] for digest, contents in named if digest in contents}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        for digest, data in contents.items():
            packed.writestr(zipfile.ZipInfo(digest, _ZIP_TIME), data, zipfile.ZIP_DEFLATED)
    line = GroupLine(
        content=content,
        fingerprint=group.fingerprint,
        group_id=group.group_id,
        artefacts=file.getvalue() if contents else None,
    )
    return line, credited


class Recorder:
    def __init__(self, path: Path, *, fresh: bool = False, each_on_disk: bool = True) -> None:
        """Open and lock the file, index its groups, and cut off a torn last line."""
        self.path = path
        self.artefacts = artefacts_of(path)
        self.written = 0
        self.fingerprint: str | None = None
        self._new_origins: dict[str | None, Mapping[str, str]] = {}
        """Facts that the file does not have yet, by fingerprint."""
        self.more_facts: Callable[[], Mapping[str, str]] = dict[str, str]
        # Threads append; each line is counted before the next is written.
        self._lock = Lock()
        _refuse_non_folder(self.artefacts)
        self._file = AppendFile(path, fresh=fresh, each_on_disk=each_on_disk)
        if fresh:
            shutil.rmtree(self.artefacts, ignore_errors=True)
        try:
            self.contents, checks = Contents(), LineChecks(path)
            for number, line in enumerate(self._file.whole_lines(), start=1):
                if checks.is_new(line, number):
                    if not checks.has_crc:
                        decode_group(line, path, number)
                    self.contents.add(parse_head(line, path, number))
            self._has_crc = checks.has_crc is not False
            self.torn_bytes = self._file.cut_torn_line()
        except BaseException:
            self.close()
            raise
        self._failed_at_start = self.contents.failed - self.contents.finished

    @property
    def finished(self) -> set[GroupKey]:
        return self.contents.finished

    def holds(self, item_id: str, epoch: int) -> bool:
        """Whether this group is finished."""
        return (item_id, epoch) in self.finished

    def has_failed_before(self, item_id: str, epoch: int) -> bool:
        """Whether this group had failed, and not finished, when the file was opened."""
        return (item_id, epoch) in self._failed_at_start

    def tries(self, item_id: str, epoch: int) -> int:
        return self.contents.tries[self.fingerprint, (item_id, epoch)]

    def begin(
        self,
        now: RunOrigin,
        items: Iterable[tuple[str, Any]] = (),
        *,
        all_items: bool = False,
        accept: bool = False,
        instead: str = _INSTEAD,
    ) -> list[str]:
        """Make this the record of a run, and return how the run differs from the file's.

        Raises:
            OtherRunError: if there is a difference that `accept` does not allow, or another shard.
        """
        for held in self.contents.shards - {now.shard}:
            was, is_ = (f"--shard {each}" if each else "a run without --shard" for each in (held, now.shard))
            raise OtherRunError(
                f"{self.path} holds groups of {was}, and this is {is_}: each has its own record"
            )
        changed = self.contents.differences(now)
        changed += self.contents.find_changed_items(items, all_items=all_items)
        if not accept:
            refuse_other_run(str(self.path), changed, instead=instead)
        self.fingerprint = now.fingerprint
        self.explain({now.fingerprint: now.facts()})
        return changed

    def explain(self, origins: Mapping[str, Mapping[str, str]]) -> None:
        known = self.contents.origins
        self._new_origins |= {each: facts for each, facts in origins.items() if each not in known}

    def append(self, credited: CreditedGroup) -> CreditedGroup:
        line, credited = serialise(credited, fingerprint=self.fingerprint)
        self.append_line(line)
        return credited

    def append_line(self, line: GroupLine) -> None:
        content = line.content
        with self._lock:
            if line.artefacts is not None:  # before the line that refers to them
                with folder_for(file := _file_of(self.artefacts, line.group_id)):
                    write_private(file, line.artefacts, on_disk=True)
            more = self.more_facts()
            if origin := {**self._new_origins.pop(line.fingerprint, {}), **more}:
                content = with_origin(content, origin)
            self._file.append(with_crc(content) if self._has_crc else content)
            self.written += 1
            self.contents.add(parse_head(line.content, self.path, 0))

    def wait_for_disk(self) -> None:
        self._file.wait_for_disk()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Records:
    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return f"{self.paths[0]} and {len(self.paths) - 1} more"


Record = Path | Records
Places = str | Path | Sequence[str | Path]
"""Paths or names of records, see `records_at`."""


def paths_of(record: Record) -> tuple[Path, ...]:
    return record.paths if isinstance(record, Records) else (record,)


def records_at(places: Places) -> Record:
    """Resolve what a user gave into one record; log missing shards and mixed experiments.

    Raises:
        RecordError: if there is no record, or the parts do not fit together.
    """
    each = [places] if isinstance(places, str | Path) else places
    paths = tuple(path for place in each for path in records_of(Path(place)))
    if not paths:
        raise RecordError("no record given")
    groups, shards, empty = dict[GroupKey, Path](), dict[Shard, Path](), 0
    experiments = set[str | None]()
    for path in paths:
        contents = read_contents(path, lines=None if len(paths) > 1 else int(path.is_file()))
        held = {Shard.parse(each or "") for each in contents.shards}
        held = held or {Shard.of_path(path)}
        empty += held == {None} and not contents.shards
        shards |= {each: path for each in held if each is not None}
        if shards and (a := min(shards)).count != (b := max(shards)).count:
            raise RecordError(f"{shards[a]} is shard {a}, and {shards[b]} is {b}: give shards of one run")
        if twice := contents.finished & groups.keys():
            item, epoch = key = min(twice)
            raise RecordError(f"item {item!r}, epoch {epoch}, is in {groups[key]} and in {path}")
        groups |= dict.fromkeys(contents.finished, path)
        experiments |= contents.fingerprints
    record = paths[0] if len(paths) == 1 else Records(paths)
    if missing := missing_shards(shards, known=empty):
        logger.warning("%s: %s", record, missing)
    if len(paths) > 1 and len(experiments) > 1:
        logger.warning("%s: groups of %d experiments", record, len(experiments))
    return record


def read_groups(places: Places, *, rows: bool = True) -> Iterator[CreditedGroup]:
    """Yield the groups of one or several records, in the order they ended; see `records_at`.

    Without `rows`, token ids and log-probabilities (most of a record) are not read.

    Raises:
        RecordError: if a record is unreadable, or a line is malformed (names file and line).
    """
    yield from groups_of(records_at(places), rows=rows)


def groups_of(record: Record, *, rows: bool = True) -> Iterator[CreditedGroup]:
    for path, number, line in iterate_lines(record):
        yield decode_group(line, path, number, rows=rows)


def read_contents(record: Record, *, lines: int | None = None) -> Contents:
    contents = Contents()
    for path, number, line in islice(iterate_lines(record), lines):
        contents.add(parse_head(line, path, number))
    if isinstance(record, Records):
        for each, facts in contents.origins.items():
            contents.origins[each] = {name: value for name, value in facts.items() if name != SHARD}
    return contents


def past_groups(path: Path) -> Iterator[PastGroup]:
    for _, number, line in iterate_lines(path):
        fields = parse_line(line, path, number)
        rewards = [trajectory.get("rewards") for trajectory in fields["trajectories"]]
        yield PastGroup(
            item_id=fields["item_id"],
            epoch=fields["epoch"],
            status=fields["status"],
            scores=tuple(None if each is None else each.get("score") for each in rewards),
            lost=len(fields["failures"]),
        )


def iterate_lines(record: Record, *, warn: bool = False) -> Iterator[tuple[Path, int, bytes]]:
    """Yield (file, line number, line) without repetitions and without a torn last line."""
    for path in paths_of(record):
        try:
            checks = LineChecks(path)
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if is_whole(line):
                        line = line.removesuffix(b"\n") + b"\n"
                        if checks.is_new(line, number):
                            yield path, number, line
                    elif warn:
                        logger.warning(
                            "%s: line %d is cut short, as by a killed run, and left out", path, number
                        )
        except OSError as error:
            raise RecordError(f"cannot read {path}: {error.strerror}") from error


@contextmanager
def new_record(path: Path, *, doing: str) -> Generator[Recorder]:
    """Yield a recorder; its record appears at `path` once it is complete, and replaces no other."""
    _refuse_to_replace(path, doing)
    _refuse_non_folder(artefacts := artefacts_of(path))
    has_others = artefacts.exists()
    with folder_for(path), write_whole(path) as unfinished:
        try:
            with Recorder(unfinished, fresh=True, each_on_disk=False) as recorder:
                recorder.artefacts = artefacts
                yield recorder
                recorder.wait_for_disk()
                _refuse_to_replace(path, doing)
        except BaseException as error:
            if not has_others:
                shutil.rmtree(artefacts, ignore_errors=True)
            if isinstance(error, RecordError) and isinstance(error.__cause__, OSError):
                raise error.__cause__ from None  # `write_whole` names the final path
            raise


def _refuse_non_folder(artefacts: Path) -> None:
    if os.path.lexists(artefacts) and not artefacts.is_dir():
        raise RecordError(
            f"{artefacts} is not a folder, and artefacts are kept there: move it, or choose another path"
        )


def _refuse_to_replace(path: Path, doing: str) -> None:
    if path.exists() and path.stat().st_size:
        raise RecordError(f"{path} exists; {doing} writes a new record, choose another path")


# --- artefacts -----------------------------------------------------------------------------------------


def artefacts_of(record: Path) -> Path:
    return record.parent / f"{record.name}.artefacts"


def _file_of(folder: Path, group_id: str) -> Path:
    return folder / f"{quote(group_id, safe='')}.zip"


def with_contents(credited: CreditedGroup, record: Path, *, max_bytes: int = _LARGEST_BYTES) -> CreditedGroup:
    group = credited.group
    wanted = {each.digest: each.size for t in group.trajectories for each in t.artefacts if each.digest}
    path = _file_of(artefacts_of(record), group.group_id)
    if not wanted or not path.is_file():  # opening a FIFO would block
        return credited
    known: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(path) as packed:
            left = _LARGEST_BYTES
            for digest, size in wanted.items():
                with suppress(*_UNREADABLE):
                    member = packed.getinfo(digest)
                    # Other compressions are unpacked without a bound on memory.
                    is_ours = member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                    fits = member.file_size <= min(size, max_bytes, left)
                    data = packed.read(member) if is_ours and fits else b""
                    if hashlib.sha256(data).hexdigest() == digest:
                        known[digest] = data
                        left -= len(data)
    except _UNREADABLE:
        return credited
    trajectories = [
        replace(t, contents={a.digest: known[a.digest] for a in t.artefacts if a.digest in known})
        for t in group.trajectories
    ]
    return replace(credited, group=replace(group, trajectories=tuple(trajectories)))
