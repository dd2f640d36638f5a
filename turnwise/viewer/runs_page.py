"""The page of several runs: a list, curves of scores, reward parts and metrics, and a comparison of two."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from environments.record.origin import credit_text
from environments.record.private_file import folder_for
from environments.record.recorder import read_contents
from environments.record.run_folder import RunFolder
from environments.record.totals import Spread, sum_parts
from environments.run.run_list import MOMENT, ListedRun, list_runs, unique_groups
from environments.trajectory import CreditedGroup
from tools.errors import RecordError
from turnwise.viewer.page_values import pick_fields
from turnwise.viewer.record_page import Kind, PageFile, compress, text_of

_MOST_POINTS = 120
"""Points of a curve; with more groups, a point is the mean of neighbours."""
_MOST_ITEMS = 2_000
_MOST_NAMES = 24
_MOST_BYTES = 200_000_000


def write_runs_page(folder: Path, runs: Sequence[ListedRun], out: Path) -> int:
    with folder_for(out), PageFile(out, max_bytes=_MOST_BYTES, kind="runs") as page:
        index = _index(folder, runs, lambda view: os.path.relpath(view, out.parent))
        return page.finish({**index, "read": datetime.now(UTC).strftime(MOMENT)})


class LiveRuns:
    """The runs below a folder, for a server; a record is read again only when it has changed."""

    kind: Kind = "runs"

    def __init__(self, folder: Path) -> None:
        self.title = text_of(folder)
        self._folder = folder
        self._pages: dict[str, Path] = {}

    def index(self, _after: int = 0) -> bytes:
        return compress({**_index(self._folder, list_runs(self._folder), self._link), "live": True})

    def block(self, name: str) -> bytes | None:
        """Return the page of a run."""
        return self._pages[name].read_bytes() if name in self._pages else None

    def _link(self, view: Path) -> str:
        name = hashlib.sha256(os.fsencode(view)).hexdigest()
        self._pages[name] = view
        return f"block/{name}"


def _index(folder: Path, runs: Sequence[ListedRun], link: Callable[[Path], str]) -> dict[str, Any]:
    return {"title": text_of(folder), "runs": [_run_values(run, link) for run in runs]}


@lru_cache(maxsize=1000)
def _read_run(record: Path, _mtime_ns: int) -> tuple[dict[str, Any], str]:
    numbers, error = _Numbers(), ""
    try:
        for credited in unique_groups(record, read_contents(record).finished, rows=False):
            numbers.add(credited)
    except RecordError as raised:
        error = str(raised)
    return numbers.values(), error


def _run_values(run: ListedRun, link: Callable[[Path], str]) -> dict[str, Any]:
    folder = RunFolder(Path(run.path))
    changed = folder.record.stat().st_mtime_ns if folder.record.exists() else 0
    numbers, error = _read_run(folder.record, changed)
    view = folder.path / "view.html"
    return {
        **{name: text_of(getattr(run, name)) for name in ("env", "name", "path")},
        **pick_fields(run, "started", "state", "policy", "planned", "done", "failed", "score", "pass_at_1"),
        "note": text_of("; ".join(filter(None, (run.note, error)))),
        "page": quote(os.fsencode(link(view))) if view.is_file() else None,
        **numbers,
    }


class _Numbers:
    def __init__(self) -> None:
        self._groups: list[dict[str, float | None]] = []
        self._items: defaultdict[str, list[float]] = defaultdict(list)
        self._estimators: dict[str, None] = {}

    def add(self, credited: CreditedGroup) -> None:
        group = credited.group
        self._estimators[credit_text(credited.estimator, credited.estimator_params)] = None
        named = defaultdict[str, list[float]](list)
        for trajectory in (each for each in group.trajectories if each.trunk is None):  # as in the summary
            if trajectory.score is not None:
                named["score"].append(trajectory.score)
                self._items[text_of(group.item_id)].append(trajectory.score)
            named["turns"].append(len(trajectory.acts))
            parts = {} if trajectory.rewards is None else sum_parts(trajectory.rewards)
            for kind, numbers in (("part", parts), ("metric", trajectory.metrics)):
                for name, number in numbers.items():
                    named[f"{kind} {text_of(name)}"].append(number)
        self._groups.append({name: _mean(numbers) for name, numbers in named.items()})

    def values(self) -> dict[str, Any]:
        every = -(-len(self._groups) // _MOST_POINTS) or 1
        names = list(dict.fromkeys(name for group in self._groups for name in group))[:_MOST_NAMES]
        series = {
            name: [
                _mean([group.get(name) for group in self._groups[start : start + every]])
                for start in range(0, len(self._groups), every)
            ]
            for name in names
        }
        return {
            "estimator": " and ".join(self._estimators) or None,
            "counted": len(self._groups),
            "every": every,
            "series": series,
            "means": {name: _mean([group.get(name) for group in self._groups]) for name in names},
            "items": {name: _mean(scores) for name, scores in islice(self._items.items(), _MOST_ITEMS)},
            "items_left_out": max(0, len(self._items) - _MOST_ITEMS),
        }


def _mean(numbers: Sequence[float | None]) -> float | None:
    return Spread.of(numbers).values()["mean"]
