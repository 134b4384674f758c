"""A wrong clock is no record's fault: what Kafka refuses for its timestamp is stamped with the present, or waits."""

import asyncio
from collections.abc import Callable

import pytest

from bridge import wire
from bridge.dead_letters.limit import DeadLetterLimit
from bridge.dead_letters.route_stops import RouteStops
from bridge.errors import BridgeError, PoisonedError, TimestampError
from bridge.ports import StoredRecord
from bridge.produce.parking import mark_unfinished
from bridge.produce.timestamps import AHEAD_MS
from bridge.wire import DeadLetterReason
from tests.unit.data_path import DEAD_LETTERS, AnyPath, Path, named_poison, value_of
from tests.unit.fake_kafka import FakeKafka
from tests.unit.manual_time import in_manual_time
from tests.unit.spool_path import SpoolPath, numbers

HOUR_MS = 3_600_000


def judge(path: AnyPath, kafka: FakeKafka, *, named: bool = True) -> None:
    """Kafka judges timestamps by its own clock, which is right: an hour ahead and a day behind are too far."""

    def reject(records: list[StoredRecord]) -> BridgeError | None:
        now_ms = path.right_ms()
        bad = tuple(n for n, r in enumerate(records) if not now_ms - 24 * HOUR_MS <= r.timestamp_ms <= now_ms + HOUR_MS)
        return TimestampError("a timestamp is out of range", bad if named else ()) if bad else None

    for topic in kafka.topics.values():
        topic.reject = reject


def timestamps(kafka: FakeKafka, topic: str = "t") -> list[int]:
    return [record.timestamp_ms for record in kafka.topics[topic].records()]


@pytest.mark.parametrize("named", [True, False])
async def test_records_kafka_refuses_for_their_timestamps_are_stamped_with_the_present(*, named: bool) -> None:
    async with Path() as path:
        judge(path, path.kafka, named=named)
        right, wrong = path.right_ms(), path.right_ms() + 3 * HOUR_MS
        headers = [(wire.GATEWAY_RECEIVED_MS, b"%d" % wrong), (wire.GATEWAY_MESSAGE_ID, b"c-1")]
        for number in range(10):
            mine = wrong if number in (3, 7) else right
            path.append(path.slot("t"), value_of(number), timestamp=mine, headers=list(headers))
        await path.drained()
        assert path.dead == []
        assert path.observer.failed[1:] == [], "stamped once, and taken"
    assert numbers(path.kafka) == list(range(10)), "in their order"
    for number, record in enumerate(path.kafka.topics["t"].records()):
        replaced = not named or number in (3, 7)
        assert abs(record.timestamp_ms - right) < 1000
        assert list(record.headers)[:2] == headers, "receive time and message id stay as they were"
        was = wrong if number in (3, 7) else right
        assert list(record.headers)[2:] == ([(wire.GATEWAY_TIMESTAMP_MS, b"%d" % was)] if replaced else [])


async def test_a_clock_that_is_wrong_holds_everything_and_goes_on_once_it_is_right() -> None:
    """Refused with the present too: nothing becomes a dead letter, the spool has it, and is delivered in order."""
    async with SpoolPath() as path:
        judge(path, path.kafka)
        path.clock_error_ms = 3 * HOUR_MS
        for number in range(200):
            path.send(value_of(number), timestamp=path.wall_ms())
            await asyncio.sleep(0.1)
        await path.until(lambda: len(path.owner.released) == 200, "acknowledged, by the disk", within_s=30)
        (queue,) = (q for q in path.accumulator.partitions.queues.values() if q.topic == "t")
        assert queue.clock_refused
        assert path.dead == []
        assert timestamps(path.kafka) == []
        asked = len(path.observer.failed)
        await asyncio.sleep(100)
        assert len(path.observer.failed) - asked <= 15, "it is asked for every seven to ten seconds, not more"
        path.clock_error_ms = 0
        await path.drained()
        assert not queue.clock_refused
        assert path.dead == []
        assert numbers(path.kafka) == list(range(200))
        assert all(abs(moment - path.right_ms()) < HOUR_MS for moment in timestamps(path.kafka))
        assert path.ledger.delivered == 200


async def test_a_spool_filled_by_a_wrong_clock_is_delivered_by_the_next_life() -> None:
    """The clock ran three hours ahead during an outage, then was set right and the gateway started anew."""
    kafka = FakeKafka("t")
    path = SpoolPath(kafka)
    async with path:
        kafka.freeze()
        path.clock_error_ms = 3 * HOUR_MS
        for number in range(50):
            path.append(path.slot("t"), value_of(number), timestamp=path.wall_ms())
        path.flush()
        await path.until(lambda: len(path.owner.released) == 50, "by the disk", within_s=5)
        await path.crash()
    kafka.thaw()
    kafka.topics["t"].partitions[0].log.clear()
    async with SpoolPath(kafka, path.disk) as later:
        judge(later, kafka)
        await later.drained()
        assert (later.dead, later.disk.batches(), later.ledger.delivered) == ([], 0, 50)
    assert numbers(kafka) == list(range(50))


