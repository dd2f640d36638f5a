"""A run folder: the record, and beside it the files that describe how it was made."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tools.errors import RecordError

RUNS = Path("runs")
RECORD = "record.jsonl"
_LONGEST_NAME = 200
"""Of an environment's folder, in bytes: file systems take 255."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where the files of a run are; nothing is read or made."""

    path: Path

    @property
    def record(self) -> Path:
        """The rollout JSONL."""
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
        """The run's output."""
        return self.path / "log"


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
