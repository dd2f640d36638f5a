"""`load` and `features` of `turnwise.records`: records for `datasets`, with every type declared."""

import hashlib
from pathlib import Path
from typing import Any, get_args

import datasets
from datasets import config as datasets_config

from environments.record.private_file import private, write_whole
from environments.record.recorder import Places, Record, paths_of, records_at
from environments.record.tables.arrow_rows import Per, arrow, schema_of
from environments.record.tables.parquet_file import tables_of
from tools.errors import UsageError

# Only partly typed.
_hf: Any = datasets
_config: Any = datasets_config

_JSON = _hf.Json()
_TEXT, _INTEGER, _NUMBER = (_hf.Value(name) for name in ("string", "int64", "float64"))
_INTEGERS, _NUMBERS = _hf.List(_hf.List(_INTEGER)), _hf.List(_hf.List(_NUMBER))
_COLUMNS = {
    **dict.fromkeys(
        ("schema", "group_id", "env", "item_id", "item_hash", "fingerprint", "status", "reason", "policy"),
        _TEXT,
    ),
    **dict.fromkeys(("estimator", "error", "crc32"), _TEXT),
    **dict.fromkeys(("epoch", "turns_without_peer"), _INTEGER),
    "evaluation": _hf.Value("bool"),
    **dict.fromkeys(("tokens", "masks"), _INTEGERS),
    **dict.fromkeys(("advantages", "inference_logprobs", "row_logprobs"), _NUMBERS),
    **dict.fromkeys(("messages", "toolsets"), _hf.List(_hf.List(_JSON))),
    # A score is a number, or a list of the turns' rewards.
    **dict.fromkeys(("scores", "overrides", "trajectories", "judge_calls", "failures"), _hf.List(_JSON)),
    **dict.fromkeys(("item", "origin", "estimator_params", "group_overrides", "profile"), _JSON),
    **dict.fromkeys(("ref_logprobs", "generation_params", "images"), _JSON),
}


def features() -> datasets.Features:
    """The columns of a record's lines, for `load_dataset("json", data_files=…, features=features())`.

    `datasets` keeps ten decimals of numbers there; what `load` gives is exact.
    """
    return _hf.Features(_COLUMNS)


def load(path: Places, per: Per = "group", *, cache_dir: str | Path | None = None) -> datasets.Dataset:
    """A record as a table whose columns are declared; it is read once, and lies in a file from then on.

    Args:
        path: a record, the folder of a run, or `ENV/NAME` of one below `runs/`, of which there may be only
            shards; or several of these.
        per: what a row is: a group with its rollouts and their turns, a rollout, or a turn.
        cache_dir: where the table is kept; by default below the cache of `datasets`. A record that grew
            or changed is read anew.

    Raises:
        RecordError: no record, a line is malformed, or the table cannot be written.
        UsageError: `per` is none of the three.
    """
    if per not in get_args(Per):
        raise UsageError(f"no rows per {per!r}; choose one of {sorted(get_args(Per))}")
    record = records_at(path)
    folder = Path(_config.HF_DATASETS_CACHE) / "turnwise" if cache_dir is None else Path(cache_dir)
    table = folder / f"{paths_of(record)[0].stem}-per-{per}-{_content_key(record, per)}.arrow"
    if not table.exists():
        _write(record, per, table)
    return _hf.Dataset.from_file(str(table))


def _write(record: Record, per: Per, table: Path) -> None:
    with write_whole(table) as unfinished:
        table.parent.mkdir(parents=True, exist_ok=True)
        with (
            open(unfinished, "wb", opener=private) as file,
            arrow.ipc.new_stream(file, schema_of(per)) as stream,
        ):
            for each in tables_of(record, per):
                stream.write_table(each)


def _content_key(record: Record, per: Per) -> str:
    """Other for a record that is another, or is not as it was, and for other columns."""
    found = [(str(path.resolve()), path.stat()) for path in paths_of(record)]
    # The time of change, which cannot be set: an edited record may have its size and its date of before.
    facts = [(path, at.st_dev, at.st_ino, at.st_size, at.st_ctime_ns) for path, at in found]
    return hashlib.sha256(repr([*facts, str(schema_of(per))]).encode()).hexdigest()[:16]
