"""Looks into an outbox from outside. `serve` locks it, so this reads a copy, as another machine would."""

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path


def groups_in(outbox):
    """Names of the groups that are kept there."""
    return {name for (name,) in _read(outbox, "SELECT group_id FROM post")}


def waiting_in(outbox):
    """How many groups the API does not have."""
    rows = _read(outbox, "SELECT count(DISTINCT group_id) FROM post WHERE sent IS NULL")
    return rows[0][0] if rows else 0


def posts_ever_in(outbox):
    """How many posts were ever put there, whatever became of them: its numbers are never used twice."""
    rows = _read(outbox, "SELECT seq FROM sqlite_sequence WHERE name = 'post'")
    return rows[0][0] if rows else 0


def _read(outbox, query):
    with tempfile.TemporaryDirectory() as folder:
        for path in (outbox, outbox.with_name(f"{outbox.name}-wal")):
            if path.exists():
                shutil.copy(path, folder)
        with closing(sqlite3.connect(Path(folder, outbox.name))) as copy:
            made = copy.execute("SELECT count(*) FROM sqlite_master WHERE name = 'post'").fetchone()[0]
            return copy.execute(query).fetchall() if made else []
