"""A run's folder: the record and the files that describe how it was made."""

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
_SHARD = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")
_NAMED_SHARDS = 20


class _File:
    """A path in a folder, by the file's name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: "RunFolder", _: object) -> Path:
        return folder.path / self._name


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path
    record = _File(RECORD)
    config = _File("config.yaml")
    summary = _File("summary.json")
    environment = _File("environment")
    fingerprint = _File("fingerprint")
    log = _File("log")


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """Every `count`-th group of a plan, beginning with group `index`, counted from 0."""

    count: int
    index: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        found = _SHARD.fullmatch(text)
        index, count = (-1, -1) if found is None else map(int, found.groups())
        return cls(index=index, count=count) if index < count else None

    @classmethod
    def of_path(cls, path: Path) -> Self | None:
        """Return the shard in a name `RUN.K-of-N`, or None."""
        suffix = path.parent.suffix if path.name == RECORD else path.suffix
        return cls.parse(suffix[1:].replace("-of-", "/"))

    def path_of(self, run: Path) -> Path:
        return run.with_name(f"{run.name}.{self.index}-of-{self.count}")

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def shard_records(run: Path) -> dict[Shard, Path]:
    found: dict[Shard, Path] = {}
    with suppress(OSError, ValueError):
        for path in run.parent.iterdir():
            record = RunFolder(path).record if path.is_dir() else path
            if (shard := Shard.of_path(path)) and path == shard.path_of(run) and record.is_file():
                found[shard] = record
    return dict(sorted(found.items()))


def missing_shards(shards: Collection[Shard], *, known: int = 0) -> str:
    """Name the missing shards, or return "" for at most `known` of them."""
    counts = {shard.count for shard in shards}
    whole = [Shard(index=index, count=count) for count in sorted(counts) for index in range(count)]
    missing = [str(shard) for shard in whole if shard not in shards]
    more = f" and {len(missing) - _NAMED_SHARDS} more" if len(missing) > _NAMED_SHARDS else ""
    named = f"missing shards: {', '.join(missing[:_NAMED_SHARDS])}{more}"
    return named if len(missing) > known else ""


def run_folder(env: str, name: str) -> RunFolder:
    folder = quote(env, safe=" +=@,")
    folder = f"%2E{folder[1:]}" if folder.startswith(".") else folder
    if len(folder) > _LONGEST_NAME:
        folder = f"{folder[:_LONGEST_NAME]}-{hashlib.sha256(env.encode()).hexdigest()[:8]}"
    return RunFolder(RUNS / folder / name)


def record_at(place: Path) -> Path:
    """Return the record that a user means: a file, a run's folder, or `ENV/NAME` of a run below `runs/`."""
    # Methods of `Path` raise if a name is too long or may not be accessed.
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
    """Return the record as `record_at`, or all shards of a run that has only shards."""
    try:
        return [record_at(place)]
    except RecordError:
        if found := shard_records(place) or shard_records(RUNS / place):
            return [*found.values()]
        raise
