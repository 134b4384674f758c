"""Where each batch of the spool's log stands: a SQLite database, so that a million of them need no memory.

It can be made anew from the log, so its commits do not wait for the disk (WAL, synchronous=NORMAL): after a power cut
it is whole but may be older than the log. ``spool_recovery`` makes good for that. Called from the spool's thread only.
"""

from __future__ import annotations

__all__ = ["Index", "Row", "is_damage"]

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from bridge.errors import SpoolError
from bridge.spool_record import ID_BITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FORMAT: Final = 1
_APPLICATION_ID: Final = 0x4D4B4753  # "MKGS"
_VACUUM_PAGES: Final = 256  # 1 MiB of free pages: below, shrinking the file is not worth a write
_SCHEMA: Final = """
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE partitions (number INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL,
                         last INTEGER NOT NULL);
CREATE TABLE segments (number INTEGER PRIMARY KEY, end INTEGER NOT NULL, damaged INTEGER NOT NULL DEFAULT 0);
CREATE TABLE batches (id INTEGER PRIMARY KEY, segment INTEGER NOT NULL, offset INTEGER NOT NULL,
                      size INTEGER NOT NULL, messages INTEGER NOT NULL, opened_ms INTEGER NOT NULL);
"""


class Row(NamedTuple):
    """A batch in the index."""

    id: int
    segment: int
    offset: int
    size: int
    messages: int
    opened_ms: int


class Sums(NamedTuple):
    """Batches of a partition, or of a segment, put together."""

    number: int
    batches: int
    messages: int
    bytes: int
    oldest_ms: int


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that the database itself is broken, not that the disk is full or fails."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_FORMAT}


class Index:
    """The database, open. Every method may raise sqlite3.Error."""

    def __init__(self, path: Path, instance: str) -> None:
        self.path = path
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
        try:
            self._prepare(instance)
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, instance: str) -> None:
        run = self._db.execute
        run("PRAGMA cache_size = -512")  # KiB: its size is memory, and the pages in use are few
        version, application = self._number("user_version"), self._number("application_id")
        if version > FORMAT:
            raise SpoolError(
                f"{self.path} has the spool's format {version}; this gateway knows {FORMAT}. A newer gateway wrote it: "
                "run that one until the spool is empty, or move the folder away."
            )
        if version == 0 and self._number("schema_version") == 0:
            self._create(instance)
        elif application != _APPLICATION_ID:
            raise SpoolError(f"{self.path} is no spool but another program's database. Move it away.")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        run("PRAGMA wal_autocheckpoint = 256")  # 1 MiB
        run("PRAGMA journal_size_limit = 1048576")
        owner = self.fact("instance")
        if owner != instance:
            raise SpoolError(
                f"The spool in {self.path.parent} belongs to instance {owner!r}, not {instance!r}. Set data_dir or "
                "instance right; to deliver what another instance left, use gateway spool export and import."
            )

    def _create(self, instance: str) -> None:
        run = self._db.execute
        run("PRAGMA journal_mode = DELETE")  # so that what the file is stands in the file itself from the start
        with self.transaction():
            for statement in _SCHEMA.split(";"):
                run(statement)
            run("INSERT INTO facts VALUES ('instance', ?)", (instance,))
            run(f"PRAGMA application_id = {_APPLICATION_ID}")
            run(f"PRAGMA user_version = {FORMAT}")

    def _number(self, pragma: str) -> int:
        return int(self._db.execute(f"PRAGMA {pragma}").fetchone()[0])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def sound(self) -> bool:
        """Whether the database's own check finds nothing."""
        return bool(self._db.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")

    def fact(self, key: str) -> str:
        """A stored fact; "" if there is none."""
        found = self._db.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return str(found[0]) if found else ""

    def note(self, key: str, value: str) -> None:
        """Store a fact."""
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, value))

    def partitions(self) -> list[tuple[int, str, int, int]]:
        """Number, topic, partition and last sequence number of each partition that ever had a batch."""
        return self._db.execute("SELECT number, topic, partition, last FROM partitions").fetchall()

    def sums(self) -> list[Sums]:
        """What is stored for each partition number. Reads the whole index."""
        rows = self._db.execute(
            f"SELECT id >> {ID_BITS} AS n, count(*), sum(messages), sum(size), min(opened_ms) FROM batches GROUP BY n"  # noqa: S608 - a constant
        )
        return [Sums(*row) for row in rows]

    def live(self) -> dict[int, list[int]]:
        """Batches and bytes that are needed of each segment. Reads the whole index."""
        rows = self._db.execute("SELECT segment, count(*), sum(size) FROM batches GROUP BY segment")
        return {segment: [batches, size] for segment, batches, size in rows}

    def segments(self) -> list[tuple[int, int, int]]:
        """Number, indexed end, and whether it is damaged, of each segment."""
        return self._db.execute("SELECT number, end, damaged FROM segments ORDER BY number").fetchall()

    def add(self, rows: Sequence[Row], partitions: Sequence[tuple[int, str, int, int]]) -> None:
        """Add batches, and what is known of their partitions. Within a transaction."""
        self._db.executemany("INSERT OR IGNORE INTO batches VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._db.executemany(
            "INSERT INTO partitions VALUES (?, ?, ?, ?) "
            "ON CONFLICT (number) DO UPDATE SET last = max(last, excluded.last)",
            partitions,
        )

    def set_end(self, segment: int, end: int) -> None:
        """Everything of a segment up to there is indexed. Within a transaction."""
        self._db.execute(
            "INSERT INTO segments (number, end) VALUES (?, ?) ON CONFLICT (number) DO UPDATE SET end = excluded.end",
            (segment, end),
        )

    def set_damaged(self, segment: int) -> None:
        """Keep the file of a segment when it is no longer needed."""
        self._db.execute("UPDATE segments SET damaged = 1 WHERE number = ?", (segment,))

    def forget_segment(self, segment: int) -> None:
        """A segment is not there any more."""
        self._db.execute("DELETE FROM segments WHERE number = ?", (segment,))

    def rows(self, after: int, last: int, limit: int) -> list[Row]:
        """Batches with ids after the one and up to the other, in order."""
        rows = self._db.execute(
            "SELECT * FROM batches WHERE id > ? AND id <= ? ORDER BY id LIMIT ?", (after, last, limit)
        )
        return [Row(*row) for row in rows]

    def in_segment(self, segment: int) -> list[Row]:
        """The batches of one segment. Reads the whole index."""
        rows = self._db.execute("SELECT * FROM batches WHERE segment = ? ORDER BY offset", (segment,))
        return [Row(*row) for row in rows]

    def delete(self, first: int, last: int) -> list[tuple[int, int, int, int]]:
        """Forget the batches of a range of ids; returns segment, batches, messages and bytes of what was there."""
        span = (first, last)
        gone = self._db.execute(
            "SELECT segment, count(*), sum(messages), sum(size) FROM batches WHERE id BETWEEN ? AND ? GROUP BY segment",
            span,
        ).fetchall()
        if gone:
            self._db.execute("DELETE FROM batches WHERE id BETWEEN ? AND ?", span)
        return gone

    def move(self, id_: int, segment: int, offset: int) -> None:
        """A batch stands elsewhere now."""
        self._db.execute("UPDATE batches SET segment = ?, offset = ? WHERE id = ?", (segment, offset, id_))

    def sync(self) -> None:
        """Make everything committed durable."""
        self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def shrink(self) -> None:
        """Give free pages back to the disk when that is worth it."""
        if self._number("freelist_count") > _VACUUM_PAGES:
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close it, all of it in the one file."""
        try:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self._db.close()
