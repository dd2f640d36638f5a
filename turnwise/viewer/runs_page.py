"""The page of several runs: a list, curves of scores, reward parts and metrics, and a comparison of two."""

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import quote

from environments.record.origin import credit_text
from environments.record.private_file import folder_for
from environments.record.recorder import groups_of, read_contents
from environments.record.run_folder import RunFolder
from environments.record.totals import sum_parts
from environments.run.run_list import CountedOnce, ListedRun
from environments.trajectory import CreditedGroup
from tools.errors import RecordError
from turnwise.viewer.record_page import PageFile, text_of

_MOST_POINTS = 120
"""Points of a curve; with more groups, a point is the mean of neighbours."""
_MOST_ITEMS = 2_000
_MOST_NAMES = 24
_MOST_BYTES = 200_000_000


def write_runs_page(folder: Path, runs: Sequence[ListedRun], out: Path) -> int:
    values = [_run_values(run, out.parent) for run in runs]
    title = f"runs below {text_of(folder)}"
    with folder_for(out), PageFile(out, max_bytes=_MOST_BYTES, kind="runs") as page:
        return page.finish({"title": title, "runs": values})


def _run_values(run: ListedRun, beside: Path) -> dict[str, Any]:
    folder, numbers = RunFolder(Path(run.path)), _Numbers()
    note = run.note
    try:
        counts = CountedOnce(read_contents(folder.record).finished)
        for credited in groups_of(folder.record, rows=False):
            if counts(credited):
                numbers.add(credited)
    except RecordError as error:
        note = "; ".join(filter(None, (note, str(error))))
    view = folder.path / "view.html"
    return {
        "name": text_of(f"{run.env}/{run.name}"),
        "started": run.started,
        "state": run.state,
        "policy": run.policy,
        "planned": run.planned,
        "done": run.done,
        "failed": run.failed,
        "score": run.score,
        "pass_at_1": run.pass_at_1,
        "note": text_of(note),
        "page": quote(os.fsencode(os.path.relpath(view, beside))) if view.is_file() else None,
        **numbers.values(),
    }


class _Numbers:
    def __init__(self) -> None:
        self._groups: list[dict[str, float]] = []
        self._items: defaultdict[str, list[float]] = defaultdict(list)
        self._estimators: dict[str, None] = {}

    def add(self, credited: CreditedGroup) -> None:
        group = credited.group
        self._estimators[credit_text(credited.estimator, credited.estimator_params)] = None
        named = defaultdict[str, list[float]](list)
        for trajectory in group.trajectories:
            if trajectory.score is not None:
                named["score"].append(trajectory.score)
                self._items[text_of(group.item_id)].append(trajectory.score)
            named["turns"].append(len(trajectory.acts))
            parts = {} if trajectory.rewards is None else sum_parts(trajectory.rewards)
            for kind, numbers in (("part", parts), ("metric", trajectory.metrics)):
                for name, number in numbers.items():
                    named[f"{kind} {text_of(name)}"].append(number)
        self._groups.append({name: fmean(numbers) for name, numbers in named.items()})

    def values(self) -> dict[str, Any]:
        every = -(-len(self._groups) // _MOST_POINTS) or 1
        names = list(dict.fromkeys(name for group in self._groups for name in group))[:_MOST_NAMES]
        series = {
            name: [
                _mean([group[name] for group in self._groups[start : start + every] if name in group])
                for start in range(0, len(self._groups), every)
            ]
            for name in names
        }
        return {
            "estimator": " and ".join(self._estimators) or None,
            "counted": len(self._groups),
            "every": every,
            "series": series,
            "means": {name: _mean([g[name] for g in self._groups if name in g]) for name in names},
            "items": {name: _mean(scores) for name, scores in list(self._items.items())[:_MOST_ITEMS]},
        }


def _mean(numbers: Sequence[float]) -> float | None:
    return fmean(numbers) if numbers else None
