"""The rollout JSONL: one group a line, on disk when the group ends, and resumable."""

import logging
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

from environments.record.append_file import AppendFile, is_whole
from environments.record.artefact_file import artefacts_of, file_of, packed_artefacts
from environments.record.group_line import (
    LineChecks,
    decode_group,
    encode_group,
    failed_instead,
    parse_head,
    parse_line,
    with_crc,
    with_origin,
)
from environments.record.origin import SHARD, Contents, GroupKey, OtherRunError, RunOrigin, refuse_other_run
from environments.record.private_file import folder_for, write_private, write_whole
from environments.record.run_folder import Shard, missing_shards, records_of
from environments.rollout.items.tasks import PastGroup
from environments.trajectory import CreditedGroup
from tools.errors import RecordError

logger = logging.getLogger(__name__)
_INSTEAD = "choose another --out, start over with --fresh, or go on all the same with --accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    """A group as the record has it, and which group it is."""

    content: bytes
    """The line, with its newline; without the parts of its fingerprint, which the file has once."""
    fingerprint: str | None
    item_id: str
    epoch: int
    status: str
    group_id: str = ""
    artefacts: bytes | None = None
    """The file of its artefacts; `None`: it has none."""


def serialised(credited: CreditedGroup, *, fingerprint: str | None) -> tuple[GroupLine, CreditedGroup]:
    """Return a group as a line, marked with a run's fingerprint unless it has its own, and as it is there.

    One that no line can hold becomes a failed one, with the reason.
    """
    group = credited.group
    credited = replace(credited, group=replace(group, fingerprint=group.fingerprint or fingerprint))
    try:
        content = encode_group(credited)
    except RecordError as error:
        credited = failed_instead(credited, error)
        content = encode_group(credited)
    group = credited.group
    line = GroupLine(
        content=content,
        fingerprint=group.fingerprint,
        item_id=group.item_id,
        epoch=group.epoch,
        status=credited.status,
        group_id=group.group_id,
        artefacts=packed_artefacts(group),
    )
    return line, credited


class Recorder:
    """Appends groups to a JSONL file that one process at a time may write."""

    def __init__(self, path: Path, *, fresh: bool = False, each_on_disk: bool = True) -> None:
        """Opens the file, locked; finds out which groups it already holds; cuts off a torn last line.

        See `AppendFile`. Raises RecordError if a line is malformed, too.
        """
        self.path = path
        self.artefacts = artefacts_of(path)
        """The folder of what is kept beside it."""
        self._each_on_disk = each_on_disk
        self.written = 0
        self.fingerprint: str | None = None
        """The fingerprint of the groups to come."""
        self._to_say: dict[str | None, Mapping[str, str]] = {}
        """Parts of fingerprints that the file does not have yet."""
        self.more_facts: Callable[[], Mapping[str, str]] = dict[str, str]
        """Gives what the next line has to add to what the fingerprint stands for."""
        # Threads append, and a line that was written is counted before the next.
        self._one_at_a_time = Lock()
        _refuse_no_folder(self.artefacts)
        self._file = AppendFile(path, fresh=fresh, each_on_disk=each_on_disk)
        if fresh:  # of the groups that were there
            shutil.rmtree(self.artefacts, ignore_errors=True)
        try:
            self.contents = self._found()
            """What the file holds."""
            self.torn_bytes = self._file.cut_torn_line()
            """Length of the unfinished last line that was dropped."""
        except BaseException:
            self.close()
            raise
        self._failed_before = self.contents.failed - self.contents.finished

    @property
    def finished(self) -> set[GroupKey]:
        """Groups that need not run again; a failed group is not among them."""
        return self.contents.finished

    def holds(self, item_id: str, epoch: int) -> bool:
        """Whether this group is finished and need not run again."""
        return (item_id, epoch) in self.finished

    def failed_before(self, item_id: str, epoch: int) -> bool:
        """Whether this group was in the file from the start, and no try of it had finished."""
        return (item_id, epoch) in self._failed_before

    def tries(self, item_id: str, epoch: int) -> int:
        """How often this group of this very experiment failed by its own fault."""
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
        """Makes this the record of a run, whose groups are marked from here on, unless it is another's.

        Args:
            now: the run.
            items: its items, each with its id.
            all_items: whether those are all that the dataset has.
            accept: whether to go on where it is another's.
            instead: what the user can do where it is, in words.

        Returns how the run that made the file's groups differs, where that is accepted. Raises OtherRunError
        if they are of another experiment, or their items have changed.
        """
        for held in self.contents.shards - {now.shard}:
            was, is_ = (f"--shard {each}" if each else "a run without --shard" for each in (held, now.shard))
            raise OtherRunError(
                f"{self.path} holds groups of {was}, and this is {is_}: each has its own record"
            )
        changed = self.contents.differences(now)
        changed += self.contents.changed_items(items, all_items=all_items)
        if not accept:
            refuse_other_run(str(self.path), changed, instead=instead)
        self.fingerprint = now.fingerprint
        self.explain({now.fingerprint: now.facts()})
        return changed

    def explain(self, origins: Mapping[str, Mapping[str, str]]) -> None:
        """Take in the parts of fingerprints; the first group of each carries them in the file."""
        known = self.contents.origins
        self._to_say |= {each: facts for each, facts in origins.items() if each not in known}

    def append(self, credited: CreditedGroup) -> CreditedGroup:
        """Serialises one group and appends its line, see `append_line`.

        Returns the group as it was written: one that no line can hold is a failed one, with the reason.
        """
        line, credited = serialised(credited, fingerprint=self.fingerprint)
        self.append_line(line)
        return credited

    def append_line(self, line: GroupLine) -> None:
        """Writes a group's line and, unless `each_on_disk` is off, waits until it is on disk.

        Raises RecordError if the disk is full or gone, or somebody else changed the file, or one that
        rollouts read. What was written before is safe, and nothing is written any more.
        """
        content = line.content
        with self._one_at_a_time:
            if line.artefacts is not None:  # before the line that names them
                with folder_for(file := file_of(self.artefacts, line.group_id)):
                    write_private(file, line.artefacts, on_disk=True)
            more = self.more_facts()
            if origin := {**self._to_say.pop(line.fingerprint, {}), **more}:
                content = with_origin(content, origin)
            self._file.append(with_crc(content) if self._has_crc else content)
            self.written += 1
            self.contents.add(parse_head(line.content, self.path, 0))

    def wait_for_disk(self) -> None:
        """Wait until every group is on disk. Raises RecordError if the disk is full or gone."""
        self._file.wait_for_disk()

    def close(self) -> None:
        self._file.close()

    def _found(self) -> Contents:
        contents, checks = Contents(), LineChecks(self.path)
        for number, line in enumerate(self._file.whole_lines(), start=1):
            if checks.is_new(line, number):
                if not checks.has_crc:
                    decode_group(line, self.path, number)
                contents.add(parse_head(line, self.path, number))
        self._has_crc = checks.has_crc is not False
        return contents

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Records:
    """Several records that are read as one, in this order."""

    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return f"{self.paths[0]} and {len(self.paths) - 1} more"


Record = Path | Records
Places = str | Path | Sequence[str | Path]
"""Where users say that records are, see `records_at`."""


def paths_of(record: Record) -> tuple[Path, ...]:
    """Its files."""
    return record.paths if isinstance(record, Records) else (record,)


def records_at(places: Places) -> Record:
    """The records that a user means, as one: each place as in `record_at`, or a run that has only shards.

    Logs which shards are missing, and that groups of several experiments are among them. Raises RecordError
    if there is no record, a group that finished is in two of them, or they are shards of different counts.
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
    """The groups of a record, in the order they ended, or of several, one after the other; see `records_at`.

    Without `rows`, token ids and log-probabilities, most of a record, are not read, and no trajectory has
    rows. Raises RecordError if it is unreadable, or a line is malformed (file and line number are named).
    """
    yield from groups_of(records_at(places), rows=rows)


