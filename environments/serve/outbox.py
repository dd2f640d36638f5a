"""The outbox: a file that keeps each post until it has certainly reached the trainer.

SQLite with a write-ahead log: posts are added, marked and removed in any order, and each change must survive
a killed process. One process at a time uses the file.
"""

import asyncio
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Literal, Self, TypeVar

import orjson

from environments.wire.padding import teaches_nothing
from environments.wire.payloads import Part, part_without, post_text
from tools.errors import ConfigError, RecordError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS post (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    group_id TEXT NOT NULL,
    part INTEGER NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    sent INTEGER,
    longest_row INTEGER NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (group_id, part)
);
CREATE INDEX IF NOT EXISTS by_state ON post (sent, tries, id, group_id);
CREATE TABLE IF NOT EXISTS weights (
    group_id TEXT PRIMARY KEY,
    posts INTEGER NOT NULL,
    versions TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS finished (number INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_REASON_CHARS = 10_000
_PRIVATE = 0o600
Fact = Literal["run_id", "env_id", "origin", "settled", "place", "met"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    id: int
    group_id: str
    number: int
    part: Part
    tries: int


class Outbox:
    """Posts in the states waiting, sent and, once a trainer certainly has them, removed.

    Not thread-safe; each method returns after its change is in the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rejected_path = path.parent / f"{path.name}.rejected.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:  # for its owner only; SQLite's write-ahead log gets the same mode
                # Closed at once, since a later close would release SQLite's lock.
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE))
            except FileExistsError:
                for each in (path, path.parent / f"{path.name}-wal"):
                    if each.exists():
                        each.chmod(_PRIVATE)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
            # Exclusive: a second process fails here, without a shared-memory file.
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            # Safe against a killed process; a power cut may lose the last changes.
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(_SCHEMA)
            self._db.execute("INSERT OR IGNORE INTO fact VALUES ('run_id', ?)", (uuid.uuid4().hex[:8],))
        except (sqlite3.DatabaseError, OSError) as error:
            is_locked = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
            why = "another process is using it; choose another --outbox or wait" if is_locked else error
            raise ConfigError(f"cannot use the outbox {path}: {why}") from None

    def put(
        self,
        group_id: str,
        parts: Sequence[Part],
        *,
        number: int | None = None,
        versions: Mapping[int, Sequence[str | None]] = {},  # never modified
        seen_versions: Sequence[str] = (),
    ) -> None:
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT OR IGNORE INTO post (group_id, part, longest_row, body) VALUES (?, ?, ?, ?)",
                [(group_id, index, part.longest_row, part.body) for index, part in enumerate(parts)],
            )
            self._db.execute(
                "INSERT OR IGNORE INTO weights VALUES (?, ?, ?)",
                (group_id, len(parts), orjson.dumps([*versions.items()]).decode()),
            )
            self.remember("met", orjson.dumps(seen_versions).decode())
            if number is not None:
                self._finish(number)

    def weight_versions(self) -> list[str]:
        return orjson.loads(self.fact("met") or "[]")

    def finish(self, number: int) -> None:
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._finish(number)

    def first_unfinished(self) -> int:
        return int(self.fact("place") or 0)

    def finished_tasks(self) -> frozenset[int]:
        return frozenset(row[0] for row in self._db.execute("SELECT number FROM finished"))

    def next_post(self) -> Post | None:
        """Return the oldest waiting post; posts that failed before come last."""
        return self._select("WHERE sent IS NULL ORDER BY tries, id LIMIT 1")

    def _select(self, which: str, *values: int) -> Post | None:
        columns = "id, group_id, part, longest_row, body, tries"
        row = self._db.execute(f"SELECT {columns} FROM post {which}", values).fetchone()
        if row is None:
            return None
        identity, group_id, number, longest_row, body, tries = row
        part = Part(body=body, longest_row=longest_row)
        return Post(id=identity, group_id=group_id, number=number, part=part, tries=tries)

    def unsent_versions(self, post: Post) -> dict[int, list[str | None]]:
        """Return weight versions by sibling for a post's group, or {} if the API has a part of the group.

        A group that has begun to arrive is sent whole: the rest of it would be a biased sample.
        """
        row = self._db.execute(
            "SELECT versions FROM weights WHERE group_id = ?1 AND posts = "
            "(SELECT count(*) FROM post WHERE group_id = ?1 AND sent IS NULL)",
            (post.group_id,),
        ).fetchone()
        return {} if row is None else dict(orjson.loads(row[0]))

    def withhold(self, group_id: str, left: Mapping[int, Sequence[str | None]]) -> int:
        """Remove the rows of siblings that are not in `left` from a group's posts; return their number."""
        withheld = posts = 0
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            found = self._db.execute("SELECT id, longest_row, body FROM post WHERE group_id = ?", (group_id,))
            for identity, longest_row, body in found.fetchall():
                part, out = part_without(
                    # A row without a sibling has unknown versions.
                    Part(body=body, longest_row=longest_row),
                    lambda row: not teaches_nothing(row) and (row.override or {}).get("sibling") not in left,
                )
                withheld, posts = withheld + out, posts + (part is not None)
                if part is None:
                    self._db.execute("DELETE FROM post WHERE id = ?", (identity,))
                elif out:
                    self.replace(identity, part)
            self._db.execute(
                "UPDATE weights SET posts = ?, versions = ? WHERE group_id = ?",
                (posts, orjson.dumps([*left.items()]).decode(), group_id),
            )
            self._forget_weights()
        return withheld

    def postpone(self, post: Post) -> None:
        self._db.execute("UPDATE post SET tries = tries + 1 WHERE id = ?", (post.id,))

    def mark_sent(self, post: Post) -> None:
        self._db.execute(
            "UPDATE post SET sent = (SELECT coalesce(max(sent), 0) + 1 FROM post) WHERE id = ?", (post.id,)
        )

    def _forget_weights(self) -> None:
        self._db.execute("DELETE FROM weights WHERE group_id NOT IN (SELECT group_id FROM post)")

    def sent_posts(self) -> list[int]:
        return [
            row[0] for row in self._db.execute("SELECT id FROM post WHERE sent IS NOT NULL ORDER BY sent")
        ]

    def record_registration(self, env_id: int, *, forgot: bool) -> int:
        """Save our number at the API; if it `forgot` its posts, queue them again and return how many."""
        # This must survive a power cut too, or lost posts would never be sent again.
        self._db.execute("PRAGMA synchronous = FULL")
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            lost = 0
            if forgot:
                lost = self._db.execute("UPDATE post SET sent = NULL WHERE sent IS NOT NULL").rowcount
            self.remember("env_id", str(env_id))
        self._db.execute("PRAGMA synchronous = NORMAL")
        return lost

    def replace(self, identity: int, part: Part) -> None:
        self._db.execute(
            "UPDATE post SET body = ?, longest_row = ? WHERE id = ?", (part.body, part.longest_row, identity)
        )

    def remove(self, ids: Iterable[int]) -> None:
        each = [(identity,) for identity in ids]
        never_sent = "SELECT group_id FROM post WHERE id = ? AND sent IS NULL"
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                f"UPDATE weights SET posts = posts - 1 WHERE group_id IN ({never_sent})", each
            )
            self._db.executemany("DELETE FROM post WHERE id = ?", each)
            self._forget_weights()

    def reject(self, post: Post, reason: str) -> None:
        rows = orjson.Fragment(post_text(post.part.body))
        self.note_rejected(post.group_id, reason, part=post.number, post=rows)
        self.remove([post.id])

    def start_over(self, reason: str) -> int:
        """Reject every post and restart the plan; return the number of posts."""
        count = len(self)
        for (identity,) in self._db.execute("SELECT id FROM post ORDER BY id").fetchall():
            post = self._select("WHERE id = ?", identity)
            assert post is not None
            self.reject(post, reason)
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("DELETE FROM finished")
            self._db.execute("DELETE FROM fact WHERE name IN ('place', 'met')")
        return count

    def note_rejected(self, group_id: str, reason: str, **details: object) -> None:
        # An error may quote text that is not valid Unicode.
        reason = reason[:_REASON_CHARS].encode("utf-8", "backslashreplace").decode()
        line = {"time": time(), "group_id": group_id, "reason": reason, **details}
        if self.rejected_path.exists():
            self.rejected_path.chmod(_PRIVATE)
        fd = os.open(self.rejected_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _PRIVATE)
        try:
            view = memoryview(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def waiting_groups(self) -> int:
        return self._count("SELECT count(DISTINCT group_id) FROM post WHERE sent IS NULL")

    def waiting_posts(self) -> int:
        return self._count("SELECT count(*) FROM post WHERE sent IS NULL")

    def __len__(self) -> int:
        return self._count("SELECT count(*) FROM post")

    def fact(self, name: Fact) -> str | None:
        row = self._db.execute("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def remember(self, name: Fact, value: str) -> None:
        try:
            self._db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, value))
        except sqlite3.Error as error:
            raise RecordError(f"cannot write the outbox {self.path}: {error}") from error

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _finish(self, number: int) -> None:
        self._db.execute("INSERT OR IGNORE INTO finished VALUES (?)", (number,))
        before = first = self.first_unfinished()
        while self._db.execute("DELETE FROM finished WHERE number = ?", (first,)).rowcount:
            first += 1
        if first != before:
            self.remember("place", str(first))

    def _count(self, query: str) -> int:
        return self._db.execute(query).fetchone()[0]


Result = TypeVar("Result")


class OutboxThread:
    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        """Usable before the thread runs."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outbox")

    async def __call__(self, work: Callable[[Outbox], Result]) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, self.outbox)
        except (sqlite3.Error, OSError) as error:
            raise RecordError(
                f"cannot write the outbox {self.outbox.path} or its file of rejected posts: {error}"
            ) from error

    def close(self) -> None:
        self._thread.shutdown()
