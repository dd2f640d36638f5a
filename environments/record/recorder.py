"""The rollout JSONL: one group a line, on disk when the group ends, resumable, read back as equal values."""

import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from environments.trajectory import CreditedGroup, Failure, TokenRow, Trajectory, TrajectoryGroup
from environments.wire.views import list_scores
from tools.errors import RecordError

SCHEMA = "turnwise.group/1"
GroupKey = tuple[str, int]
"""`(item_id, epoch)`: names a group within a run."""


class GroupLine(BaseModel):
    """What of a line is needed to read a group back; the other columns are for Atropos' tools."""

    model_config = ConfigDict(extra="ignore")

    schema_: Literal["turnwise.group/1"]
    group_id: str
    env: str
    item_id: str
    epoch: int
    status: Literal["ok", "no_credit", "failed"]
    reason: str | None
    policy: str
    estimator: str
    estimator_params: dict[str, Any]
    tokens: list[list[int]]
    inference_logprobs: list[list[float]] | None
    row_logprobs: list[list[float] | None] | None = None
    trajectories: list[dict[str, Any]]
    failures: list[Failure]


class Recorder:
    """Appends groups to a JSONL file that one process at a time may write."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        """Open the file, locked; read which groups it already holds; cut off a torn last line.

        Raises:
            RecordError: not writable, in use by another process, or a line is malformed.
        """
        self.path = path
        self.finished: set[GroupKey] = set()
        """Groups that need not run again; a failed group is not among them."""
        self._failed_before: set[GroupKey] = set()
        self.torn_bytes = 0
        """Length of the unfinished last line that was dropped."""
        self.origin: Mapping[str, str] | None = None
        """What kind of groups the file holds, see `origin`; `None` when it holds none that is finished."""
        self.written = 0
        # Threads append: a line that failed must not be cut off behind another's back.
        self._one_at_a_time = Lock()
        self._fd = _open_locked(path, fresh=fresh)
        try:
            self._take_up()
        except BaseException:
            os.close(self._fd)
            raise

    def holds(self, item_id: str, epoch: int) -> bool:
        """Whether this group is finished and need not run again."""
        return (item_id, epoch) in self.finished

    def failed_before(self, item_id: str, epoch: int) -> bool:
        """Whether this group was in the file from the start, and no try of it had finished."""
        return (item_id, epoch) in self._failed_before

    def append(self, credited: CreditedGroup) -> None:
        """Write one group and wait until it is on disk.

        Raises:
            RecordError: the disk is full or gone; a half-written line is cut off again.
        """
        try:
            line = encode_group(credited)
        except (TypeError, ValueError) as error:
            raise RecordError(f"item {credited.group.item_id!r} cannot be recorded: {error}") from error
        with self._one_at_a_time:
            self._write(line)
        self.written += 1
        if credited.status != "failed":
            self.finished.add((credited.group.item_id, credited.group.epoch))

    def close(self) -> None:
        """Release the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        end = os.lseek(self._fd, 0, os.SEEK_END)
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, end)
            raise RecordError(
                f"cannot write {self.path}: {error.strerror}; the groups before it are safe"
            ) from error

    def _take_up(self) -> None:
        whole = 0
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    break
                fields = _parse(line, self.path, number)
                key = str(fields.get("item_id")), int(fields.get("epoch") or 0)
                if fields.get("status") == "failed":
                    self._failed_before.add(key)
                else:
                    self.origin = self.origin or _origin(fields)
                    self.finished.add(key)
                whole += len(line)
        self._failed_before -= self.finished
        self.torn_bytes = os.fstat(self._fd).st_size - whole
        os.ftruncate(self._fd, whole)


def origin(
    env: str, policy: str, estimator: str, params: Mapping[str, Any], group_size: int
) -> dict[str, str]:
    """What groups of one file have in common, as text to compare and to show."""
    return {
        "env": env,
        "policy": policy,
        "estimator": estimator,
        "estimator_params": orjson.dumps(dict(params), option=orjson.OPT_SORT_KEYS).decode(),
        "group_size": str(group_size),
    }