def groups_of(record: Record, *, rows: bool = True) -> Iterator[CreditedGroup]:
    """The same for what was found already."""
    for path, number, line in numbered_lines(record):
        yield decode_group(line, path, number, rows=rows)


def read_contents(record: Record, *, lines: int | None = None) -> Contents:
    """Which groups a record holds, and what their fingerprints stand for; of several, of no single shard.

    Of so many `lines`; `None`: of all. Raises RecordError if unreadable, or what a line says of that is
    malformed.
    """
    contents = Contents()
    for path, number, line in islice(numbered_lines(record), lines):
        contents.add(parse_head(line, path, number))
    if isinstance(record, Records):
        for each, facts in contents.origins.items():
            contents.origins[each] = {name: value for name, value in facts.items() if name != SHARD}
    return contents


def past_groups(path: Path) -> Iterator[PastGroup]:
    """What came out of the groups of a record in the order they ended, for who decides what comes next.

    Raises RecordError if unreadable, or a line is malformed.
    """
    for _, number, line in numbered_lines(path):
        fields = parse_line(line, path, number)
        rewards = [trajectory.get("rewards") for trajectory in fields["trajectories"]]
        yield PastGroup(
            item_id=fields["item_id"],
            epoch=fields["epoch"],
            status=fields["status"],
            scores=tuple(None if each is None else each.get("score") for each in rewards),
            lost=len(fields["failures"]),
        )


def numbered_lines(record: Record, *, warn: bool = False) -> Iterator[tuple[Path, int, bytes]]:
    """The lines of a record, each with its file and its number there; not a torn last one, see `is_whole`.

    A line of a group that is in an earlier one is left out. `warn` logs that a torn line is left out. Raises
    RecordError if the record is unreadable, or a line is damaged.
    """
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
    """A record that stands at `path` once all of it is written, and takes the place of no other.

    Raises RecordError if there is a record already, or it cannot be written.
    """
    _refuse_to_replace(path, doing)
    _refuse_no_folder(artefacts := artefacts_of(path))
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
                raise error.__cause__ from None  # of the record as it is called at the end
            raise


def _refuse_no_folder(artefacts: Path) -> None:
    if os.path.lexists(artefacts) and not artefacts.is_dir():
        raise RecordError(
            f"{artefacts} is no folder, and artefacts are kept there: move it, or choose another path"
        )


def _refuse_to_replace(path: Path, doing: str) -> None:
    if path.exists() and path.stat().st_size:
        raise RecordError(f"{path} exists; {doing} writes a new record, choose another path")
