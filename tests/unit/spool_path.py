"""The data path with a spool, on a Kafka and a disk in memory."""

import asyncio
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any, Self

from bridge.produce.spooler import SpoolPolicy
from bridge.spool.record import SpoolBatch
from bridge.spool.recovery import SpoolReport
from bridge.spool.spool import Spool
from tests.unit.data_path import Path, value_of
from tests.unit.fake_kafka import FakeKafka
from tests.unit.fake_spool import FakeDisk, FakeSpool

S = 1_000_000_000


class SpoolPath(Path):
    """The data path with a spool."""

    def __init__(
        self,
        kafka: FakeKafka | None = None,
        disk: FakeDisk | None = None,
        *,
        led: bool = True,
        after_ns: int = S,
        acknowledges: bool = True,
        replay_bytes_per_s: int = 1 << 30,
        max_bytes: int = 1 << 30,
        takes: bool = True,
    ) -> None:
        super().__init__(kafka, led=led)
        self.withholds: Callable[[str], bool] = lambda _route: False
        self.disk = FakeDisk() if disk is None else disk
        self.spool = FakeSpool(self.disk, max_bytes=max_bytes)
        policy = SpoolPolicy(after_ns, acknowledges, replay_bytes_per_s, self.kafka.batch_bytes, takes=takes)
        self.spooler = self.pipeline.spool(self.spool, policy, self.ledger)
        self.pipeline.dead_letters(self.spooler.accumulator, self.dead_letter_plan, self._withheld)
        self.ledger._in_flight = lambda: self.accumulator.in_flight() + self.spooler.messages()

    def _withheld(self, route: str) -> bool:
        return self.withholds(route)

    async def __aenter__(self) -> Self:
        self.spooler.opened()
        await super().__aenter__()
        for queue in list(self.accumulator.partitions.queues.values()):
            self.sender.resume(queue)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.spooler.close()
        await super().__aexit__()

    async def crash(self) -> None:
        """The process is gone; the disk stays."""
        self.spool.crashed = True
        await self.__aexit__()

    def feed(self, first: int, count: int, topic: str = "t") -> list[bytes]:
        ids = [self.append(self.slot(topic), value_of(number)) for number in range(first, first + count)]
        self.flush()
        return ids

    async def fed(self, first: int, count: int, *, within_s: float = 600.0) -> None:
        """Feed, and wait until everything is acknowledged."""
        self.feed(first, count)
        await self.until(lambda: len(self.owner.released) == self.ledger.received, "acknowledged", within_s=within_s)

    async def feed_slowly(self, first: int, end: int, step: int, *, every_s: float) -> None:
        for number in range(first, end, step):
            self.feed(number, step)
            await asyncio.sleep(every_s)


def numbers(kafka: FakeKafka, topic: str = "t") -> list[int]:
    return [int((value or b"").rstrip(b".")) for value in kafka.topics[topic].values()]


async def opened_spool(folder: FilePath, *, max_bytes: int = 1 << 30, **more: Any) -> Spool:
    """The real one, on the disk."""
    spool = Spool(folder, max_bytes=max_bytes, instance="gw", **more)
    await spool.open()
    return spool


async def reopened(folder: FilePath) -> tuple[int, SpoolReport]:
    """What its next life finds: readable batches, and the report."""
    spool = Spool(folder, max_bytes=1 << 30, instance="gw")
    report = await spool.open()
    await spool.close()
    return spool.batches, report


async def read_batches(spool: Spool, topic: str = "telemetry") -> list[SpoolBatch]:
    """All of a topic's first partition."""
    return [stored.batch for stored in (await spool.read(topic, 0, 0, 1 << 30)).batches]


def open_files(folder: FilePath) -> list[FilePath]:
    """Of this process, below a folder."""
    return [file for file in FilePath("/proc/self/fd").iterdir() if folder in file.resolve().parents]
