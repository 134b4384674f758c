"""Compares the records of two topics, written by two bridges.

Digests of the records are matched in a database in a temporary file, with 150 bytes for each record. So memory stays at
some 150 MiB for topics of any size; the number of records is limited. Payloads are not kept.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self

from config.errors import ExitStatus, GatewayError

if TYPE_CHECKING:
    from gateway.tools.migration.identity import Reading

Side = Literal["left", "right"]

MOST_RECORDS: Final = 20_000_000
"""Most records of each side; both together need a temporary file of 6 GB."""
_EXAMPLES: Final = 5
_OFFSET_BITS: Final = 40  # a partition has less than a trillion records
_CACHE_KIB: Final = 64 * 1024
_BATCH: Final = 5000


class ComparisonError(GatewayError):
    """The comparison would exceed its limits."""


@dataclass(frozen=True, slots=True)
class Span:
    """The compared records: timestamps from ``since_ms`` to before ``until_ms`` (milliseconds since 1970).

    Bridges stamp a message at different moments. So records around the span are read too: they may match, but do not
    count as missing. Matches of records since ``recent_ms`` may still be on their way."""

    since_ms: int
    until_ms: int
    recent_ms: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result. *Different* messages are counted by identity; ``…_duplicates`` are records beyond the first of an
    identity. ``only_…`` are different messages without a match, ``recent`` those of the left that may still get one.
    ``differing_…`` compares the first record of each side. ``behind``: a device's messages that the right has behind a
    message that follows them on the left. ``uncomparable``: messages of devices that are spread over partitions, so
    that one side has no order. ``is_named``: equal records are copies of one message, which has an identity of its own;
    else each may be a message."""

    left_records: int
    right_records: int
    left_different: int
    right_different: int
    is_named: bool
    left_duplicates: int
    right_duplicates: int
    left_unnamed: int
    right_unnamed: int
    matched: int
    only_left: int
    only_right: int
    recent: int
    fewer_copies: int
    differing_values: int
    differing_keys: int
    differing_headers: int
    devices: int
    devices_out_of_order: int
    behind: int
    uncomparable: int
    only_left_examples: tuple[str, ...]
    only_right_examples: tuple[str, ...]
    differing_examples: tuple[str, ...]
    order_examples: tuple[str, ...]

    @property
    def exit_status(self) -> ExitStatus:
        if self.only_left:
            return ExitStatus.MISSING_MESSAGES
        is_vague = self.fewer_copies and not self.is_named
        if self.recent or self.left_unnamed or not self.left_different or is_vague:
            return ExitStatus.UNJUDGED
        return ExitStatus.OK