async def test_a_dead_letter_has_the_present_as_its_timestamp_and_says_when_it_was_first_seen() -> None:
    async with SpoolPath() as path:
        judge(path, path.kafka)
        path.kafka.topics["t"].reject = lambda _records: PoisonedError("no", records=(0,))
        old = path.right_ms() - 48 * HOUR_MS
        path.send(b"x", timestamp=old)
        await path.drained()
        (letter,) = path.kafka.topics[DEAD_LETTERS].records()
        assert abs(letter.timestamp_ms - path.right_ms()) < 1000
        assert dict(letter.headers)[wire.DLQ_FIRST_SEEN_MS] == b"%d" % old
        assert path.observer.failed[1:] == [], "the dead letter itself was never refused"


# --- what Kafka names is at fault, and nothing else -----------------------------------------------------------------
async def test_only_the_records_that_kafka_names_become_dead_letters_at_once() -> None:
    kafka, topic = FakeKafka.with_topic(reject=named_poison)
    async with Path(kafka) as path:
        kafka.latency_s = lambda: 0.05
        path.send(b"first")
        for number in range(12):  # these share one batch, for the partition is busy
            path.append(path.slot("t"), b"poison %d" % number if number in (0, 3, 4, 11) else value_of(number))
            if number == 5:  # a message of two records
                path.accumulator.append(path.slot("t"), timestamp=7, key=None, value=b"5 again", headers=[])
                mark_unfinished(path.slot("t"))
            path.flush()
        await path.drained()
        assert path.owner.released == [b"%d" % n for n in range(1, 14)]
        assert len(path.observer.failed) == 1, "one refusal says it all"
        assert [(span.stored, span.dead) for span in path.spans[1:]] == [
            (0, 1) if number in (0, 3, 4, 11) else (1, 0) for number in range(12)
        ]
    assert topic.values() == [b"first", b"1", b"2", b"5", b"5 again", *(b"%d" % n for n in range(6, 11))]
    assert kafka.topics[DEAD_LETTERS].values() == [b"poison %d" % n for n in (0, 3, 4, 11)]


# --- the ceiling on dead letters, in a replay -----------------------------------------------------------------------
class _Gate:
    """A route without traffic of its own: all of it comes from the spool."""

    def stop(self, route: str) -> None: ...
    def admit(self, route: str, count: int) -> None: ...
    def release(self, route: str) -> None: ...
    def tried(self, route: str) -> bool:
        return True  # nothing else would keep a trial from ending well


@pytest.mark.parametrize("poison", [named_poison, None], ids=["named", "found by splitting"])
async def test_the_ceiling_binds_what_comes_back_from_the_spool(
    poison: Callable[[list[StoredRecord]], BridgeError | None] | None,
) -> None:
    kafka, topic = FakeKafka.with_topic(batch_bytes=4096, led=False)
    async with SpoolPath(kafka) as path:
        limit = DeadLetterLimit(1e6, 0.1, 60 * 10**9, 100, 30 * 10**9)
        stops = RouteStops(limit, path.clock_ns, path.fatal.append)
        stops.watch_returns(path.spooler.replay)
        stops.watch("route", _Gate(), lambda: 0)

        def made(route: str, reason: DeadLetterReason, error: BaseException) -> None:
            stops.made(route, reason, error)

        path.made, path.withholds = made, stops.rests
        await stops.start()
        for number in range(1000):
            path.append(path.slot("t"), value_of(number) if number < 500 else b"poison %d" % number)
        path.flush()
        await path.until(lambda: path.disk.messages == 1000, "spooled", within_s=10)
        topic.reject = poison or _unnamed
        topic.partitions[0].has_leader = True
        await path.until(lambda: len(topic.values()) == 500, "the good ones are delivered", within_s=60)
        await path.until(lambda: bool(stops.stopped), "the ceiling is reached", within_s=60)
        await asyncio.sleep(5)
        dead, asked = len(path.dead), len(path.observer.failed)
        assert 50 <= dead <= 110, dead
        await asyncio.sleep(600)
        assert len(path.observer.failed) - asked < 300, "it is asked for every seven to ten seconds, not more"
        assert dead < len(path.dead) <= dead + 21, "each trial costs one, however long it lasts"
        assert path.disk.messages > 0
        assert path.balanced()
        topic.reject = None
        await path.drained()
        await path.until(lambda: not stops.stopped, "the route goes on by itself", within_s=60)
        await stops.stop(0)
    assert len(topic.values()) + len(kafka.topics[DEAD_LETTERS].values()) == 1000


def _unnamed(records: list[StoredRecord]) -> BridgeError | None:
    return PoisonedError("Kafka will not take them.") if named_poison(records) else None


def test_the_hour_is_kafka_s_own() -> None:
    assert AHEAD_MS == HOUR_MS


in_manual_time(globals())
