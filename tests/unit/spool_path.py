"""The data path with a spool, on a Kafka and a disk in memory."""

from __future__ import annotations

__all__ = ["SpoolPath", "numbers"]

from typing import TYPE_CHECKING, Self

from bridge.produce.dead_letter import DeadLetters
from bridge.produce.spooler import Spooler, SpoolPolicy
from tests.unit.data_path import DEAD_LETTERS, Path, value_of
from tests.unit.fake_spool import FakeDisk, FakeSpool

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.fake_kafka import FakeKafka

S = 1_000_000_000


class SpoolPath(Path):
    """The data path with a spool."""

    def __init__(
        self,
        kafka: FakeKafka,
        disk: FakeDisk | None = None,
        *,
        after_ns: int = S,
        acknowledges: bool = True,
        replay_bytes_per_s: int = 1 << 30,
        max_bytes: int = 1 << 30,
        takes: bool = True,
    ) -> None:
        super().__init__(kafka)
        self.withholds: Callable[[str], bool] = lambda _route: False
        self.disk = FakeDisk() if disk is None else disk
        self.spool = FakeSpool(self.disk, max_bytes=max_bytes)
        self.spooler = Spooler(
            self.spool,
            self.accumulator.partitions,
            lambda: self.sender.producer,
            SpoolPolicy(after_ns, acknowledges, replay_bytes_per_s, kafka.batch_bytes, takes=takes),
            self.ledger,
            self.sender.resume,
            self.clock_ns,
            self.fatal.append,
        )
        DeadLetters(
            self.spooler.accumulator,
            DEAD_LETTERS,
            instance="gw",
            partition_count=self.partition_count,
            max_record_bytes=4096,
            made=self._made,
            withholds=self._withheld,
            now_ms=self.wall_ms,
        )
        self.sender.spooler = self.spooler
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


def numbers(kafka: FakeKafka, topic: str = "t") -> list[int]:
    return [int((value or b"").rstrip(b".")) for value in kafka.topics[topic].values()]