class Table:
    """The database; a context manager. ``add`` both sides, then ``compare``."""

    def __init__(self, folder: Path) -> None:
        self._database = sqlite3.connect(folder / "compare.sqlite", check_same_thread=False)
        self._rows: list[tuple[object, ...]] = []
        self.records = {"left": 0, "right": 0}
        self.unnamed = {"left": 0, "right": 0}
        for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}", "temp_store = FILE"):
            self._database.execute(f"PRAGMA {pragma}").fetchall()
        for side in ("left", "right"):
            self._database.execute(
                f"CREATE TABLE {side}_all (id BLOB, place INTEGER, ms INTEGER, device BLOB, key BLOB, value BLOB, "
                "headers BLOB)"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def add(self, side: Side, partition: int, offset: int, timestamp_ms: int, reading: Reading) -> None:
        """Add a record. Raises ComparisonError if there are too many."""
        self.records[side] += 1
        if self.records[side] > MOST_RECORDS:
            raise ComparisonError(
                f"The {side} topic has more than {MOST_RECORDS:,} records in this span. Compare less at a time: "
                "--since, --until."
            )
        if reading.identity is None:
            self.unnamed[side] += 1
            return
        place = partition << _OFFSET_BITS | offset
        self._rows.append(
            (reading.identity, place, timestamp_ms, reading.device, reading.key, reading.value, reading.headers)
        )
        if len(self._rows) >= _BATCH:
            self.flush(side)

    def flush(self, side: Side) -> None:
        """Write the rest of a side, after its last record."""
        self._database.executemany(f"INSERT INTO {side}_all VALUES (?, ?, ?, ?, ?, ?, ?)", self._rows)
        self._rows.clear()

    def compare(self, span: Span, topics: tuple[str, str], *, is_named: bool) -> Comparison:
        """Match the two sides. Blocks while it sorts. ``is_named``: each message has an identity of its own."""
        for side in ("left", "right"):
            # SQLite takes the other columns from the row with the smallest place, if no second MIN stands beside.
            self._database.execute(
                f"CREATE TABLE {side} AS SELECT id, MIN(place) AS place, COUNT(*) AS copies, ms, "
                f"device, key, value, headers FROM {side}_all GROUP BY id"
            )
            self._database.execute(f"CREATE UNIQUE INDEX {side}_id ON {side} (id)")
            self._database.execute(
                f"UPDATE {side} SET ms = early.ms FROM (SELECT id, MIN(ms) AS ms FROM {side}_all "
                f"WHERE id IN (SELECT id FROM {side} WHERE copies > 1) GROUP BY id) AS early WHERE {side}.id = early.id"
            )
            self._database.execute(f"DROP TABLE {side}_all")
        within = f"ms >= {span.since_ms} AND ms < {span.until_ms}"
        lone_left = f"FROM left WHERE {within} AND id NOT IN (SELECT id FROM right)"
        lone_right = f"FROM right WHERE {within} AND id NOT IN (SELECT id FROM left)"
        settled = f"AND ms < {span.recent_ms}"
        counted = (
            f"FROM left JOIN right ON left.id = right.id WHERE left.ms >= {span.since_ms} AND left.ms < {span.until_ms}"
        )
        differing = "(left.value != right.value OR left.key != right.key)"
        order = _Order()
        for row in self._query(
            f"SELECT right.device, right.place, left.place {counted} ORDER BY right.device, right.place"
        ):
            order.take(*row)
        order.end()
        return Comparison(
            left_records=self.records["left"],
            right_records=self.records["right"],
            left_different=self._count(f"FROM left WHERE {within}"),
            right_different=self._count(f"FROM right WHERE {within}"),
            is_named=is_named,
            left_duplicates=self._sum("copies - 1", f"FROM left WHERE {within}"),
            right_duplicates=self._sum("copies - 1", f"FROM right WHERE {within}"),
            left_unnamed=self.unnamed["left"],
            right_unnamed=self.unnamed["right"],
            matched=self._count(counted),
            only_left=self._count(f"{lone_left} {settled}"),
            only_right=self._count(f"{lone_right} {settled}"),
            recent=self._count(f"{lone_left} AND ms >= {span.recent_ms}"),
            fewer_copies=self._sum("left.copies - right.copies", f"{counted} AND left.copies > right.copies"),
            differing_values=self._count(f"{counted} AND left.value != right.value"),
            differing_keys=self._count(f"{counted} AND left.key != right.key"),
            differing_headers=self._count(f"{counted} AND left.headers != right.headers"),
            devices=order.devices,
            devices_out_of_order=order.devices_out_of_order,
            behind=order.behind,
            uncomparable=order.uncomparable,
            only_left_examples=self._places(topics[0], f"SELECT place {lone_left} {settled}"),
            only_right_examples=self._places(topics[1], f"SELECT place {lone_right} {settled}"),
            differing_examples=tuple(
                f"{_place(topics[0], left)} and {_place(topics[1], right)}"
                for left, right in self._query(
                    f"SELECT left.place, right.place {counted} AND {differing} ORDER BY left.place LIMIT {_EXAMPLES}"
                )
            ),
            order_examples=tuple(_place(topics[1], place) for place in order.examples),
        )

    def _query(self, text: str) -> Iterator[tuple[int, ...]]:
        return iter(self._database.execute(text))

    def _count(self, source: str) -> int:
        ((count,),) = self._query(f"SELECT COUNT(*) {source}")
        return count

    def _sum(self, what: str, source: str) -> int:
        ((total,),) = self._query(f"SELECT COALESCE(SUM({what}), 0) {source}")
        return total

    def _places(self, topic: str, text: str) -> tuple[str, ...]:
        return tuple(_place(topic, row[0]) for row in self._query(f"{text} ORDER BY place LIMIT {_EXAMPLES}"))


class _Order:
    """Compares the order of each device's matched records on both sides."""

    def __init__(self) -> None:
        self.devices = self.devices_out_of_order = self.behind = self.uncomparable = 0
        self.examples: list[int] = []
        self._device: object = None
        self._right = self._left = -1  # the device's partitions
        self._highest = -1  # place on the left among the device's messages so far
        self._disordered = False

    def take(self, device: object, right: int, left: int) -> None:
        """Take the places of a message on both sides. They come by device, then by the place on the right."""
        if device != self._device:
            self.end()
            self.devices += 1
            self._device = device
            self._right, self._left, self._highest = right >> _OFFSET_BITS, left >> _OFFSET_BITS, -1
        if right >> _OFFSET_BITS != self._right or left >> _OFFSET_BITS != self._left:
            self.uncomparable += 1
        elif left < self._highest:
            self.behind += 1
            self._disordered = True
            if len(self.examples) < _EXAMPLES:
                self.examples.append(right)
        else:
            self._highest = left

    def end(self) -> None:
        """End the last device."""
        self.devices_out_of_order += self._disordered
        self._disordered = False


def _place(topic: str, place: int) -> str:
    return f"{topic}/{place >> _OFFSET_BITS}:{place & (1 << _OFFSET_BITS) - 1}"
