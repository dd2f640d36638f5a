"""The runs below a folder, each as what its files say; one that is damaged says that of itself alone."""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from environments.plain_text import printable
from environments.record.recorder import read_contents
from environments.record.run_folder import RunFolder, run_folder
from environments.run.run_log import MOMENT, covered_by, goes_on, read_summary
from tools.errors import RecordError

_DEPTH = 4
"""Folders of environments, and runs: `ENV/NAME`, those of `turnwise learn` as `ENV/learn/ARM/seed-N`."""
_LONGEST_TEXT = 200
_LARGEST = 1e300
"""Of a number; NaN and what is endless are not below it."""
_STATES = ("finished", "stopped", "broke", "running")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """One run; `None` where its files do not say."""

    path: str
    env: str
    name: str
    started: str
    """`2026-11-22 19:34:12 UTC`; where no summary says it, when the record was written last."""
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
    """The runs in a folder and below it, newest first."""
    found = [_listed(RunFolder(path), below) for path in _folders(below, _DEPTH)]
    return sorted(found, key=lambda run: (run.started, run.path), reverse=True)


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    run = RunFolder(folder)
    if any(os.path.lexists(path) for path in (run.record, run.summary)):
        yield folder
        return
    if depth == 0:
        return
    try:
        names = sorted(
            each.name for each in os.scandir(folder) if each.is_dir() and not each.name.startswith(".")
        )
    except OSError:
        return
    for name in names:
        yield from _folders(folder / name, depth - 1)


def _listed(folder: RunFolder, root: Path) -> ListedRun:
    fields = read_summary(folder.summary)
    size, changed = _record_state(folder.record)
    notes: list[str] = []
    if size is None:
        notes.append("no record.jsonl")
    if fields is None:
        there = os.path.lexists(folder.summary)
        notes.append("summary.json is damaged" if there else "no summary.json")
        fields = {}
    state = _text(fields, "state") or "unknown"
    if state == "running" and not goes_on(folder.log):
        state = "killed"
    known = covered_by(fields)
    is_behind = bool(fields) and size is not None and (known.get("bytes") or 0) != size
    if is_behind:
        notes.append(f"the score is of its first {_whole(known, 'groups') or 0} groups")
    if (experiments := _whole(fields, "experiments") or 1) > 1:
        notes.append(f"groups of {experiments} experiments")
    told = _whole(fields, "done"), _whole(fields, "failed")
    counted = _counted(folder.record, size) if is_behind or None in told else None
    done, failed = counted or told
    env = _text(fields, "env") or folder.path.resolve().parent.name
    return ListedRun(
        path=str(folder.path),
        env=env,
        name=_name(folder, env, root),
        started=_text(fields, "started") or changed,
        state=state if state in (*_STATES, "killed") else "unknown",
        policy=_text(fields, "policy"),
        fingerprint=_text(fields, "fingerprint"),
        planned=_whole(fields, "planned"),
        done=done,
        failed=failed,
        score=_number(fields, "score"),
        pass_at_1=_number(fields, "pass@1"),
        note="; ".join(notes),
    )


def _name(folder: RunFolder, env: str, root: Path) -> str:
    """What stands below the folder of its environment, as `learn/scalar/seed-0`, or else below `root`."""
    *above, name = folder.path.resolve().parts
    of_env = run_folder(env, name).path.parent.name
    if of_env in above:
        below = above[len(above) - above[::-1].index(of_env) :]
    else:
        below = folder.path.relative_to(root).parts[:-1]
    return "/".join([*below, name])


def _record_state(record: Path) -> tuple[int | None, str]:
    """Its size, and when it was written last."""
    try:
        status = record.stat()
        return status.st_size, datetime.fromtimestamp(status.st_mtime, UTC).strftime(MOMENT)
    except (OSError, ValueError, OverflowError):
        return None, ""


def _counted(record: Path, size: int | None) -> tuple[int, int] | None:
    """Groups that are done and that failed; `None` where there are none, or a line is malformed."""
    if not size:
        return None
    try:
        contents = read_contents(record)
    except (RecordError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return len(contents.finished), len(contents.failed - contents.finished)


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if not isinstance(value, str):
        return None
    return printable(value[:_LONGEST_TEXT], "?")


def _whole(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53 else None


def _number(fields: dict[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
        return None
    return float(value)
