"""Log and summary of a run, and the list of runs."""

import fcntl
import io
import json
import os
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console

from environments.record.origin import GroupKey
from environments.record.private_file import private, read_object, write_private
from environments.record.recorder import Record, groups_of, read_contents
from environments.record.run_folder import RunFolder, Shard, missing_shards, run_folder, shard_records
from environments.trajectory import CreditedGroup
from tools.errors import RecordError
from tools.plain_text import printable, without_credentials

MOST_LOG_BYTES = 1_000_000
"""Log bytes per run; of earlier runs' log, the last half of this is kept."""
MOMENT = "%Y-%m-%d %H:%M:%S UTC"
SCHEMA = "turnwise.run/1"
_MOST_SUMMARY_BYTES = 64 * 1024 * 1024


class RunLog:
    """Buffers lines until `open`; errors are ignored."""

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._fd = -1
        self._left = MOST_LOG_BYTES
        self._one_at_a_time = Lock()  # the watchdog's thread logs too

    def add(self, text: str) -> None:
        with self._one_at_a_time:
            data = f"{without_credentials(text).rstrip()}\n".encode("utf-8", "backslashreplace")
            if self._left <= 0:
                return
            self._left -= len(data)
            if self._left <= 0:
                data = b"(no more is kept of what this run says)\n"
            if self._fd < 0:
                self._waiting.append(data.decode())
            else:
                with suppress(OSError):  # a full disk
                    os.write(self._fd, data)

    def add_printed(self, show: Callable[[Console], None]) -> None:
        shown = io.StringIO()
        show(Console(file=shown, width=120, force_terminal=False))
        self.add(shown.getvalue())

    def open(self, path: Path, *, title: str) -> None:
        """Write to a file from now on, after a line with the date, and lock it for `is_running`."""
        with suppress(OSError, RecordError):
            if not path.is_symlink() and path.is_file() and path.stat().st_size > MOST_LOG_BYTES:
                with path.open("rb") as file:
                    file.seek(-MOST_LOG_BYTES // 2, os.SEEK_END)
                    _, _, kept = file.read().partition(b"\n")
                write_private(path, b"(what was said earlier is cut off)\n" + kept)
            self._fd = private(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        waiting, self._waiting = self._waiting, []
        self.add("\n".join([f"== {moment()} · {title}", *(line.rstrip("\n") for line in waiting)]))

    def close(self) -> None:
        with self._one_at_a_time:
            fd, self._fd, self._left = self._fd, -1, 0
            if fd >= 0:
                os.close(fd)


def is_running(log: Path) -> bool:
    try:
        fd = os.open(log, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(fd)
    return False


def moment() -> str:
    return datetime.now(UTC).strftime(MOMENT)


def write_summary(path: Path, fields: Mapping[str, Any]) -> None:
    text = json.dumps({"schema": SCHEMA, **fields}, indent=2, ensure_ascii=False, allow_nan=False)
    write_private(path, text.encode("utf-8", "backslashreplace") + b"\n")


def read_summary(path: Path) -> dict[str, Any] | None:
    fields = read_object(path, _MOST_SUMMARY_BYTES)
    return fields if fields.get("schema") == SCHEMA else None


def unique_groups(
    record: Record, finished: Container[GroupKey], *, rows: bool = True
) -> Iterator[CreditedGroup]:
    """Yield the groups of a record, without failures of groups that were repeated.

    `finished` are the groups that succeeded in the end. Raises RecordError if the record is unreadable or
    a line is malformed.
    """
    return filter(CountedOnce(finished), groups_of(record, rows=rows))


class CountedOnce:
    def __init__(self, finished: Container[GroupKey]) -> None:
        self._finished = finished
        self._failed: set[GroupKey] = set()

    def __call__(self, credited: CreditedGroup) -> bool:
        key = credited.group.item_id, credited.group.epoch
        if credited.status != "failed":
            return True
        counts = key not in self._finished and key not in self._failed
        self._failed.add(key)
        return counts

    def is_outdated_by(self, credited: CreditedGroup) -> bool:
        """Whether a failed group that counted was done again, and `finished` is older than that."""
        key = credited.group.item_id, credited.group.epoch
        return credited.status != "failed" and key in self._failed and key not in self._finished


_DEPTH = 4
_LONGEST_TEXT = 200

_Text = Annotated[str, AfterValidator(lambda text: printable(text[:_LONGEST_TEXT], "?"))]
_Number = Annotated[float, Field(allow_inf_nan=False)]


class _Covered(BaseModel):
    groups: int = 0
    bytes: int = 0


class _SummaryFields(BaseModel):
    model_config = ConfigDict(strict=True)

    env: _Text | None = None
    state: str = "unknown"
    started: _Text | None = None
    policy: _Text | None = None
    fingerprint: _Text | None = None
    experiments: int = 1
    planned: int | None = None
    done: int | None = None
    failed: int | None = None
    score: _Number | None = None
    pass_at_1: _Number | None = Field(default=None, alias="pass@1")
    of: _Covered = _Covered()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    path: str
    env: str
    name: str
    started: str
    """`2026-11-22 19:34:12 UTC`; without a summary, the last change of the record."""
    state: str
    """`finished` (every planned group is recorded, failed ones too), `stopped`, `broke` (an error ended
    it), `running`, `killed`, or `unknown`."""
    policy: str | None = None
    fingerprint: str | None = None
    planned: int | None = None
    done: int | None = None
    failed: int | None = None
    score: float | None = None
    pass_at_1: float | None = None
    note: str = ""


def list_runs(below: Path) -> list[ListedRun]:
    found = [_describe_run(RunFolder(path), below) for path in _folders(below, _DEPTH)]
    return sorted(found, key=lambda run: (run.started, run.path), reverse=True)


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    run = RunFolder(folder)
    if os.path.lexists(run.record) or os.path.lexists(run.summary):
        yield folder
    elif depth > 0:
        try:
            below = [each for each in os.scandir(folder) if each.is_dir() and each.name[0] != "."]
        except OSError:
            return
        for name in sorted(each.name for each in below):
            yield from _folders(folder / name, depth - 1)


def _describe_run(folder: RunFolder, root: Path) -> ListedRun:
    notes: list[str] = []
    size, changed = None, ""
    try:
        status = folder.record.stat()
        size, changed = status.st_size, datetime.fromtimestamp(status.st_mtime, UTC).strftime(MOMENT)
    except (OSError, ValueError, OverflowError):
        notes.append("no record.jsonl")
    values = read_summary(folder.summary)
    fields = _SummaryFields()
    try:
        fields = _SummaryFields.model_validate(values or {})
    except ValidationError:
        values = None
    if values is None:
        there = os.path.lexists(folder.summary)
        notes.append("summary.json is damaged" if there else "no summary.json")
    is_behind = values is not None and size is not None and fields.of.bytes != size
    if is_behind:
        was = "its first" if (size or 0) > fields.of.bytes else "more than are left: it had"
        notes.append(f"the score is of {was} {fields.of.groups} groups")
    if (shard := Shard.of_path(folder.record)) is not None:
        found = shard_records(folder.path.with_suffix(""))
        notes += filter(None, [missing_shards([each for each in found if each.count == shard.count])])
    if fields.experiments > 1:
        notes.append(f"groups of {fields.experiments} experiments")
    done, failed = fields.done, fields.failed
    if size is not None and (is_behind or done is None or failed is None):
        try:
            contents = read_contents(folder.record)
            done, failed = len(contents.finished), len(contents.failed - contents.finished)
        except (RecordError, ValueError, LookupError, TypeError, AttributeError):
            done = failed = None
            notes.append("record.jsonl is damaged")
    lost_some = is_behind and (done or 0) + (failed or 0) < (fields.planned or 0)
    known = ("stopped", "broke", "running", *(() if lost_some else ("finished",)))
    state = fields.state if fields.state in known else "unknown"
    *above, name = folder.path.resolve().parts
    env = fields.env or folder.path.resolve().parent.name
    of_env = run_folder(env, name).path.parent.name
    # Below the folder of the environment, such as `sweep/seed-0`, or else below `root`.
    below = [*folder.path.relative_to(root).parts[:-1]]
    if of_env in above:
        below = above[len(above) - above[::-1].index(of_env) :]
    return ListedRun(
        path=str(folder.path),
        env=env,
        name="/".join([*below, name]),
        started=fields.started or changed,
        state="killed" if state == "running" and not is_running(folder.log) else state,
        done=done,
        failed=failed,
        **fields.model_dump(include={"policy", "fingerprint", "planned", "score", "pass_at_1"}),
        note="; ".join(notes),
    )
