"""A record as a table with a row per turn: a `datasets.Dataset` or a parquet file with declared types."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

import datasets
import orjson
import pyarrow
from datasets import config as datasets_config
from pyarrow import parquet

from environments.record.private_file import private, write_whole
from environments.record.recorder import Places, Record, groups_of, paths_of, records_at
from environments.trajectory import CreditedGroup, Message, Trajectory, TrajectoryGroup, Turn
from tools.errors import RecordError

# These packages are only partly typed.
_arrow: Any = pyarrow
_parquet: Any = parquet
_hf: Any = datasets

_TEXT, _INTEGER, _NUMBER = _arrow.string(), _arrow.int64(), _arrow.float64()
_SCALARS: Mapping[Any, Any] = {str: _TEXT, int: _INTEGER, float: _NUMBER, bool: _arrow.bool_()}
_ROWS_AT_ONCE = 512
_JSON = "JSON text"


def _columns_of(values: type, *names: str, without: tuple[str, ...] = ()) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    hints = get_type_hints(values)
    for name in names or [each.name for each in fields(values) if each.name not in without]:
        hint = hints[name]
        kind = next((each for each in _SCALARS if hint == each | None), hint)
        is_name = get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, StrEnum))
        columns[name] = _TEXT if is_name else _SCALARS.get(kind, _JSON)
    return columns


_GROUP = _columns_of(TrajectoryGroup, "env", "group_id", "item_id", "epoch", "fingerprint")
_CREDIT = _columns_of(CreditedGroup, "status", "policy", "estimator")
_ROLLOUT = _columns_of(Trajectory, "sibling", "seed", "stop_reason", "exact", "metrics")
_MESSAGE = _columns_of(Message, without=("role", "content", "tool_call_id"))
_TURN = _columns_of(Turn, without=("index", "message"))
_COLUMNS: Mapping[str, Any] = {
    **_GROUP,
    **_CREDIT,
    **_ROLLOUT,
    "score": _NUMBER,
    "outcome": _NUMBER,
    "turn": _INTEGER,
    "text": _TEXT,
    **_MESSAGE,
    **_TURN,
    "reward": _NUMBER,
    "parts": _JSON,
    "raw_parts": _JSON,
    "advantage": _NUMBER,
    "tokens": _arrow.list_(_INTEGER),
    "logprobs": _arrow.list_(_NUMBER),
}
_SCHEMA = _arrow.schema([(name, _TEXT if kind is _JSON else kind) for name, kind in _COLUMNS.items()])


def load(path: Places, *, cache_dir: str | Path | None = None) -> datasets.Dataset:
    """Return the turns of a record as a dataset with declared columns.

    Args:
        path: a record, the folder of a run, or `ENV/NAME` of one below `runs/`; or several of these.
        cache_dir: where the table is cached, by default below the cache of `datasets`; a record that changed
            is read again.

    Raises:
        RecordError: if there is no record, a line is malformed, or the table cannot be written.
    """
    record = records_at(path)
    folder = Path(datasets_config.HF_DATASETS_CACHE) / "turnwise" if cache_dir is None else Path(cache_dir)
    # ctime cannot be set: an edited record may have its former size and mtime.
    found = [(str(each.resolve()), each.stat()) for each in paths_of(record)]
    facts = [(name, at.st_dev, at.st_ino, at.st_size, at.st_ctime_ns) for name, at in found]
    key = hashlib.sha256(repr([*facts, str(_SCHEMA)]).encode()).hexdigest()[:16]
    table = folder / f"{paths_of(record)[0].stem}-turns-{key}.arrow"
    if not table.exists():
        with write_whole(table) as unfinished:
            folder.mkdir(parents=True, exist_ok=True)
            with (
                open(unfinished, "wb", opener=private) as file,
                _arrow.ipc.new_stream(file, _SCHEMA) as stream,
            ):
                for each in _tables_of(record):
                    stream.write_table(each)
    return _hf.Dataset.from_file(str(table))


def write_parquet(record: Record, out: Path) -> int:
    """Write the turns of all groups, whatever their status; return how many there are."""
    rows = 0
    with (
        open(out, "wb", opener=private) as file,
        _parquet.ParquetWriter(file, _SCHEMA, compression="zstd") as writer,
    ):
        for table in _tables_of(record):
            writer.write_table(table)
            rows += table.num_rows
    return rows


def _tables_of(record: Record) -> Iterator[Any]:
    rows = _rows_of(record)
    while batch := list(islice(rows, _ROWS_AT_ONCE)):
        try:
            yield _arrow.Table.from_pylist(batch, schema=_SCHEMA)
        except (ValueError, TypeError, OverflowError) as error:
            first, last = batch[0]["item_id"], batch[-1]["item_id"]
            raise RecordError(
                f"{record}, items {first!r} to {last!r}: no table can hold them: {error}"
            ) from error


def _rows_of(record: Record) -> Iterator[dict[str, Any]]:
    for number, credited in enumerate(groups_of(record), start=1):
        try:
            yield from rows_of_group(credited)
        except (LookupError, ValueError, TypeError) as error:
            raise RecordError(f"{record}, line {number}: {error}") from error


def rows_of_group(credited: CreditedGroup) -> Iterator[dict[str, Any]]:
    of_group = _fill(_GROUP, credited.group) | _fill(_CREDIT, credited)
    for trajectory, advantages in zip(credited.group.trajectories, credited.advantages, strict=True):
        rewards = trajectory.rewards
        of_rollout = _fill(_ROLLOUT, trajectory) | {
            "score": rewards and rewards.score,
            "outcome": rewards and rewards.outcome,
        }
        parts = (rewards.turn_components, rewards.turn_raw) if rewards else ((), ())
        for index, turn in enumerate(trajectory.turns):
            row = trajectory.rows[turn.span.row] if trajectory.rows else None
            sampled = slice(turn.span.start, turn.span.end)
            yield {
                **of_group,
                **of_rollout,
                "turn": turn.index,
                "text": turn.message.content,
                **_fill(_MESSAGE, turn.message),
                **_fill(_TURN, turn),
                "reward": rewards.turns[index] if rewards and rewards.turns else None,
                "parts": _json_text(parts[0][index]) if parts[0] else None,
                "raw_parts": _json_text(parts[1][index]) if parts[1] else None,
                "advantage": advantages[index],
                "tokens": row.token_ids[sampled] if row else (),
                "logprobs": row.logprobs[sampled] if row and row.logprobs is not None else None,
            }


def _fill(columns: Mapping[str, Any], value: Any) -> dict[str, Any]:
    found = {name: getattr(value, name) for name in columns}
    return {name: _json_text(each) if columns[name] is _JSON else each for name, each in found.items()}


def _json_text(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()
