"""A record as a parquet file, which every tool for tables reads with its types."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyarrow import parquet

from environments.record.private_file import private
from environments.record.recorder import Record, groups_of
from environments.record.tables.arrow_rows import Per, Row, arrow, rows_of_group, schema_of
from environments.trajectory import TrajectoryGroup
from tools.errors import RecordError

_GROUPS = 64
_BYTES = 16 << 20
"""Groups that become a table together, and about how much they may be; a single one may be more."""
_BYTES_PER_TOKEN = 32
"""An id, a label, a log-probability and an advantage."""


def tables_of(record: Record, per: Per) -> Iterator[Any]:
    """Arrow tables that together have the rows of a record, in its order.

    Raises:
        RecordError: unreadable, or a line is malformed.
    """
    schema = schema_of(per)
    rows: list[Row] = []
    groups, size, first = 0, 0, 1
    for number, credited in enumerate(groups_of(record), start=1):
        try:
            rows += rows_of_group(credited, per)
        except (LookupError, ValueError, TypeError) as error:
            raise RecordError(f"{record}, line {number}: {error}") from error
        groups += 1
        size += _size(credited.group)
        if groups == _GROUPS or size >= _BYTES:
            yield _table(rows, schema, f"{record}, lines {first} to {number}")
            rows, groups, size, first = [], 0, 0, number + 1
    if rows:
        yield _table(rows, schema, f"{record}, lines from {first}")


def _table(rows: list[Row], schema: Any, place: str) -> Any:
    try:
        return arrow.Table.from_pylist(rows, schema=schema)
    except (ValueError, TypeError, OverflowError) as error:
        raise RecordError(f"{place}: no table can hold them: {error}") from error


def _size(group: TrajectoryGroup) -> int:
    tokens = sum(len(row.token_ids) for each in group.trajectories for row in each.rows)
    text = sum(len(message.content) for each in group.trajectories for message in each.messages)
    return tokens * _BYTES_PER_TOKEN + text


# Only partly typed.
_parquet: Any = parquet


def write_parquet(record: Record, per: Per, out: Path) -> int:
    """Write the rows of a record, all groups whatever their status; how many there are.

    Raises:
        RecordError: unreadable, or a line is malformed.
        OSError: it cannot be written.
    """
    rows = 0
    with (
        open(out, "wb", opener=private) as file,
        _parquet.ParquetWriter(file, schema_of(per), compression="zstd") as writer,
    ):
        for table in tables_of(record, per):
            writer.write_table(table)
            rows += table.num_rows
    return rows
