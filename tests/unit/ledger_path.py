"""The data path on a Kafka in memory, with the ledger topic written and verified, for as many lives as a test wants."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Self

from bridge import wire
from bridge.ledger_topic.intervals import LedgerIntervals
from bridge.ledger_topic.records import Author, LedgerRecord, decode
from bridge.ledger_topic.writer import LedgerPlan, LedgerWriter
from bridge.produce.batch import Batch
from bridge.produce.partitioner import partition_for
from gateway.tools.verify.check import Span, Verdict, verify
from gateway.tools.verify.log import FoundRecord, LedgerRow, PartitionView, TopicView
from tests.unit.data_path import Path
from tests.unit.fake_kafka import FakeKafka

GATEWAY = "gw"
LEDGER = "ledger"
INTERVAL_MS = 60_000
TAG = [(wire.GATEWAY_ID, GATEWAY.encode())]


def ledger_records(kafka: FakeKafka) -> list[LedgerRecord]:
    """Everything on the ledger topic, a partition after the other."""
    return [decode(record.value) for record in kafka.topics[LEDGER].records()]


class LedgerPath(Path):
    """``async with`` runs a life; ``crash()`` in its block lets it end without a word."""

    def __init__(
        self, kafka: FakeKafka | None = None, life: str = "life", *, before: tuple[str, bool] | None = None, **more: Any
    ) -> None:
        kafka = FakeKafka("t", 2) if kafka is None else kafka
        if LEDGER not in kafka.topics:
            kafka.topic(LEDGER, 3)
        super().__init__(kafka, **more)
        self.loop = asyncio.get_running_loop()
        self.intervals = LedgerIntervals()
        self.renewals: list[str] = []
        previous, clean = before or (None, None)
        author = Author(GATEWAY, 0, life, self.now_ms(), previous, clean)
        self.writer = LedgerWriter(
            LedgerPlan(LEDGER, INTERVAL_MS, frozenset({self.route})), author, self.intervals, self.ledger,
            producer=lambda: self.sender.producer, renew=self._renew, now_ms=self.now_ms,
        )  # fmt: skip
        self.written: bool | None = None
        self._crashed = False
        told = self.observer.batch_stored

        def stored(batch: Batch, partition: int, offset: int, now_ns: int) -> None:
            self.intervals.stored(batch, partition, offset)
            told(batch, partition, offset, now_ns)

        self.observer.batch_stored = stored  # type: ignore[method-assign]

    def now_ms(self) -> int:
        return round(self.loop.time() * 1000)

    def _renew(self, reason: str) -> None:
        self.renewals.append(reason)
        self.sender.renew(reason)

    def crash(self) -> None:
        """Write nothing more; the rest ends when the block does."""
        self._crashed = True
        self.writer._task.cancel()
        self.writer._timer.cancel()

    async def __aenter__(self) -> Self:  # type: ignore[override]
        await super().__aenter__()
        self.writer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._crashed:
            # Its deadline is by the real clock, its waiting by the loop's.
            self.written = await self.writer.stop(time.monotonic_ns() + 60_000_000_000)
        await super().__aexit__()

    async def deliver(self, topic: str, count: int, *, partition: int = 0, tagged: bool = True) -> None:
        """Take in messages, of which each is a batch, and wait until they are durable."""
        for number in range(count):
            self.append(
                self.slot(topic, partition),
                b"%d" % number,
                headers=list(TAG) if tagged else [],
                timestamp=self.now_ms(),
            )
            self.flush()
        await self.drained()

    async def deliver_interval(self, topic: str, count: int) -> None:
        await self.deliver(topic, count)
        await self.interval()

    async def interval(self) -> None:
        """Let time pass until the next interval is closed and written."""
        left_ms = INTERVAL_MS - self.now_ms() % INTERVAL_MS
        await asyncio.sleep(left_ms / 1000 + 0.001)
        await self.until(lambda: not self.writer.waiting, "written")


class FakeLog:
    """``KafkaReader`` on a FakeKafka. ``starts`` are partitions' first offsets, ``deleted`` offsets that are gone from
    the middle, ``settings`` a topic's."""

    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka = kafka
        self.starts: dict[tuple[str, int], int] = {}
        self.deleted: set[tuple[str, int, int]] = set()
        self.settings: dict[str, dict[str, Any]] = {}
        self.read = 0
        self.leaderless: set[tuple[str, int]] = set()

    async def topic(self, name: str) -> TopicView | None:
        topic = self.kafka.topics.get(name)
        if topic is None:
            return None
        views = {
            number: PartitionView(self.starts.get((name, number), 0), len(partition.log))
            for number, partition in enumerate(topic.partitions)
            if (name, number) not in self.leaderless
        }
        return TopicView(views, **self.settings.get(name, {"retention_ms": 7 * 86_400_000}))

    async def start_of(self, topic: str, partition: int) -> int:
        return self.starts.get((topic, partition), 0)

    async def ledger_horizon_ms(self, topic: str) -> int:
        logs = [partition.log for partition in self.kafka.topics[topic].partitions]
        starts = [self.starts.get((topic, number), 0) for number in range(len(logs))]
        firsts = [log[start:] for log, start in zip(logs, starts, strict=True) if start]
        return max((log[0].timestamp_ms if log else 1 << 62 for log in firsts), default=0)

    async def ledger(self, topic: str, since_ms: int | None) -> AsyncIterator[LedgerRow]:
        for number, partition in enumerate(self.kafka.topics[topic].partitions):
            if (topic, number) in self.leaderless:
                continue
            for offset, record in enumerate(partition.log):
                if offset < self.starts.get((topic, number), 0) or (topic, number, offset) in self.deleted:
                    continue
                if (since_ms or 0) <= record.timestamp_ms:
                    yield LedgerRow(number, record.key or b"", record.value)

    async def records(self, topic: str, partition: int, first: int, end: int) -> AsyncIterator[list[FoundRecord]]:
        log = self.kafka.topics[topic].partitions[partition].log
        start = max(first, self.starts.get((topic, partition), 0))
        found = [
            FoundRecord(offset, log[offset].timestamp_ms, TAG[0] in log[offset].headers)
            for offset in range(start, min(end, len(log)))
            if (topic, partition, offset) not in self.deleted
        ]
        self.read += len(found)
        for at in range(0, len(found), 3):
            yield found[at : at + 3]

    async def verify(self, *, span: Span | None = None, now_ms: int | None = None) -> Verdict:
        loop = asyncio.get_running_loop()
        return await verify(
            self, gateway=GATEWAY, ledger_topic=LEDGER, span=span or Span(), interval_ms=INTERVAL_MS,
            now_ms=round(loop.time() * 1000) if now_ms is None else now_ms,
        )  # fmt: skip


def ledger_partition(key: bytes) -> int:
    """Where the ledger keeps a key."""
    return partition_for(key, 3)
