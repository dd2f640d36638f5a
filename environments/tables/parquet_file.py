"""A record as a parquet file, which every tool for tables reads with its types."""

from pathlib import Path
from typing import Any

from pyarrow import parquet

from environments.record.private_file import private
from environments.tables.group_rows import Per, schema_of
from environments.tables.table_stream import tables_of

# Only partly typed.
_parquet: Any = parquet


def write_parquet(record: Path, per: Per, out: Path) -> int:
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
