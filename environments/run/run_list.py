"""The runs below a folder, each as its files describe it; what is wrong with one stands in its own line."""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from environments.record.recorder import read_contents
from environments.record.run_folder import RunFolder, Shard, missing_shards, run_folder, shard_records
from environments.run.run_log import MOMENT, goes_on, read_summary
from tools.errors import RecordError
from tools.plain_text import printable

_DEPTH = 4
"""Folders below the one that is listed: a run is `ENV/NAME` there, or lies somewhat deeper."""
_LONGEST_TEXT = 200
_STATES = ("finished", "stopped", "broke", "running")

_Text = Annotated[str, AfterValidator(lambda text: printable(text[:_LONGEST_TEXT], "?"))]
_Number = Annotated[float, Field(allow_inf_nan=False)]


class _Covered(BaseModel):
    groups: int = 0
    bytes: int = 0


class _SummaryFields(BaseModel):
    """What `summary.json` holds of a run, as far as it is listed."""

    model_config = ConfigDict(strict=True)

    env: _Text | None = None
    state: str = "unknown"
    started: _Text | None = None
    policy: _Text | None = None
    fingerprint: _Text | None = None
    experiments: int = 1
    planned: int | None = None
    done: int | None = None
    failed: int | None = None
    score: _Number | None = None
    pass_at_1: _Number | None = Field(default=None, alias="pass@1")
    of: _Covered = _Covered()
    """How much of the record its numbers cover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """One run; `None` if its files do not have it."""

    path: str
    env: str
    name: str
    started: str
    """`2026-11-22 19:34:12 UTC`; without a summary, when the record was written last."""
    state: str
    """`finished` (all planned groups are in the record, failed ones too), `stopped`, `broke` (an error ended
    it), `running`, `killed`, or `unknown`."""
    policy: str | None = None
    fingerprint: str | None = None
    planned: int | None = None
    done: int | None = None
    """Groups that need not run again."""
    failed: int | None = None
    score: float | None = None
    pass_at_1: float | None = None
    """Where it is an evaluation."""
    note: str = ""
    """What is wrong with its files."""

    def values(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def listed_runs(below: Path) -> list[ListedRun]:
    """Returns the runs in a folder and below it, newest first."""
    found = [_listed(RunFolder(path), below) for path in _folders(below, _DEPTH)]
    return sorted(found, key=lambda run: (run.started, run.path), reverse=True)


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    run = RunFolder(folder)
    if os.path.lexists(run.record) or os.path.lexists(run.summary):
        yield folder
    elif depth > 0:
        try:
            below = [each for each in os.scandir(folder) if each.is_dir() and each.name[0] != "."]
        except OSError:
            return
        for name in sorted(each.name for each in below):
            yield from _folders(folder / name, depth - 1)


def _listed(folder: RunFolder, root: Path) -> ListedRun:
    notes: list[str] = []
    size, changed = None, ""
    try:
        status = folder.record.stat()
        size, changed = status.st_size, datetime.fromtimestamp(status.st_mtime, UTC).strftime(MOMENT)
    except (OSError, ValueError, OverflowError):
        notes.append("no record.jsonl")
    values = read_summary(folder.summary)
    fields = _SummaryFields()
    try:
        fields = _SummaryFields.model_validate(values or {})
    except ValidationError:
        values = None
    if values is None:
        there = os.path.lexists(folder.summary)
        notes.append("summary.json is damaged" if there else "no summary.json")
    is_behind = values is not None and size is not None and fields.of.bytes != size
    if is_behind:
        notes.append(f"the score is of its first {fields.of.groups} groups")
    if (shard := Shard.of_path(folder.record)) is not None:
        found = shard_records(folder.path.with_suffix(""))
        notes += filter(None, [missing_shards([each for each in found if each.count == shard.count])])
    if fields.experiments > 1:
        notes.append(f"groups of {fields.experiments} experiments")
    done, failed = fields.done, fields.failed
    if size and (is_behind or done is None or failed is None):
        try:
            contents = read_contents(folder.record)
            done, failed = len(contents.finished), len(contents.failed - contents.finished)
        except (RecordError, ValueError, LookupError, TypeError, AttributeError):
            pass  # a malformed line
    state = fields.state if fields.state in _STATES else "unknown"
    env = fields.env or folder.path.resolve().parent.name
    return ListedRun(
        path=str(folder.path),
        env=env,
        name=_name(folder, env, root),
        started=fields.started or changed,
        state="killed" if state == "running" and not goes_on(folder.log) else state,
        policy=fields.policy,
        fingerprint=fields.fingerprint,
        planned=fields.planned,
        done=done,
        failed=failed,
        score=fields.score,
        pass_at_1=fields.pass_at_1,
        note="; ".join(notes),
    )


def _name(folder: RunFolder, env: str, root: Path) -> str:
    """What stands below the folder of its environment, as `sweep/seed-0`, or else below `root`."""
    *above, name = folder.path.resolve().parts
    of_env = run_folder(env, name).path.parent.name
    if of_env in above:
        below = above[len(above) - above[::-1].index(of_env) :]
    else:
        below = folder.path.relative_to(root).parts[:-1]
    return "/".join([*below, name])
