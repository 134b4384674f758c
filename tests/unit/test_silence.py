"""How long a partition has been silent, seen once a second: in memory and in the spool, and nothing that is not so."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from bridge.errors import PoisonedError, RefusedError
from tests.unit.data_path import AnyPath, Path, value_of
from tests.unit.fake_kafka import FakeKafka
from tests.unit.manual_time import in_manual_time
from tests.unit.spool_path import SpoolPath


class Looks:
    """Looks once a second, as the gateway does, and keeps the longest silence of each partition."""

    def __init__(self, path: AnyPath) -> None:
        self._path = path
        self.longest: dict[tuple[str, int], float] = {}

    def silent_s(self, topic: str, partition: int = 0) -> float:
        """Now, of one partition."""
        since_ns = self._path.sender.partitions.queues[topic, partition].unanswered_since_ns()
        return (self._path.clock_ns() - since_ns) / 1e9 if since_ns else 0.0

    async def run(self) -> None:
        while True:
            self._path.sender.partitions.look(self._path.clock_ns())
            for place in self._path.sender.partitions.queues:
                self.longest[place] = max(self.longest.get(place, 0.0), self.silent_s(*place))
            await asyncio.sleep(1.0)


@contextlib.asynccontextmanager
async def looking(path: AnyPath) -> AsyncIterator[Looks]:
    looks = Looks(path)
    task = asyncio.create_task(looks.run())
    try:
        yield looks
    finally:
        task.cancel()
        await asyncio.wait([task])


async def feed_for(path: AnyPath, seconds: int, *, first: int = 0, partitions: int = 1) -> int:
    """Ten messages a second, spread over partitions; the number of the next."""
    for number in range(first, first + 10 * seconds):
        path.send(value_of(number), "t", number % partitions)
        await asyncio.sleep(0.1)
    return first + 10 * seconds


async def test_a_busy_hour_has_no_silence() -> None:
    kafka = FakeKafka("t", 2)
    kafka.latency_s = lambda: 0.4  # always something under way
    async with Path(kafka) as path, looking(path) as looks:
        await feed_for(path, 600, partitions=2)
        assert max(looks.longest.values()) < 1.5
        await path.drained()


async def test_a_message_after_an_hour_of_quiet_is_not_an_hour_of_silence() -> None:
    async with Path() as path, looking(path) as looks:
        await feed_for(path, 1)
        await asyncio.sleep(3600)
        path.kafka.latency_s = lambda: 1.4
        await feed_for(path, 1, first=10)
        await path.drained()
        assert max(looks.longest.values()) < 3


@pytest.mark.parametrize("kind", [Path, SpoolPath])
@pytest.mark.parametrize("trouble", ["frozen", "without a leader", "without rights"])
async def test_what_takes_nothing_is_silent_for_as_long_as_it_does_and_no_longer(
    trouble: str, kind: type[Path | SpoolPath]
) -> None:
    async with kind() as path, looking(path) as looks:

        async def has(trouble: str) -> None:
            refused = RefusedError("Kafka refused Write on t.") if trouble == "without rights" else None
            path.topic.reject = lambda _records: refused
            path.topic.partitions[0].has_leader = trouble != "without a leader"
            if trouble == "frozen":
                path.kafka.freeze()
            else:
                path.kafka.thaw()
                await path.sender.producer.refresh_metadata()

        following = await feed_for(path, 3)
        await has(trouble)
        await feed_for(path, 30, first=following)
        assert 28.5 <= looks.silent_s("t") <= 31
        await has("")
        await path.drained()
        assert looks.silent_s("t") == 0


async def test_with_a_spool_it_is_silent_all_the_same() -> None:
    async with SpoolPath() as path, looking(path) as looks:
        following = await feed_for(path, 3)
        path.kafka.freeze()
        await feed_for(path, 30, first=following)
        queue = path.sender.partitions.queues["t", 0]
        assert path.accumulator.oldest_ns() == 0, "every message has been acknowledged by the disk"
        assert queue.spooled() == 300
        assert 28.5 <= looks.silent_s("t") <= 31
        path.kafka.thaw()
        await path.drained()
        assert (looks.silent_s("t"), queue.spooled(), queue.bytes()) == (0, 0, 0)


async def test_waiting_for_its_turn_to_be_read_from_the_disk_is_no_silence_of_kafka() -> None:
    kafka = FakeKafka("t", batch_bytes=400)
    async with SpoolPath(kafka, replay_bytes_per_s=20) as path:
        kafka.freeze()
        await feed_for(path, 5)
        kafka.thaw()
        async with looking(path) as looks:
            await path.drained(within_s=3600)
            assert max(looks.longest.values()) < 2, "a batch every twenty seconds, and each is acknowledged at once"


async def test_a_partition_that_answers_no_is_not_silent() -> None:
    """Poison all the time is dead letters, and no outage."""
    kafka, topic = FakeKafka.with_topic()
    topic.reject = lambda _records: PoisonedError("Kafka will not take it.")
    kafka.latency_s = lambda: 0.3
    async with Path(kafka) as path, looking(path) as looks:
        await feed_for(path, 60)
        assert looks.longest["t", 0] < 3
        await path.drained()


async def test_one_silent_partition_makes_no_other_silent() -> None:
    async with Path(FakeKafka("t", 3)) as path, looking(path) as looks:
        following = await feed_for(path, 3, partitions=3)
        path.topic.partitions[1].has_leader = False
        await path.sender.producer.refresh_metadata()
        await feed_for(path, 20, first=following, partitions=3)
        assert looks.silent_s("t", 1) > 18
        assert max(looks.longest["t", 0], looks.longest["t", 2]) < 1.5
        queue = path.sender.partitions.queues["t", 1]
        assert queue.messages() >= 66
        assert queue.bytes() > queue.messages() * len(value_of(0))
        path.topic.partitions[1].has_leader = True
        await path.sender.producer.refresh_metadata()
        await path.drained()


in_manual_time(globals())
