"""A disk that is slower than Kafka: the spool is left again, nothing is lost or overtaken, and memory stays bounded."""

import asyncio

import pytest

from bridge.produce.partitions import Backlog, BacklogState
from gateway.mqtt.flow import Flow
from tests.unit.data_path import Owner, value_of
from tests.unit.fake_kafka import FakeKafka
from tests.unit.manual_time import in_manual_time
from tests.unit.spool_path import SpoolPath, numbers
from tests.unit.test_spool_pressure import FlowingPath

FSYNC_S = 3.0
EVERY_S = 0.02


class TimedOwner(Owner):
    """Notes when each message is acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.at_s: list[float] = []

    def release(self, ids: list[bytes], ids2: list[bytes]) -> None:
        super().release(ids, ids2)
        self.at_s += [asyncio.get_running_loop().time()] * len(ids)


class Load:
    """Messages at a steady rate."""

    def __init__(self, path: SpoolPath, size: int = 0) -> None:
        self.path = path
        self.size = size
        self.owner = path.owner = TimedOwner()
        self.taken_s: list[float] = []
        self.stopped = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        path = self.path
        while not self.stopped:
            path.append(path.slot("t"), value_of(len(self.taken_s), self.size))
            self.taken_s.append(asyncio.get_running_loop().time())
            path.flush()
            await asyncio.sleep(EVERY_S)

    async def stop(self) -> None:
        self.stopped = True
        await self._task
        await self.path.drained()

    def longest(self, since: int = 0) -> float:
        """How long it took at most to acknowledge a message, from one on."""
        return max(at_s - taken_s for at_s, taken_s in zip(self.owner.at_s[since:], self.taken_s[since:], strict=True))


def backlog_of(path: SpoolPath) -> Backlog | None:
    return path.accumulator.partitions.queue("t", 0).backlog


async def test_a_slow_disk_is_left_once_kafka_takes_batches_again() -> None:
    """Kafka is silent for two seconds, once. The disk takes three for a write."""
    async with SpoolPath() as path:
        path.spool.fsync_s = FSYNC_S
        load = Load(path)
        await asyncio.sleep(1)
        path.kafka.freeze()
        await path.until(lambda: path.spooler.spooling() == {"t": [0]}, "it spools", within_s=3)
        await asyncio.sleep(1)
        path.kafka.thaw()
        await path.until(lambda: backlog_of(path) is None, "the spool is left", within_s=2 * FSYNC_S)
        taken, appends = len(load.taken_s), path.spool.appends
        await asyncio.sleep(60)
        await load.stop()
        assert load.longest(taken + 1) < 0.1, "as fast as Kafka is"
        assert load.longest() < 3 * FSYNC_S
        assert path.spool.appends == appends, "the disk is left alone"
        assert path.disk.batches() == 0
        assert numbers(path.kafka) == list(range(len(load.taken_s)))


async def test_a_long_outage_is_drained_in_turns_with_a_slow_disk_and_no_message_waits_for_all_of_it() -> None:
    """What an outage left takes half a minute to be read back. Memory alone would be full by then."""
    async with SpoolPath(replay_bytes_per_s=60_000) as path:
        load = Load(path, 200)
        path.kafka.freeze()
        await asyncio.sleep(60)
        path.spool.fsync_s = FSYNC_S
        left = path.disk.messages
        assert left > 2500
        path.kafka.thaw()
        taken = len(load.taken_s)
        await path.until(lambda: path.disk.messages < left // 2, "it gets on", within_s=120)
        states = set()

        def drained() -> bool:
            backlog = backlog_of(path)
            states.add(backlog and backlog.state)
            return backlog is None

        await path.until(drained, "the spool is left", within_s=120)
        assert states == {BacklogState.SPOOLS, BacklogState.DRAINS, None}, "both took turns"
        await load.stop()
        assert load.longest(taken) < 4 * FSYNC_S
        assert numbers(path.kafka) == list(range(len(load.taken_s)))


async def test_a_kafka_that_stops_again_while_the_spool_drains_is_spooled_again_in_order() -> None:
    async with SpoolPath(replay_bytes_per_s=20_000) as path:
        load = Load(path, 200)
        path.kafka.freeze()
        await asyncio.sleep(20)
        path.spool.fsync_s = FSYNC_S
        for _ in range(3):
            path.kafka.thaw()
            await path.until(
                lambda: (backlog := backlog_of(path)) is None or backlog.state is BacklogState.DRAINS, within_s=30
            )
            path.kafka.freeze()
            await path.until(lambda: path.spooler.spooling() == {"t": [0]}, "it spools again", within_s=30)
            taken = len(load.taken_s)
            await path.until(lambda n=taken: len(path.owner.released) > n, "by the disk", within_s=4 * FSYNC_S)
        path.kafka.thaw()
        await load.stop()
        assert numbers(path.kafka) == list(range(len(load.taken_s)))


class Spread:
    """Eight partitions under a steady load, of which Kafka takes nothing for ten seconds, and a slow disk."""

    PARTITIONS = 8

    def __init__(self, kafka: FakeKafka, path: SpoolPath) -> None:
        self.path = path
        self.topic = kafka.topic("t", self.PARTITIONS)
        self.taken = [0] * self.PARTITIONS
        self._stopped = False
        self._task = asyncio.create_task(self._run())
        path.spool.fsync_s = FSYNC_S

    async def _run(self) -> None:
        while not self._stopped:
            for number, count in enumerate(self.taken):
                self.path.append(self.path.slot("t", number), value_of(count))
                self.taken[number] += 1
                self.path.flush()
            await asyncio.sleep(EVERY_S)

    async def go_away(self) -> None:
        await asyncio.sleep(1)
        for place in self.topic.partitions:
            place.has_leader = False
        await asyncio.sleep(10)

    def on_disk(self, *partitions: int) -> set[int]:
        """Those of the partitions that have a backlog."""
        queues = self.path.accumulator.partitions.queues
        return {number for number in partitions if queues["t", number].backlog is not None}

    async def stop(self) -> None:
        self._stopped = True
        await self._task
        await self.path.drained()
        for number, count in enumerate(self.taken):
            found = [int(record.value or b"") for record in self.topic.partitions[number].log]
            assert found == list(range(count)), f"partition {number}"


async def test_partitions_that_come_back_one_after_the_other_all_leave_a_slow_disk() -> None:
    """While one partition is written, another waits to be read: not for Kafka, and so it is not written again."""
    async with SpoolPath() as path:
        load = Spread(path.kafka, path)
        await load.go_away()
        for place in load.topic.partitions:
            place.has_leader = True
            await asyncio.sleep(0.5)
        everyone = range(load.PARTITIONS)
        await path.until(lambda: not load.on_disk(*everyone), "all have left", within_s=2 * FSYNC_S)
        appends = path.spool.appends
        await asyncio.sleep(30)
        assert path.spool.appends == appends, "the disk is left alone"
        await load.stop()


async def test_a_partition_that_needs_a_slow_disk_keeps_no_other_on_it() -> None:
    """One has no leader and is written all the time. The reads of the others do not each wait for a write."""
    async with SpoolPath() as path:
        load = Spread(path.kafka, path)
        await load.go_away()
        stuck, *others = range(load.PARTITIONS)
        for number in others:
            load.topic.partitions[number].has_leader = True
        await path.until(lambda: not load.on_disk(*others), "they leave", within_s=3 * FSYNC_S)
        appends = path.spool.appends

        def written() -> bool:
            assert not load.on_disk(*others), "they stay out"
            return path.spool.appends >= appends + 5

        await path.until(written, "the one that needs the disk gets it", within_s=6 * FSYNC_S)
        assert load.on_disk(stuck)
        load.topic.partitions[stuck].has_leader = True
        await load.stop()


async def test_what_waits_for_a_slow_disk_to_be_read_is_not_late_at_kafka() -> None:
    """A read takes two seconds, twice ``spool.after``: Kafka has nothing to acknowledge. Then it takes 0.5 s."""
    async with SpoolPath() as path:
        path.spool.fsync_s = FSYNC_S
        load = Load(path)
        await asyncio.sleep(1)
        path.kafka.freeze()
        await path.until(lambda: path.disk.messages > 0, "it is written", within_s=3 * FSYNC_S)
        path.spool.latency_s = lambda: 2.0
        path.kafka.latency_s = lambda: 0.5
        path.kafka.thaw()
        await path.until(lambda: backlog_of(path) is None, "the spool is left", within_s=3 * FSYNC_S)
        appends = path.spool.appends
        await asyncio.sleep(10)
        assert path.spool.appends == appends
        await load.stop()


@pytest.mark.parametrize("disk_s", [0.0, 0.2])
async def test_a_disk_that_is_fast_enough_goes_on_taking_what_comes(disk_s: float) -> None:
    async with SpoolPath(replay_bytes_per_s=20_000) as path:
        path.spool.fsync_s = disk_s
        load = Load(path, 200)
        path.kafka.freeze()
        await asyncio.sleep(30)
        path.kafka.thaw()
        await asyncio.sleep(3)
        taken = len(load.taken_s)
        backlog = backlog_of(path)
        assert backlog is not None
        assert backlog.state is BacklogState.SPOOLS
        await asyncio.sleep(5)
        await load.stop()
        assert load.longest(taken) < 1 + 4 * disk_s
        assert numbers(path.kafka) == list(range(len(load.taken_s)))


async def test_memory_stays_bounded_while_a_slow_disk_is_drained() -> None:
    kafka = FakeKafka("t")
    async with FlowingPath(kafka, replay_bytes_per_s=100_000) as path:
        flow = path.flow = Flow(
            path.accumulator, path.sender, path.ledger, linger_ns=1, pacing_ns=1_000_000, memory_bytes=100_000
        )
        path.spool.fsync_s = FSYNC_S
        kafka.freeze()
        number = most = 0

        async def read(seconds: float) -> None:
            nonlocal number, most
            loop = asyncio.get_running_loop()
            end_s = loop.time() + seconds
            while loop.time() < end_s:
                if not flow.paused:
                    path.send(value_of(number, 1000))
                    flow.took(0, 0, pressed=False)
                    number += 1
                most = max(most, path.accumulator.buffered_bytes)
                await asyncio.sleep(EVERY_S)

        await read(20)
        kafka.thaw()
        await read(60)
        await path.drained()
        assert most < 110_000
        assert not flow.paused
        assert numbers(kafka) == list(range(number))
        flow.close()


in_manual_time(globals())
