"""The place of each batch in the spool's log, in a SQLite database. Memory does not grow with the number of batches.

The index can be rebuilt from the log, so its commits do not wait for the disk (WAL, synchronous=NORMAL). After a power
cut it is intact, but may be older than the log; ``bridge.spool.recovery`` adds the difference. Called from the spool's
thread only.
"""

import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from zlib import crc32

from bridge.errors import SpoolError
from bridge.spool.record import ID_BITS
from config.error_words import NO_ROOM

FORMAT: Final = 1
_APPLICATION_ID: Final = 0x4D4B4753  # "MKGS"
_VACUUM_PAGES: Final = 256  # 1 MiB of free pages: below, shrinking the file is not worth a write
_SCHEMA: Final = """
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE partitions (number INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL,
                         last INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE segments (number INTEGER PRIMARY KEY, end INTEGER NOT NULL, damaged INTEGER NOT NULL,
                       crc INTEGER NOT NULL);
CREATE TABLE batches (id INTEGER PRIMARY KEY, segment INTEGER NOT NULL, offset INTEGER NOT NULL,
                      size INTEGER NOT NULL, messages INTEGER NOT NULL, opened_ms INTEGER NOT NULL,
                      crc INTEGER NOT NULL);
"""


_ROW: Final = struct.Struct("<6q")


class DamagedError(sqlite3.DatabaseError):
    """SQLite reports no error, but a row differs from what was stored."""


class Row(NamedTuple):
    """A batch in the index. Its checksum, of the six numbers, is made and checked here."""

    id: int
    segment: int
    offset: int
    size: int
    messages: int
    opened_ms: int


@dataclass(slots=True)
class Sums:
    """Totals of a partition's batches."""

    batches: int = 0
    messages: int = 0
    bytes: int = 0
    oldest_ms: int = 0  # of the first batch


class Totals(NamedTuple):
    """Batches on disk of a partition."""

    topic: str
    partition: int
    batches: int
    messages: int
    bytes: int
    oldest_ms: int


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error means a damaged database, not a full or failing disk."""
    if isinstance(error, DamagedError):
        return True
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_FORMAT}


def _text(text: bytes) -> str:
    return text.decode(errors="replace")  # the checksum finds the damage


def _checksum(*values: int | str) -> int:
    return crc32(repr(values).encode())


def _row_checksum(*numbers: int) -> int:
    """The checksum of a batch's row, in a quarter of the time: a start may check a million."""
    try:
        return crc32(_ROW.pack(*numbers))
    except struct.error:
        return -1  # damage: it is no number


