"""A spool in memory (``bridge.ports.SpoolStore``) that outlives the gateway using it, and whose disk can fail.

``disk`` survives a crash, and is what a test looks at; what is appended is durable after ``latency_s``."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bridge.errors import SpoolFullError, SpoolWriteError
from bridge.spool.record import SpoolBatch
from bridge.spool.store import ReadResult, StoredBatch

FRAME_BYTES = 100


@dataclass
class FakeDisk:
    """What has been fsynced: batches by partition and id."""

    rows: dict[tuple[str, int], dict[int, SpoolBatch]] = field(default_factory=dict)
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def bytes(self) -> int:
        return sum(size_of(row) for rows in self.rows.values() for row in rows.values())

    @property
    def messages(self) -> int:
        return sum(row.messages for rows in self.rows.values() for row in rows.values())

    def batches(self) -> int:
        return sum(len(rows) for rows in self.rows.values())

    def since(self, row_id: int) -> list[tuple[int, SpoolBatch]]:
        """What was written after an id and is still there, in order."""
        return sorted((n, row) for rows in self.rows.values() for n, row in rows.items() if n > row_id and row.data)

    def destroy(self, topic: str, partition: int, row_id: int) -> int:
        """Flip a bit: the batch cannot be read any more. Returns its messages."""
        row = self.rows[topic, partition][row_id]
        self.rows[topic, partition][row_id] = SpoolBatch(**{name: getattr(row, name) for name in _FIELDS}, data=b"")
        return row.messages


_FIELDS = ("topic", "partition", "route", "qos", "dead_letter", "messages", "unfinished", "opened_ms")


def size_of(row: SpoolBatch) -> int:
    return len(row.data) + FRAME_BYTES


class FakeSpool:
    """One life's look at a disk."""

    def __init__(self, disk: FakeDisk, *, max_bytes: int = 1 << 30) -> None:
        self.disk = disk
        self.max_bytes = max_bytes
        self.latency_s: Callable[[], float] = lambda: 0.002
        self.fsync_s = 0.0  # what an append takes beyond that
        self._busy = asyncio.Lock()  # one thread does it all, one after the other
        self.fails: Callable[[], bool] = lambda: False
        self.crashed = False
        self.appends = 0

    @property
    def bytes(self) -> int:
        return self.disk.bytes

    def partitions(self) -> Iterable[tuple[str, int]]:
        return [place for place, rows in self.disk.rows.items() if rows]

    def waiting(self, topic: str, partition: int) -> int:
        return len(self.disk.rows.get((topic, partition), {}))

    def waiting_messages(self, topic: str, partition: int) -> int:
        return sum(row.messages for row in self.disk.rows.get((topic, partition), {}).values())

    async def append(self, batches: Sequence[SpoolBatch]) -> list[int]:
        self.appends += 1
        size = sum(size_of(batch) for batch in batches)
        if self.bytes + size > self.max_bytes:
            raise SpoolFullError("full")
        async with self._busy:
            await asyncio.sleep(self.latency_s() + self.fsync_s)
        if self.fails() or self.crashed:
            raise SpoolWriteError("No space left on device.")
        ids = []
        for batch in batches:
            rows = self.disk.rows.setdefault((batch.topic, batch.partition), {})
            number = next(self.disk.ids)
            assert not rows or number > max(rows)
            rows[number] = batch
            ids.append(number)
        await asyncio.sleep(self.latency_s() / 4)  # durable, and its writer does not know it yet
        return ids

    async def read(self, topic: str, partition: int, after_id: int, max_bytes: int) -> ReadResult:
        async with self._busy:
            await asyncio.sleep(self.latency_s())
        if self.fails():
            raise SpoolWriteError("Input/output error.")
        rows = self.disk.rows.get((topic, partition), {})
        found: list[StoredBatch] = []
        lost = lost_messages = size = 0
        for number in sorted(number for number in rows if number > after_id):
            row = rows[number]
            if not row.data:
                lost += 1
                lost_messages += row.messages
                del rows[number]
                continue
            if found and size + size_of(row) > max_bytes:
                break
            size += size_of(row)
            found.append(StoredBatch(number, row, size_of(row)))
        return ReadResult(found, lost, lost_messages)

    def remove(self, topic: str, partition: int, ids: Sequence[int]) -> None:
        if not self.crashed:
            for number in ids:
                del self.disk.rows[topic, partition][number]
