"""The outbox: what must reach the trainer stays in one file until it is certain to have arrived.

SQLite with a write-ahead log, because posts are added, marked and removed in any order and each change
must survive the process being killed. One process at a time holds the file.
"""

import os
import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time
from types import TracebackType
from typing import Literal, Self

import orjson

from environments.payloads import post_text
from tools.errors import ConfigError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS post (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    group_id TEXT NOT NULL,
    part INTEGER NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    sent INTEGER,
    body BLOB NOT NULL,
    UNIQUE (group_id, part)
);
CREATE INDEX IF NOT EXISTS by_state ON post (sent, tries, id, group_id);
CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
Fact = Literal["run_id", "env_id", "shape", "origin", "settled", "place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One HTTP post that is waiting."""

    id: int
    group_id: str
    part: int
    body: bytes
    """Compressed rows, see `environments.payloads.compress`."""
    tries: int


class Outbox:
    """Posts by state: waiting, then sent, then gone once a trainer has them for certain.

    Not thread-safe; every method returns when its change is in the file.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises:
            ConfigError: not writable, in use by another process, or not an outbox.
        """
        self.path = path
        self.rejected_path = path.with_name(f"{path.name}.rejected.jsonl")
        """Posts that will never be delivered, one JSON object a line, each with the reason."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
            # Exclusive: a second process fails here, and no shared-memory file is needed.
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            # Safe when the process is killed; after a power cut the last changes may be missing.
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(_SCHEMA)
            self._db.execute("INSERT OR IGNORE INTO fact VALUES ('run_id', ?)", (uuid.uuid4().hex[:8],))
        except sqlite3.OperationalError as error:
            raise ConfigError(f"cannot use the outbox {path}: {_explained(error)}") from None
        except (sqlite3.DatabaseError, OSError) as error:
            raise ConfigError(f"cannot use the outbox {path}: {error}") from None

    def put(self, group_id: str, parts: Sequence[bytes]) -> None:
        """Add a group's posts, all or none; a group that is already there stays as it is."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT OR IGNORE INTO post (group_id, part, body) VALUES (?, ?, ?)",
                [(group_id, number, body) for number, body in enumerate(parts)],
            )

    def next_post(self) -> Post | None:
        """The post to send next: the oldest, those that failed before behind the others."""
        row = self._db.execute(
            "SELECT id, group_id, part, body, tries FROM post WHERE sent IS NULL ORDER BY tries, id LIMIT 1"
        ).fetchone()
        return (
            None if row is None else Post(id=row[0], group_id=row[1], part=row[2], body=row[3], tries=row[4])
        )

    def postpone(self, post: Post) -> None:
        """Put a post that the API could not take behind the others."""
        self._db.execute("UPDATE post SET tries = tries + 1 WHERE id = ?", (post.id,))

    def mark_sent(self, post: Post) -> None:
        """The API said that it has the post; it stays here until a trainer has it."""
        self._db.execute(
            "UPDATE post SET sent = (SELECT coalesce(max(sent), 0) + 1 FROM post) WHERE id = ?", (post.id,)
        )

    def sent(self) -> list[int]:
        """Ids of the posts that the API has, in the order it got them."""
        return [
            row[0] for row in self._db.execute("SELECT id FROM post WHERE sent IS NOT NULL ORDER BY sent")
        ]

    def unsend(self) -> int:
        """Wait anew with every post that the API had: it lost them. Returns how many."""
        return self._db.execute("UPDATE post SET sent = NULL WHERE sent IS NOT NULL").rowcount

    def remove(self, ids: Iterable[int]) -> None:
        """Forget posts that a trainer has for certain."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("DELETE FROM post WHERE id = ?", [(each,) for each in ids])

    def reject(self, post: Post, reason: str) -> None:
        """Move a post to the file of rejected ones."""
        self.note_rejected(post.group_id, reason, part=post.part, post=orjson.Fragment(post_text(post.body)))
        self.remove([post.id])

    def note_rejected(self, group_id: str, reason: str, **details: object) -> None:
        """Add a line to the file of rejected posts and wait until it is on disk."""
        line = {"time": time(), "group_id": group_id, "reason": reason, **details}
        fd = os.open(self.rejected_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def waiting_groups(self) -> int:
        """Groups with at least one post that the API does not have."""
        return self._count("SELECT count(DISTINCT group_id) FROM post WHERE sent IS NULL")

    def __len__(self) -> int:
        """Posts here, waiting or sent."""
        return self._count("SELECT count(*) FROM post")

    def fact(self, name: Fact) -> str | None:
        """A remembered value."""
        row = self._db.execute("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def remember(self, name: Fact, value: str) -> None:
        """Keep a value with the file."""
        self._db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, value))

    def close(self) -> None:
        """Release the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _count(self, query: str) -> int:
        return self._db.execute(query).fetchone()[0]


def _explained(error: sqlite3.OperationalError) -> str:
    if "locked" in str(error):
        return "another process is using it; choose another --env.outbox_path or wait"
    return str(error)