def is_full(error: Exception) -> bool:
    """Whether an error means a full or failing disk."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
    return isinstance(error, OSError) and error.errno in NO_ROOM


class Index:
    """The open database. Every method may raise sqlite3.Error."""

    def __init__(self, path: Path, instance: str) -> None:
        """Open the database, or create it. Raises SpoolError for a newer format, and sqlite3.Error."""
        self.path = path
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
        try:
            self._prepare(instance)
        except BaseException:
            self._db.close()
            raise

    @classmethod
    def read_only(cls, path: Path) -> Self:
        """Open the database read-only, also while another process writes it. Close it with ``release``."""
        index = cls.__new__(cls)
        index.path = path
        index._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)  # noqa: SLF001 - its own
        index._db.text_factory = _text  # noqa: SLF001
        return index

    def release(self) -> None:
        """Close the database without a write."""
        self._db.close()

    def _prepare(self, instance: str) -> None:
        """Check the format, or create the tables, and set the connection's options. Raises as ``__init__``."""
        run = self._db.execute
        self._db.text_factory = _text
        run("PRAGMA cache_size = -512")  # KiB of memory; few pages are in use
        version, application = self._number("user_version"), self._number("application_id")
        if version > FORMAT:
            raise SpoolError(
                f"{self.path} has the spool's format {version}; this gateway knows {FORMAT}. A newer gateway wrote it: "
                "run that one until the spool is empty, or move the folder away."
            )
        if version == 0 and self._number("schema_version") == 0:
            self._create(instance)
        elif application != _APPLICATION_ID:
            raise DamagedError(f"{self.path} is not the index of a spool")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        run("PRAGMA wal_autocheckpoint = 256")  # 1 MiB
        run("PRAGMA journal_size_limit = 1048576")

    def _create(self, instance: str) -> None:
        """Create the tables in an empty file."""
        run = self._db.execute
        run("PRAGMA journal_mode = DELETE")  # the file itself has its application id from the start
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
        """A transaction: commits at the end of the block, or undoes everything."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def sound(self) -> bool:
        """Whether the database's own check finds no error."""
        return bool(self._db.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")

    def fact(self, key: str) -> str:
        """A stored fact; "" if there is none."""
        found = self._db.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return str(found[0]) if found else ""

    def imported(self, export: str) -> int:
        """The number of batches of an export that are stored already."""
        return int(self.fact(f"import {export}") or 0)

    def note(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, value))

    def partitions(self) -> list[tuple[int, str, int, int]]:
        """Number, topic, partition and last sequence number of each partition that ever had a batch."""
        return [(n, topic, p, last) for n, topic, p, last in self._checked("SELECT * FROM partitions")]

    def segments(self) -> list[tuple[int, int, int]]:
        """Number, indexed end, and whether it is damaged, of each segment."""
        return [(n, end, damaged) for n, end, damaged in self._checked("SELECT * FROM segments ORDER BY number")]

    def survey(self) -> tuple[dict[int, Sums], dict[int, list[int]]]:
        """Totals by partition number; batches and bytes by segment. Reads and checks the whole index."""
        sums: dict[int, Sums] = {}
        live: dict[int, list[int]] = {}
        for id_, segment, _, size, messages, opened_ms in self._checked("SELECT * FROM batches ORDER BY id"):
            found = sums.get(id_ >> ID_BITS)
            if found is None:
                found = sums[id_ >> ID_BITS] = Sums(oldest_ms=opened_ms)
            found.batches += 1
            found.messages += messages
            found.bytes += size
            counts = live.setdefault(segment, [0, 0])
            counts[0] += 1
            counts[1] += size
        return sums, live

    def add(self, rows: Sequence[Row], partitions: Sequence[tuple[int, str, int, int]]) -> None:
        """Add batches, and update their partitions. Within a transaction."""
        self._db.executemany(
            "INSERT OR IGNORE INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)", [(*row, _row_checksum(*row)) for row in rows]
        )
        self._db.executemany(
            "REPLACE INTO partitions VALUES (?, ?, ?, ?, ?)", [(*known, _checksum(*known)) for known in partitions]
        )

    def set_segment(self, segment: int, end: int, *, damaged: bool) -> None:
        """Note that a segment is indexed up to ``end``, and whether its file is kept when no batch needs it."""
        known = (segment, end, int(damaged))
        self._db.execute("REPLACE INTO segments VALUES (?, ?, ?, ?)", (*known, _checksum(*known)))

    def set_damaged(self, segment: int) -> None:
        """Keep the file of a segment when no batch needs it. Within a transaction."""
        for number, end, _ in self._checked("SELECT * FROM segments WHERE number = ?", segment):
            self.set_segment(number, end, damaged=True)

    def forget_segment(self, segment: int) -> None:
        self._db.execute("DELETE FROM segments WHERE number = ?", (segment,))

    def rows(self, after: int, last: int, limit: int) -> list[Row]:
        """Batches with ids after the one and up to the other, in order."""
        found = self._checked("SELECT * FROM batches WHERE id > ? AND id <= ? ORDER BY id LIMIT ?", after, last, limit)
        return [Row(*row) for row in found]

    def count(self, after: int, last: int) -> tuple[int, int]:
        """Batches and messages with ids above ``after``, up to and with ``last``."""
        found = self._db.execute(
            "SELECT count(*), coalesce(sum(messages), 0) FROM batches WHERE id > ? AND id <= ?", (after, last)
        ).fetchone()
        return int(found[0]), int(found[1])

    def of_partition(self, number: int) -> Iterator[Row]:
        span = (number << ID_BITS, (number + 1) << ID_BITS)
        for row in self._checked("SELECT * FROM batches WHERE id > ? AND id < ? ORDER BY id", *span):
            yield Row(*row)

    def in_segment(self, segment: int) -> list[Row]:
        """The batches of one segment. Reads the whole index."""
        return [Row(*row) for row in self._checked("SELECT * FROM batches WHERE segment = ? ORDER BY offset", segment)]

    def _checked(self, query: str, *values: int) -> Iterator[list[Any]]:
        """Rows without their checksum, the last column. Raises DamagedError where it is wrong."""
        checksum = _row_checksum if " FROM batches" in query else _checksum
        for *row, crc in self._db.execute(query, values):
            if crc != checksum(*row):
                raise DamagedError(f"An entry in {self.path} has changed: {row}")
            yield row

    def delete(self, first: int, last: int) -> list[tuple[int, int, int, int]]:
        """Delete a range of ids. Returns segment, batches, messages and bytes of the deleted ones."""
        span = (first, last)
        gone = self._db.execute(
            "SELECT segment, count(*), sum(messages), sum(size) FROM batches WHERE id BETWEEN ? AND ? GROUP BY segment",
            span,
        ).fetchall()
        if gone:
            self._db.execute("DELETE FROM batches WHERE id BETWEEN ? AND ?", span)
        return gone

    def move(self, row: Row, segment: int, offset: int) -> None:
        """Note a batch's new place. Within a transaction."""
        moved = row._replace(segment=segment, offset=offset)
        self._db.execute("REPLACE INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)", (*moved, _row_checksum(*moved)))

    def sync(self) -> None:
        """Make everything committed durable."""
        self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def shrink(self) -> None:
        """Return free pages to the disk when they are many."""
        if self._number("freelist_count") > _VACUUM_PAGES:
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close the database, with all data in its one file."""
        try:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self._db.close()
