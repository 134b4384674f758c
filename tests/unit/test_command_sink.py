"""Statuses are written in order until Kafka has them, and one that it never takes holds nothing up."""

import asyncio
import json
from typing import Any

import pytest

from bridge.commands.model import Answer, Status, StatusRecord
from bridge.commands.sink import SHORT_ANSWER, StatusWriter
from bridge.dead_letters.reading import Place
from bridge.errors import BridgeError, IncarnationError, PoisonedError
from bridge.ports import StoredRecord
from tests.unit.fake_kafka import FakeKafka, FakeProducer
from tests.unit.manual_time import at_end, in_manual_time

TOPIC = "statuses"


def status(number: int, *, topic: str = "commands", partition: int = 0, answer: bytes | None = None) -> StatusRecord:
    place = Place(topic, partition, number)
    heard = None if answer is None else Answer(place, "token", "d", 200, answer, None, 5)
    return StatusRecord(f"c{number}", place, "r", "d", Status.SENT, False, 1, None, answer=heard)


class Site:
    """A sink beside a Kafka in memory. ``stored`` has the partition, number and offset of each status called."""

    def __init__(self, partitions: int = 2, **options: Any) -> None:
        self.kafka = FakeKafka()
        self.topic = self.kafka.topic(TOPIC, partitions, **options)
        self.producer: FakeProducer | None = None
        self.renewals: list[str] = []
        self.stored: list[tuple[int, int, int]] = []
        self.broken: list[BaseException] = []
        self.sink = StatusWriter(
            TOPIC, producer=lambda: self.producer, renew=self.renewals.append, broken=self.broken.append
        )
        at_end(self.sink.close)

    async def start(self) -> None:
        if self.producer is not None:
            await self.producer.close(patience_s=0)
        producer = self.kafka.make_producer([TOPIC])
        await producer.start()
        self.producer = producer
        at_end(lambda: producer.close(patience_s=0))

    def write(self, *numbers: int, partition: int = 0, topic: str = "commands", answer: bytes | None = None) -> None:
        for number in numbers:

            def stored(offset: int, number: int = number) -> None:
                self.stored.append((partition, number, offset))

            record = status(number, topic=topic, partition=partition, answer=answer)
            self.sink.write(partition, record, stored)

    async def drained(self) -> None:
        while tasks := [lane.task for lane in self.sink._lanes.values() if lane.task is not None]:
            await asyncio.wait(tasks)

    def written(self, partition: int = 0) -> list[str]:
        return [(record.key or b"").decode() for record in self.topic.partitions[partition].log]


async def started(**options: Any) -> Site:
    site = Site(**options)
    await site.start()
    return site


async def test_statuses_are_stored_in_order_with_their_offsets() -> None:
    site = await started()
    site.write(*range(700))
    site.write(900, partition=1)
    assert site.sink.waiting == 701
    await site.drained()
    assert site.sink.waiting == 0
    assert [one for one in site.stored if one[0] == 0] == [(0, number, number) for number in range(700)]
    assert (1, 900, 0) in site.stored
    assert site.written() == [f"c{number}" for number in range(700)]


async def test_what_is_written_while_a_batch_is_under_way_goes_in_the_next() -> None:
    site = await started()
    site.kafka.latency_s = lambda: 1.0
    began_s = asyncio.get_running_loop().time()
    site.write(0)
    await asyncio.sleep(0.5)
    site.write(1, 2, 3)
    await site.drained()
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(2.0)
    assert site.written() == ["c0", "c1", "c2", "c3"]


async def test_a_status_is_handed_over_at_once() -> None:
    site = await started()
    site.kafka.latency_s = lambda: 0.0
    began_s = asyncio.get_running_loop().time()
    site.write(0)
    await site.drained()
    assert asyncio.get_running_loop().time() == began_s


async def test_a_status_may_be_written_from_the_call_of_another() -> None:
    site = await started()
    site.sink.write(0, status(0), lambda _offset: site.write(1))
    await site.drained()
    assert site.stored == [(0, 1, 1)]


async def test_before_the_first_producer_and_after_a_lost_one_they_wait() -> None:
    site = Site()
    site.write(0)
    await asyncio.sleep(30)
    await site.start()
    await site.drained()
    losing = True
    site.kafka.lose = lambda: losing
    site.write(1, 2)
    await asyncio.sleep(10)
    losing = False
    assert site.sink.waiting == 2
    await site.start()
    site.write(3)
    await site.drained()
    assert [number for _, number, _ in site.stored] == [0, 1, 2, 3]
    assert site.written() == ["c0", "c1", "c2", "c1", "c2", "c3"], "again, behind the batch without an answer"


async def test_an_unknown_offset_is_minus_one() -> None:
    site = await started()
    site.kafka._answer = lambda request, _error, _offset: request.answer.set_result(-1)  # type: ignore[method-assign]
    site.write(0, 1)
    await site.drained()
    assert site.stored == [(0, 0, -1), (0, 1, -1)]


