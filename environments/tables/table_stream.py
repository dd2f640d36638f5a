"""A record as a stream of Arrow tables: of a large one, a part at a time is in memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from environments.record.entries import read_entries, read_group_at
from environments.tables.arrow_columns import arrow
from environments.tables.group_rows import Per, Row, rows_of_group, schema_of
from environments.trajectory import TrajectoryGroup
from tools.errors import RecordError

_GROUPS = 64
_BYTES = 16 << 20
"""Groups that become a table together, and about how much they may be; a single one may be more."""
_BYTES_PER_TOKEN = 32
"""An id, a label, a log-probability and an advantage."""


def tables_of(record: Path, per: Per) -> Iterator[Any]:
    """Arrow tables that together have the rows of a record, in its order.

    Raises:
        RecordError: unreadable, or a line is malformed.
    """
    schema = schema_of(per)
    rows: list[Row] = []
    groups, size, first = 0, 0, 1
    # By its entries: of a run that goes on, or was killed, the torn last line is left out.
    for entry in read_entries(record):
        credited = read_group_at(record, entry)
        try:
            rows += rows_of_group(credited, per)
        except (LookupError, ValueError, TypeError) as error:
            raise RecordError(f"{record}, line {entry.number}: {error}") from error
        groups += 1
        size += _size(credited.group)
        if groups == _GROUPS or size >= _BYTES:
            yield _table(rows, schema, f"{record}, lines {first} to {entry.number}")
            rows, groups, size, first = [], 0, 0, entry.number + 1
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
