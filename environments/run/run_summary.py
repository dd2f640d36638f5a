"""`summary.json` of a run: how it stands, and what the whole of its record comes to."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from environments.record.private_file import write_private
from environments.record.recorder import Recorder, read_groups
from environments.record.summary import Summary

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
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > _LONGEST:
                return None
            fields: Any = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    known = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}
    return known if known.get("schema") == SCHEMA else None


def summary_of(recorder: Recorder) -> Summary:
    """What all groups of a record come to; a group that failed and was done again counts once.

    Raises:
        RecordError: unreadable, or a line is malformed.
    """
    summary = Summary()
    failed: set[tuple[str, int]] = set()
    for credited in read_groups(recorder.path):
        key = credited.group.item_id, credited.group.epoch
        if credited.status == "failed":
            if key in recorder.finished or key in failed:
                continue
            failed.add(key)
        summary.add(credited)
    return summary