async def test_an_answer_that_makes_a_status_too_large_is_shortened() -> None:
    site = await started(max_batch_bytes=2000)
    site.write(0)
    site.write(1, answer=b"x" * 5000)
    site.write(2)
    await site.drained()
    assert site.stored == [(0, 0, 0), (0, 1, 1), (0, 2, 2)]
    found = json.loads(site.topic.partitions[0].log[1].value or b"")["answer"]
    assert (found["payload"], found["truncated_bytes"], site.sink.refused) == ("x" * SHORT_ANSWER, 5000, 0)


async def test_a_status_that_kafka_never_takes_holds_nothing_up() -> None:
    def reject(records: list[StoredRecord]) -> BridgeError | None:
        return PoisonedError("too large") if any(record.key == b"c1" for record in records) else None

    site = await started(reject=reject)
    site.write(0, 1, 2, answer=b"yes")
    await site.drained()
    assert site.stored == [(0, 0, 0), (0, 1, -1), (0, 2, 1)]
    assert site.sink.refused == 1


async def test_another_producer_is_asked_for_when_this_one_is_spoiled() -> None:
    broken = True
    site = await started(reject=lambda _records: IncarnationError("spoiled") if broken else None)
    site.write(0)
    await asyncio.sleep(60)
    assert len(site.renewals) == 1
    broken = False
    await site.start()
    await site.drained()
    assert site.stored == [(0, 0, 0)]


async def test_a_missing_partition_is_tried_ever_less_often_and_an_outage_after_it_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = await started(partitions=1)
    tried_s: list[float] = []
    send = FakeProducer.send

    def noted(producer: FakeProducer, topic: str, partition: int, batch: Any) -> asyncio.Future[int]:
        tried_s.append(asyncio.get_running_loop().time())
        return send(producer, topic, partition, batch)

    monkeypatch.setattr(FakeProducer, "send", noted)
    site.write(0, partition=1)
    await asyncio.sleep(600)
    assert 60 <= len(tried_s) < 80, "with pauses of up to 10 s"
    site.topic = site.kafka.topic(TOPIC, 2)
    await site.drained()
    assert site.written(1) == ["c0"]
    site.topic.partitions[1].has_leader = False
    await asyncio.sleep(5)
    tried_s.clear()
    site.write(1, partition=1)
    await asyncio.sleep(1)
    assert len(tried_s) >= 3


async def test_a_dropped_partition_is_neither_called_nor_written_again() -> None:
    site = await started()
    site.kafka.latency_s = lambda: 1.0
    site.write(0)
    await asyncio.sleep(0.5)
    site.write(1)
    site.write(5, partition=1)
    site.sink.drop(("commands", 0))
    assert site.sink.waiting == 2, "the one under way, and another partition's"
    site.write(2)
    await site.drained()
    assert site.written() == ["c0", "c2"]
    assert sorted(site.stored) == [(0, 0, 0), (0, 2, 1), (1, 5, 0)]


async def test_it_holds_what_was_under_way_for_an_earlier_owner_until_kafka_has_it() -> None:
    """In an outage of Kafka the partition is lost: there is no producer to be had, but the batch may be delivered."""
    site = await started()
    site.kafka.latency_s = lambda: 60.0
    site.write(0)
    await asyncio.sleep(0.5)
    producer, site.producer = site.producer, None
    site.sink.drop(("commands", 0))
    await asyncio.sleep(30)
    assert site.sink.holds(("commands", 0))
    assert not site.written()
    site.producer = producer
    await site.drained()
    assert not site.sink.holds(("commands", 0))
    assert site.written() == ["c0"]


async def test_what_another_topics_partition_wrote_stays() -> None:
    """Its statuses are in the same partition: of the same number."""
    failing = True
    site = await started(reject=lambda _records: PoisonedError("no") if failing else None)
    site.kafka.latency_s = lambda: 1.0
    site.write(0)
    site.write(1, topic="others")
    await asyncio.sleep(0.5)
    site.write(2)
    site.write(3, topic="others")
    site.sink.drop(("commands", 0))
    failing = False
    await asyncio.sleep(0.1)
    site.write(4)
    failing = True
    await asyncio.sleep(1.0)
    failing = False
    await site.drained()
    assert site.written() == ["c1", "c3", "c4"]
    assert [number for _, number, _ in site.stored] == [1, 3, 4]
    assert site.sink.waiting == 0


async def test_a_dropped_batch_that_failed_is_not_tried_again() -> None:
    site = await started(reject=lambda _records: PoisonedError("no"))
    site.kafka.latency_s = lambda: 1.0
    site.write(0)
    await asyncio.sleep(0.5)
    site.sink.drop(("commands", 0))
    await site.drained()
    assert not site.stored
    assert site.sink.refused == 0


async def test_a_defect_in_a_call_does_not_end_the_sink() -> None:
    site = await started()

    def defect(_offset: int) -> None:
        raise ValueError("a defect")

    site.sink.write(0, status(0), defect)
    await site.drained()
    site.write(1)
    await site.drained()
    assert site.stored == [(0, 1, 1)]


in_manual_time(globals())