def encode_group(credited: CreditedGroup) -> bytes:
    """A group as one line, ending in a newline."""
    group = credited.group
    columns = list_scores(credited)
    if columns["inference_logprobs"] is None:
        columns["row_logprobs"] = [
            None if row.logprobs is None else list(row.logprobs) for t in group.trajectories for row in t.rows
        ]
    line = {
        "schema": SCHEMA,
        "group_id": group.group_id,
        "env": group.env,
        "item_id": group.item_id,
        "epoch": group.epoch,
        "status": credited.status,
        "reason": credited.reason,
        "policy": credited.policy,
        "estimator": credited.estimator,
        "estimator_params": dict(credited.estimator_params),
        **columns,
        "trajectories": _trajectories(credited),
        "failures": _FAILURES.dump_python(group.failures, mode="json"),
    }
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def read_groups(path: Path) -> Iterator[CreditedGroup]:
    """The groups of a record, in the order they ended.

    Raises:
        RecordError: unreadable, or a line is malformed (file and line number are named).
    """
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                yield decode_group(line, path, number)
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error


def decode_group(line: bytes, path: Path, number: int) -> CreditedGroup:
    """One line as the value it was written from."""
    fields = _parse(line, path, number)
    try:
        read = GroupLine.model_validate({**fields, "schema_": fields["schema"]})
        trajectories, advantages = _restore(read)
    except (ValidationError, LookupError, TypeError) as error:
        raise RecordError(f"{path}, line {number}: not a {SCHEMA} line: {_first_line(error)}") from error
    return CreditedGroup(
        group=TrajectoryGroup(
            group_id=read.group_id,
            env=read.env,
            item_id=read.item_id,
            epoch=read.epoch,
            trajectories=trajectories,
            failures=tuple(read.failures),
        ),
        advantages=advantages,
        policy=read.policy,
        estimator=read.estimator,
        estimator_params=read.estimator_params,
        status=read.status,
        reason=read.reason,
    )


_TRAJECTORY = TypeAdapter(Trajectory)
_FAILURES = TypeAdapter(tuple[Failure, ...])


def _trajectories(credited: CreditedGroup) -> list[dict[str, Any]]:
    """The trajectories; their token rows are kept once, in the columns, and named here by position."""
    dumped: list[dict[str, Any]] = []
    first = 0
    for trajectory, advantages in zip(credited.group.trajectories, credited.advantages, strict=True):
        fields = _TRAJECTORY.dump_python(replace(trajectory, rows=()), mode="json")
        fields["rows"] = list(range(first, first + len(trajectory.rows)))
        fields["advantages"] = list(advantages)
        first += len(trajectory.rows)
        dumped.append(fields)
    return dumped


def _restore(read: GroupLine) -> tuple[tuple[Trajectory, ...], tuple[tuple[float, ...], ...]]:
    logprobs = read.inference_logprobs or read.row_logprobs or [None] * len(read.tokens)
    rows = [
        TokenRow(token_ids=tuple(ids), logprobs=None if values is None else tuple(values))
        for ids, values in zip(read.tokens, logprobs, strict=True)
    ]
    trajectories: list[Trajectory] = []
    advantages: list[tuple[float, ...]] = []
    for fields in read.trajectories:
        bare = _TRAJECTORY.validate_python({**fields, "rows": ()})
        positions: list[int] = fields["rows"]
        trajectories.append(replace(bare, rows=tuple(rows[position] for position in positions)))
        advantages.append(tuple(float(value) for value in fields["advantages"]))
    return tuple(trajectories), tuple(advantages)


def _open_locked(path: Path, *, fresh: bool) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RecordError(f"cannot write {path}: not a regular file, so it could not be resumed")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if fresh:
            os.ftruncate(fd, 0)
    except BlockingIOError:
        os.close(fd)
        raise RecordError(
            f"{path} is being written by another process; choose another path or wait"
        ) from None
    return fd


def _origin(fields: dict[str, Any]) -> dict[str, str]:
    return origin(
        str(fields.get("env")),
        str(fields.get("policy")),
        str(fields.get("estimator")),
        fields.get("estimator_params") or {},
        len(fields.get("trajectories") or ()) + len(fields.get("failures") or ()),
    )


def _parse(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise RecordError(f"{path}, line {number}: not JSON ({error})") from error
    if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:  # pyright: ignore[reportUnknownMemberType]  # any JSON may stand here
        raise RecordError(
            f"{path}, line {number}: not a {SCHEMA} line; this file was written by something else"
        )
    return fields  # pyright: ignore[reportUnknownVariableType]  # checked field by field where it is used


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return f"{type(error).__name__}: {error}"
