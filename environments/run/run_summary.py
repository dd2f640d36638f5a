"""`summary.json` of a run: how it stands, and what the whole of its record comes to."""

import json
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from environments.record.contents import GroupKey
from environments.record.private_file import read_small, write_private
from environments.record.recorder import Recorder, read_groups
from environments.record.totals import Summary
from environments.trajectory import CreditedGroup

SCHEMA = "turnwise.run/1"
_LONGEST = 64 * 1024 * 1024
"""Bytes of a summary that is read; a longer one is damaged."""


def write_summary(path: Path, fields: Mapping[str, Any]) -> None:
    """Write it whole, or leave it as it was.

    Raises:
        RecordError: it cannot be written.
    """
    text = json.dumps({"schema": SCHEMA, **fields}, indent=2, ensure_ascii=False, allow_nan=False)
    write_private(path, text.encode("utf-8", "backslashreplace") + b"\n")


def read_summary(path: Path) -> dict[str, Any] | None:
    """What was written; `None` where there is nothing, or nothing of ours."""
    try:
        fields: Any = json.loads(read_small(path, _LONGEST) or b"")
    except (ValueError, RecursionError):
        return None
    known = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}
    return known if known.get("schema") == SCHEMA else None


def covered_by(fields: Mapping[str, Any] | None) -> dict[str, Any]:
    """How much of the record a summary is of: `groups` and `bytes`, as far as it says so."""
    of: Any = (fields or {}).get("of")
    return cast("dict[str, Any]", of) if isinstance(of, dict) else {}


def summary_of(recorder: Recorder) -> Summary:
    """What all groups of a record come to, see `counted_groups`.

    Raises:
        RecordError: unreadable, or a line is malformed.
    """
    summary = Summary()
    for credited in counted_groups(recorder.path, recorder.finished):
        summary.add(credited)
    return summary


def counted_groups(path: Path, finished: Container[GroupKey]) -> Iterator[CreditedGroup]:
    """The groups of a record, of which one that failed and was done again counts once.

    Args:
        path: the record.
        finished: its groups that did not fail in the end.

    Raises:
        RecordError: unreadable, or a line is malformed.
    """
    counts = CountedOnce(finished)
    return (credited for credited in read_groups(path) if counts(credited))


class CountedOnce:
    """Says of each group of a record, in order, whether it counts."""

    def __init__(self, finished: Container[GroupKey]) -> None:
        """Know the groups that did not fail in the end."""
        self._finished = finished
        self._failed: set[GroupKey] = set()

    def __call__(self, credited: CreditedGroup) -> bool:
        """Whether it is neither one that was done again later nor one that failed before."""
        key = credited.group.item_id, credited.group.epoch
        if credited.status != "failed":
            return True
        counts = key not in self._finished and key not in self._failed
        self._failed.add(key)
        return counts
