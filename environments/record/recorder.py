"""The rollout JSONL: one group a line, on disk when the group ends, and resumable."""

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

from environments.record.append_file import AppendFile
from environments.record.contents import Contents, GroupKey
from environments.record.entries import borne_out, entries_of, read_entries, whole_lines
from environments.record.group_line import decode_group, encode_group, facts_of, with_origin
from environments.record.index_file import Entry, IndexFile, Stamp, stamp_of
from environments.record.origin import RunOrigin, refuse_other_run
from environments.record.private_file import folder_for
from environments.record.unrecordable import failed_instead
from environments.trajectory import CreditedGroup
from tools.errors import RecordError

_INSTEAD = "choose another --out, start over with --fresh, or go on all the same with --accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    """A group as the record has it."""

    content: bytes
    """The line, with its newline; without what its fingerprint stands for, which the file says once."""
    facts: Mapping[str, Any]
    """Which group it is, see `Contents.add`."""
    credited: CreditedGroup
    """As it is in the line."""


def serialised(credited: CreditedGroup, *, fingerprint: str | None) -> GroupLine:
    """Return a group as a line, marked with a run's fingerprint unless it has its own.

    One that no line can hold becomes a failed one, with the reason.
    """
    group = credited.group
    credited = replace(credited, group=replace(group, fingerprint=group.fingerprint or fingerprint))
    try:
        content = encode_group(credited)
    except RecordError as error:
        credited = failed_instead(credited, error)
        content = encode_group(credited)
    return GroupLine(content=content, facts=facts_of(credited), credited=credited)


class Recorder:
    """Appends groups to a JSONL file that one process at a time may write."""

    def __init__(
        self, path: Path, *, fresh: bool = False, each_on_disk: bool = True, indexed: bool = True
    ) -> None:
        """Open the file, locked; find out which groups it already holds; cut off a torn last line.

        Args:
            path: the file.
            fresh: whether to empty it.
            each_on_disk: whether `append` waits for the disk; else only `wait_for_disk` does.
            indexed: whether an index is kept beside it, so that the next opening need not read all of it.

        Raises:
            RecordError: not writable, in use by another process, or a line that the index does not know is
                malformed.
        """
        self.path = path
        self.written = 0
        self._run: str | None = None
        """The fingerprint of the groups to come."""
        self._to_say: dict[str | None, Mapping[str, str]] = {}
        """What fingerprints stand for that the file does not say yet."""
        # Threads append: entries stand in the order of lines.
        self._one_at_a_time = Lock()
        self._file = AppendFile(path, fresh=fresh, each_on_disk=each_on_disk)
        self._index: IndexFile | None = None
        try:
            self._index = IndexFile(path) if indexed else None
            found: Stamp | None = stamp_of(self._file.fd)
            self._contents, self._last = self._found()
            if found != stamp_of(self._file.fd):
                found = None
            self.torn_bytes = self._file.cut_torn_line()
            """Length of the unfinished last line that was dropped."""
            self._stamp = None if found is None else stamp_of(self._file.fd)
            """Of the record as we left it; `None` once somebody else has changed it while it is open."""
            if self._index is not None and self._stamp not in (None, self._index.content.stamp):
                self._index.stamp(self._stamp)
        except BaseException:
            self.close()
            raise
        self._failed_before = self._contents.failed - self._contents.finished

    @property
    def finished(self) -> set[GroupKey]:
        """Groups that need not run again; a failed group is not among them."""
        return self._contents.finished

    @property
    def estimators(self) -> set[str]:
        """Those of the groups that were finished when the file was opened, with their parameters."""
        return self._contents.estimators

    @property
    def fingerprints(self) -> set[str | None]:
        """Those of the finished groups."""
        return self._contents.fingerprints

    def holds(self, item_id: str, epoch: int) -> bool:
        """Whether this group is finished and need not run again."""
        return (item_id, epoch) in self.finished

    def failed_before(self, item_id: str, epoch: int) -> bool:
        """Whether this group was in the file from the start, and no try of it had finished."""
        return (item_id, epoch) in self._failed_before

    def begin(
        self,
        now: RunOrigin,
        items: Iterable[tuple[str, Any]] = (),
        *,
        all_items: bool = False,
        accept: bool = False,
        instead: str = _INSTEAD,
    ) -> list[str]:
        """Make this the record of a run, whose groups are marked from here on, unless it is another's.

        Args:
            now: the run.
            items: its items, each with its id.
            all_items: whether those are all that the dataset has.
            accept: whether to go on where it is another's.
            instead: what the user can do where it is, in words.

        Returns:
            How the run that made the file's groups differs, in words, where that is accepted.

        Raises:
            OtherRunError: the file's groups are of another experiment, or their items have changed.
            RecordError: they are of the first schema.
        """
        if self._contents.old_schema is not None:
            raise RecordError(
                f"{self.path} is a record of {self._contents.old_schema}, which does not say what its groups "
                f"came from; it can be read, exported and recredited, but not continued: choose another file"
            )
        changed = self._contents.differences(now)
        changed += self._contents.changed_items(items, all_items=all_items)
        if not accept:
            refuse_other_run(str(self.path), changed, instead=instead)
        self._run = now.fingerprint
        self.explain({now.fingerprint: now.facts()})
        return changed

    def explain(self, origins: Mapping[str, Mapping[str, str]]) -> None:
        """Take in what fingerprints stand for; the first group of each says it in the file."""
        known = self._contents.origins
        self._to_say |= {each: facts for each, facts in origins.items() if each not in known}

    def append(self, credited: CreditedGroup) -> CreditedGroup:
        """Serialise one group and append its line.

        Returns:
            The group as it was written: one that no line can hold is a failed one, with the reason.

        Raises:
            RecordError: see `append_line`.
        """
        line = serialised(credited, fingerprint=self._run)
        self.append_line(line)
        return line.credited

    def append_line(self, line: GroupLine) -> None:
        """Write a group's line and, unless `each_on_disk` is off, wait until it is on disk.

        Raises:
            RecordError: the disk is full or gone, or somebody else changed the file. What was written before
                is safe, and nothing is written any more.
        """
        content = line.content
        facts: Mapping[str, Any] = line.facts
        if (origin := self._to_say.pop(facts["fingerprint"], None)) is not None:
            content = with_origin(content, origin)
            facts = {**facts, "origin": origin}
        with self._one_at_a_time:
            # A line that somebody edits meanwhile must not be vouched for by the next one.
            is_ours = self._stamp == stamp_of(self._file.fd)
            self._file.append(content)
            self._stamp = stamp_of(self._file.fd) if is_ours else None
            self.written += 1
            self._put_into_index(content, facts)
        if facts["status"] != "failed":
            self.finished.add((facts["item_id"], facts["epoch"]))

    def append_lines(self, content: bytes, *, groups: int) -> None:
        """Write lines as they are, into a record without an index.

        Raises:
            RecordError: see `append`.
        """
        self._file.append(content)
        self.written += groups

    def wait_for_disk(self) -> None:
        """Wait until every group is on disk.

        Raises:
            RecordError: the disk is full or gone.
        """
        self._file.wait_for_disk()

    def close(self) -> None:
        """Release the file."""
        if self._index is not None:
            self._index.close()
        self._file.close()

    def _found(self) -> tuple[Contents, Entry | None]:
        """What the file holds, and its last entry; the index knows all of it afterwards."""
        contents = Contents()
        known = [] if self._index is None else borne_out(self._index.content, self._file.fd)
        last = known[-1] if known else None
        for entry in known:
            contents.add(entry.facts)
        if self._index is not None:
            self._index.keep(len(known))
        start = last.end if last else 0
        new = self._file.whole_lines(start)
        for last in entries_of(new, self.path, number=len(known) + 1, start=start):
            contents.add(last.facts)
            if self._index is not None:
                self._index.append(last, None)
        return contents, last

    def _put_into_index(self, line: bytes, facts: Mapping[str, Any]) -> None:
        if self._index is None:
            return
        number, start = (1, 0) if self._last is None else (self._last.number + 1, self._last.end)
        self._last = Entry.of(line, facts, number=number, start=start)
        self._index.append(self._last, self._stamp)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_groups(path: Path, *, rows: bool = True) -> Iterator[CreditedGroup]:
    """The groups of a record, in the order they ended.

    Args:
        path: the record.
        rows: whether to read token ids and log-probabilities, most of a record; else no trajectory has rows.

    Raises:
        RecordError: unreadable, or a line is malformed (file and line number are named).
    """
    for number, line in _lines(path):
        yield decode_group(line, path, number, rows=rows)


def read_contents(path: Path) -> Contents:
    """Which groups a record holds, and what their fingerprints stand for.

    Raises:
        RecordError: unreadable, or a line is malformed.
    """
    contents = Contents()
    for entry in read_entries(path):
        contents.add(entry.facts)
    return contents


@contextmanager
def new_record(path: Path, *, doing: str) -> Generator[Recorder]:
    """A record that stands at `path` once all of it is written, and takes the place of no other.

    Raises:
        RecordError: there is a record already, or it cannot be written.
    """
    if path.exists() and path.stat().st_size:
        raise RecordError(f"{path} exists; {doing} writes a new record, choose another path")
    unfinished = path.with_name(path.name + ".part")
    with folder_for(path), Recorder(unfinished, fresh=True, each_on_disk=False, indexed=False) as recorder:
        try:
            yield recorder
            recorder.wait_for_disk()
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as lines:
            yield from enumerate(whole_lines(lines), start=1)
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error
