"""A run folder: the record, and beside it the files that describe how it was made."""

import hashlib
import os
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

from tools.errors import RecordError

RUNS = Path("runs")
RECORD = "record.jsonl"
_LONGEST_NAME = 200
"""Of an environment's folder, in bytes: file systems take 255."""
_SHARD = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")
_NAMED_SHARDS = 20


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where the files of a run are; nothing is read or made."""

    path: Path

    @property
    def record(self) -> Path:
        return self.path / RECORD

    @property
    def config(self) -> Path:
        """Every setting that shapes rollouts, and where it came from."""
        return self.path / "config.yaml"

    @property
    def summary(self) -> Path:
        """What the whole record comes to, see `environments.record.totals.Summary.values`."""
        return self.path / "summary.json"

    @property
    def environment(self) -> Path:
        """The source of the environment's modules, as they were."""
        return self.path / "environment"

    @property
    def fingerprint(self) -> Path:
        """What the fingerprint of the groups is made of."""
        return self.path / "fingerprint"

    @property
    def log(self) -> Path:
        return self.path / "log"


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """Every `count`-th group of a plan, from group `index` on, which is counted from 0."""

    count: int
    index: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Returns what `K/N` names, if anything."""
        found = _SHARD.fullmatch(text)
        index, count = (-1, -1) if found is None else map(int, found.groups())
        return cls(index=index, count=count) if index < count else None

    @classmethod
    def of_path(cls, path: Path) -> Self | None:
        """Returns the shard that `RUN.K-of-N`, a folder with a record or a plain file, is by its name."""
        suffix = path.parent.suffix if path.name == RECORD else path.suffix
        return cls.parse(suffix[1:].replace("-of-", "/"))

    def path_of(self, run: Path) -> Path:
        """Where it is: beside the run without shards."""
        return run.with_name(f"{run.name}.{self.index}-of-{self.count}")

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def shard_records(run: Path) -> dict[Shard, Path]:
    """The records of the shards of a run, in their order, each in a folder or a plain file."""
    found: dict[Shard, Path] = {}
    with suppress(OSError, ValueError):
        for path in run.parent.iterdir():
            record = RunFolder(path).record if path.is_dir() else path
            if (shard := Shard.of_path(path)) and path == shard.path_of(run) and record.is_file():
                found[shard] = record
    return dict(sorted(found.items()))


def missing_shards(shards: Collection[Shard], *, known: int = 0) -> str:
    """The others of their count in words; empty where there are none, or no more than are `known`."""
    counts = {shard.count for shard in shards}
    whole = [Shard(index=index, count=count) for count in sorted(counts) for index in range(count)]
    missing = [str(shard) for shard in whole if shard not in shards]
    more = f" and {len(missing) - _NAMED_SHARDS} more" if len(missing) > _NAMED_SHARDS else ""
    named = f"missing shards: {', '.join(missing[:_NAMED_SHARDS])}{more}"
    return named if len(missing) > known else ""


def run_folder(env: str, name: str) -> RunFolder:
    """Where a run of this name is, or will be; an environment may be called what no folder can be."""
    folder = quote(env, safe=" +=@,")
    folder = f"%2E{folder[1:]}" if folder.startswith(".") else folder
    if len(folder) > _LONGEST_NAME:
        folder = f"{folder[:_LONGEST_NAME]}-{hashlib.sha256(env.encode()).hexdigest()[:8]}"
    return RunFolder(RUNS / folder / name)


def record_at(place: Path) -> Path:
    """The record that a user means: a file, a run's folder, or `ENV/NAME` of a run below `runs/`.

    Raises RecordError if there is none.
    """
    # Not the methods of `Path`, which raise for what is too long or may not be looked at.
    for path in (place, RUNS / place):
        if os.path.isdir(path):  # noqa: PTH112
            if os.path.isfile(RunFolder(path).record):  # noqa: PTH113
                return RunFolder(path).record
        elif os.path.exists(path):  # noqa: PTH110
            return path
    raise RecordError(
        f"no record at {place}: give a rollout JSONL, the folder of a run, or ENV/NAME of one below {RUNS}/, "
        f"as `turnwise runs` lists them"
    )


def records_of(place: Path) -> list[Path]:
    """The same record, or those of all shards where there is no run but shards of one."""
    try:
        return [record_at(place)]
    except RecordError:
        if found := shard_records(place) or shard_records(RUNS / place):
            return [*found.values()]
        raise
