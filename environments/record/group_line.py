"""One group as one line of the rollout JSONL, and the line as an equal group again."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import orjson
from pydantic import ValidationError

from environments.record import schema_1, schema_2
from environments.record.line_fields import LineFields
from environments.trajectory import CreditedGroup
from tools.errors import RecordError

SCHEMA = schema_2.SCHEMA
"""What is written."""
_READERS = {schema_1.SCHEMA: schema_1, schema_2.SCHEMA: schema_2}
_PLAIN = frozenset({int, str, bool, type(None)})
_MALFORMED = (ValidationError, ValueError, LookupError, TypeError, AttributeError)


def encode_group(credited: CreditedGroup) -> bytes:
    """A group as one line, ending in a newline.

    Raises:
        RecordError: the line could not be read back; it names the value that JSON cannot hold.
    """
    try:
        fields = schema_2.written(credited)
        if (path := _not_finite(fields)) is not None:
            raise RecordError(f"{'.'.join(map(str, path))} is no finite number")
        line = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
        # Types are not checked where values are made: what cannot be read must not get into the file.
        numbers = {name: fields[name] for name in schema_1.NO_ROWS if name in fields}
        schema_2.read(LineFields(line, Path(), 0).parsed(schema_2.GroupLine.model_fields, instead=numbers))
    except _MALFORMED as error:
        raise RecordError(_first_line(error)) from error
    return line


def with_origin(line: bytes, origin: Mapping[str, str]) -> bytes:
    """Return a line that also says what its fingerprint stands for, which a file says once."""
    return line[: -len(b"}\n")] + b',"origin":' + orjson.dumps(dict(origin)) + b"}\n"


def facts_of(credited: CreditedGroup) -> dict[str, Any]:
    """Those fields of its line that say which group it is, see `Contents.add`."""
    group = credited.group
    return {
        "schema": SCHEMA,
        "item_id": group.item_id,
        "epoch": group.epoch,
        "status": credited.status,
        "estimator": credited.estimator,
        "estimator_params": dict(credited.estimator_params),
        "fingerprint": group.fingerprint,
        "origin": None,
        "item_hash": group.item_hash,
    }


def decode_group(line: bytes, path: Path, number: int, *, rows: bool = True) -> CreditedGroup:
    """One line as the value it was written from.

    Args:
        line: the line.
        path: the file, for errors.
        number: of the line, for errors.
        rows: whether to read token ids and log-probabilities, most of a line; else no trajectory has rows.

    Raises:
        RecordError: malformed; it names the file, the line and the first field that is wrong.
    """
    return group_of_fields(parse_line(line, path, number), rows=rows)


def group_of_fields(fields: LineFields, *, rows: bool = True) -> CreditedGroup:
    """The group of a line that `parse_line` has looked at, see `decode_group`.

    Raises:
        RecordError: a field is missing or wrong.
    """
    schema = fields.value("schema")
    reader = _READERS[schema]
    try:
        parsed = fields.parsed(reader.GroupLine.model_fields, instead={} if rows else schema_1.NO_ROWS)
        return reader.read(parsed, rows=rows)
    except _MALFORMED as error:
        raise RecordError(f"{fields.where}: not a {schema} line: {_first_line(error)}") from error


def parse_line(line: bytes, path: Path, number: int) -> LineFields:
    """A line's fields, of which only the schema is checked.

    Raises:
        RecordError: not JSON, or not a line of the record.
    """
    try:
        fields = LineFields(line, path, number)
        schema = fields.value("schema")
    except TypeError:
        schema = None
    else:
        if isinstance(schema, str) and schema in _READERS:
            return fields
    raise RecordError(f"{path}, line {number}: not a {SCHEMA} line; this file was written by something else")


def _not_finite(value: object) -> tuple[object, ...] | None:
    """The path to the first NaN or infinity, which JSON would write as null."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ()
    entries: Iterable[tuple[object, object]]
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        if _PLAIN.issuperset(map(type, fields.values())):
            return None  # most messages are such, and a forked group has many
        entries = fields.items()
    elif isinstance(value, list):
        values = cast("list[float]", value)
        kinds = set(map(type, values))
        # The columns are long, and of numbers alone.
        if kinds <= _PLAIN or (kinds == {float} and all(map(math.isfinite, values))):
            return None
        entries = enumerate(values)
    else:
        return None
    for name, each in entries:
        if (found := _not_finite(each)) is not None:
            return name, *found
    return None


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    text = str(error) if type(error) in (ValueError, orjson.JSONEncodeError) else ""
    return text or f"{type(error).__name__}: {error}"
