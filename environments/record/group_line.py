"""Encoding of a group as one line of the record, and back."""

import logging
import math
import reprlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import orjson
from pydantic import ValidationError

from environments.record import schema
from environments.trajectory import CreditedGroup, Failure, Trajectory, TrajectoryGroup
from tools.errors import RecordError

_HEAD: dict[str, type] = {
    "item_id": str,
    "epoch": int,
    "fingerprint": str,
    "origin": dict,
    "item_hash": str,
    "estimator_params": dict,
}
_STATUSES = ("ok", "no_credit", "alone", "failed")
_COLUMNS = b',"tokens":'
_ORIGIN = b',"origin":{'
_CRC, _CRC_BYTES = b',"crc32":"', len(b',"crc32":"01234567"}\n')
_PLAIN = frozenset({int, str, bool, type(None)})
_MALFORMED = (ValidationError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
_REASON_CHARS = 500
_WITHOUT_A_LOOK = schema.COPIED.union(schema.LOGPROBS)
logger = logging.getLogger(__name__)


def encode_group(credited: CreditedGroup) -> bytes:
    """Return a group as one line; raise RecordError if the line could not be read back."""
    try:
        fields = schema.to_fields(credited)
        own = {name: value for name, value in fields.items() if name not in _WITHOUT_A_LOOK}
        if (path := _not_finite(own) or _no_logprob(fields)) is not None:
            raise RecordError(f"{'.'.join(map(str, path))} is not a finite number")
        line = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
        # Token rows are typed. Other fields that could not be read back must not get into the file.
        read = {name: fields[name] for name in schema.READ_BESIDE_ROWS if name in fields}
        schema.read(orjson.loads(orjson.dumps(read)), rows=False)
    except _MALFORMED as error:
        raise RecordError(_first_line(error)) from error
    return line


def with_origin(line: bytes, origin: Mapping[str, str]) -> bytes:
    return line[: -len(b"}\n")] + b',"origin":' + orjson.dumps(dict(origin)) + b"}\n"


def with_crc(line: bytes) -> bytes:
    content = line[: -len(b"}\n")]
    return b'%s%s%08x"}\n' % (content, _CRC, zlib.crc32(content))


class LineChecks:
    """Checks the lines of a record, in order, for damage and repetitions."""

    def __init__(self, path: Path) -> None:
        self.has_crc: bool | None = None
        """Whether the first line has a CRC-32, as all must then; None before it."""
        self._path = path
        self._first = dict[tuple[int, int], int]()

    def is_new(self, line: bytes, number: int) -> bool:
        """Check the next line for damage; return False if it repeats an earlier one."""
        has_crc = line[-_CRC_BYTES:].startswith(_CRC)
        if self.has_crc is None:
            self.has_crc = has_crc
            if not has_crc:
                _warn_once(
                    self._path, "its lines have no CRC32, so damage shows only where a line cannot be read"
                )
        if has_crc != self.has_crc:
            is_, first = ("a", "none") if has_crc else ("no", "one")
            raise RecordError(
                f"{self._path}, line {number} ends with {is_} CRC32, and line 1 with {first}: one of them is "
                "damaged, or was written by something else"
            )
        crc = zlib.crc32(memoryview(line)[: -_CRC_BYTES if has_crc else None])
        if has_crc and not line.endswith(b'%08x"}\n' % crc):
            raise RecordError(
                f"{self._path}, line {number} is damaged: its bytes have another CRC32 than it says; if it "
                "was edited, remove crc32 from every line"
            )
        first = self._first.setdefault((hash(line[: line.find(_COLUMNS)]), crc), number)
        if first != number:
            _warn_once(self._path, "lines that are equal to an earlier one are left out")
        return first == number


@cache
def _warn_once(path: Path, text: str) -> None:
    logger.warning("%s: %s", path, text)


def decode_group(line: bytes, path: Path, number: int, *, rows: bool = True) -> CreditedGroup:
    fields = parse_line(line, path, number)
    try:
        return schema.read(fields, rows=rows)
    except _MALFORMED as error:
        raise _not_a_line(path, number, _first_line(error)) from error


def parse_line(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        loaded: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise RecordError(f"{path}, line {number}: not JSON ({error})") from error
    fields = _of_schema(loaded, path, number)
    for name, lists in (("trajectories", ("rows", "prompt", "turns", "advantages")), ("failures", ())):
        entries: Any = fields.get(name)
        if not isinstance(entries, list) or not all(_has_lists(each, lists) for each in cast("Any", entries)):
            raise _not_a_line(path, number, name)
    return fields


def parse_head(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """Return the fields that identify a line's group, or all fields of a failed group."""
    try:
        fields: Any = orjson.loads(line[: line.index(_COLUMNS)] + b"}")
        if (origin := line.rfind(_ORIGIN)) >= 0:
            fields |= orjson.loads(b"{" + line[origin + 1 :])
    except (ValueError, TypeError):  # the fields stand elsewhere, or another program wrote the line
        return parse_line(line, path, number)
    fields = _of_schema(fields, path, number)
    return parse_line(line, path, number) if fields.get("status") == "failed" else fields


def as_failed(credited: CreditedGroup, error: RecordError) -> CreditedGroup:
    """Return the group as a failed one, without the siblings that JSON cannot hold."""
    group = credited.group
    kept: list[Trajectory] = []
    lost: list[Failure] = []
    for index, each in enumerate(group.trajectories):
        alone = TrajectoryGroup(trajectories=(each,))
        advantages = ((0.0,) * len(each.turns),)
        problem = _refusal(CreditedGroup(group=alone, advantages=advantages, policy="", estimator=""))
        if problem is None:
            kept.append(each)
        else:
            lost.append(_as_failure(each, index, problem))
    failed = replace(
        credited,
        group=replace(group, trajectories=tuple(kept), failures=(*group.failures, *lost)),
        advantages=tuple((0.0,) * len(each.turns) for each in kept),
        status="failed",
        reason=f"cannot be recorded: {_text(error)}",
        turns_without_peer=0,
    )
    if _refusal(failed) is None:
        return failed
    # The group itself has a wrong value.
    bare = TrajectoryGroup(
        group_id=_text(group.group_id),
        env=_text(group.env),
        item_id=_text(group.item_id),
        epoch=group.epoch,
        item_hash=group.item_hash,
        fingerprint=group.fingerprint,
        trajectories=(),
        failures=tuple(_as_failure(each, index, error) for index, each in enumerate(group.trajectories)),
    )
    policy, estimator = _text(credited.policy), _text(credited.estimator)
    return replace(failed, group=bare, advantages=(), policy=policy, estimator=estimator, estimator_params={})


def _refusal(credited: CreditedGroup) -> RecordError | None:
    try:
        encode_group(credited)
    except RecordError as error:
        return error
    return None


def _as_failure(trajectory: Trajectory, index: int, problem: RecordError) -> Failure:
    return Failure(
        sibling=trajectory.sibling if trajectory.sibling in range(2**31) else index,
        stop_reason=None,
        error=f"RecordError: cannot be recorded: {_text(problem)}",
        traceback="",
        turns=len(trajectory.turns),
        error_class="RecordError",
    )


def _text(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()[:_REASON_CHARS]


def _of_schema(fields: Any, path: Path, number: int) -> dict[str, Any]:
    known = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}
    if known.get("schema") != schema.SCHEMA:
        raise RecordError(
            f"{path}, line {number}: not a {schema.SCHEMA} line; this file was written by something else"
        )
    wrong = [name for name, expected in _HEAD.items() if not isinstance(known.get(name), expected | None)]
    wrong += ["status"] if known.get("status") not in _STATUSES else []
    facts = cast("dict[str, Any]", known.get("origin") or {})
    wrong += ["origin"] if not wrong and not {str}.issuperset(map(type, facts.values())) else []
    for name in wrong:
        raise _not_a_line(path, number, f"{name}: {reprlib.repr(known.get(name))}")
    return known


def _not_a_line(path: Path, number: int, problem: str) -> RecordError:
    return RecordError(f"{path}, line {number}: not a {schema.SCHEMA} line: {problem}")


def _has_lists(value: object, names: Sequence[str]) -> bool:
    if not isinstance(value, dict):
        return False
    fields = cast("dict[str, Any]", value)
    has_lists = all(isinstance(fields.get(name), list) for name in names)
    return has_lists and isinstance(fields.get("rewards"), dict | None)


def _not_finite(value: object) -> tuple[object, ...] | None:
    """Return the path to the first NaN or infinity, which JSON would write as null."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ()
    entries: Iterable[tuple[object, object]]
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        if _PLAIN.issuperset(map(type, fields.values())):
            return None  # a fast path: most messages are such
        entries = fields.items()
    elif isinstance(value, list):
        values = cast("list[float]", value)
        kinds = set(map(type, values))
        if kinds <= _PLAIN or (kinds == {float} and all(map(math.isfinite, values))):
            return None
        entries = enumerate(values)
    else:
        return None
    for name, each in entries:
        if type(each) not in _PLAIN and (found := _not_finite(each)) is not None:
            return name, *found
    return None


def _no_logprob(fields: Mapping[str, Any]) -> tuple[object, ...] | None:
    for name in schema.LOGPROBS:
        rows: list[list[float] | None] = fields.get(name) or []
        for row, values in enumerate(rows):
            # A sum is not finite if one of its values is not.
            if values is not None and not math.isfinite(sum(values)):
                return next(
                    ((name, row, at) for at, each in enumerate(values) if not math.isfinite(each)), None
                )
    return None


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    text = str(error) if type(error) in (ValueError, orjson.JSONEncodeError) else ""
    return text or f"{type(error).__name__}: {error}"
