"""The sender keeps order, takes poisoned batches apart, outlives its producers, and never hangs."""

import asyncio
from collections.abc import Callable

import pytest

from bridge import wire
from bridge.errors import BridgeError, IncarnationError, LeaderMissingError, PoisonedError, RefusedError
from bridge.ports import StoredRecord
from bridge.produce.dead_letter import SMALL_PART_BYTES
from bridge.produce.parking import mark_unfinished
from bridge.produce.partitions import PartitionQueue
from bridge.produce.sender import SenderPolicy, SenderState
from bridge.wire import DeadLetterReason
from config.settings import KafkaSettings
from tests.unit.data_path import DEAD_LETTERS, POLICY, Path, named_poison, value_of
from tests.unit.fake_kafka import DOWN, FakeKafka, FakeProducer
from tests.unit.manual_time import in_manual_time
from tests.unit.spool_path import S, SpoolPath


def poison(records: list[StoredRecord]) -> BridgeError | None:
    """Kafka will not take a batch with a record that begins so."""
    if any((record.value or b"").startswith(b"poison") for record in records):
        return PoisonedError("Kafka will not take it: InvalidRecordError.", DeadLetterReason.INVALID_RECORD)
    return None


POLICY_SETTLE_S = POLICY.settle_ns / 1e9
Reject = Callable[[list[StoredRecord]], BridgeError | None]


# --- the ordinary way -----------------------------------------------------------------------------------------------
async def test_whoever_watches_is_told_where_each_batch_went() -> None:
    """Without a key a slot has moved on to another partition by the time the answer comes."""
    kafka, topic = FakeKafka.with_topic(3, batch_bytes=300)
    kafka.latency_s = lambda: 0.1
    async with Path(kafka) as path:
        slot = path.accumulator.keyless_slot("route", 1, "t", 3)
        for number in range(40):
            path.append(slot, value_of(number, 20), key=None)
            path.flush()
            await asyncio.sleep(0.001)
        await path.drained()
    told = path.observer.offsets
    for number, partition in enumerate(topic.partitions):
        there = [(offset, count) for _, at, offset, count in told if at == number]
        assert [offset for offset, _ in there] == [sum(count for _, count in there[:n]) for n in range(len(there))]
        assert sum(count for _, count in there) == len(partition.log) > 0


async def test_one_batch_of_a_partition_is_under_way_and_the_rest_travels_together() -> None:
    """The producer in memory fails the test when a second batch of a partition is handed over."""
    kafka = FakeKafka("t", batch_bytes=1 << 20)
    kafka.latency_s = lambda: 0.1
    sizes = []
    async with Path(kafka) as path:
        before = path.observer.batch_stored

        def stored(batch: object, *more: int) -> None:
            sizes.append(batch.count)  # type: ignore[attr-defined]
            before(batch, *more)  # type: ignore[arg-type]

        path.observer.batch_stored = stored  # type: ignore[method-assign]
        for number in range(100):
            path.send(value_of(number))
            await asyncio.sleep(0.001)
        await path.drained()
    assert sizes == [1, 99]


def test_the_time_limits_are_those_of_the_settings() -> None:
    settings = KafkaSettings.model_validate({"delivery_timeout": "90s", "request_timeout": "7s"})
    policy = SenderPolicy.from_settings(settings)
    assert (policy.delivery_timeout_ns, policy.settle_ns) == (90_000_000_000, 14_000_000_000)


# --- poisoned batches -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("count", "bad"), [(1, {0}), (2, {1}), (7, {0}), (8, {3}), (9, {8}), (20, {4, 5, 17}), (5, set(range(5)))]
)
async def test_a_poisoned_record_is_isolated_and_dead_lettered_and_the_others_are_delivered(
    count: int, bad: set[int]
) -> None:
    kafka, topic = FakeKafka.with_topic(reject=poison)
    healthy = kafka.topic("healthy")
    values = [b"poison %d" % n if n in bad else value_of(n) for n in range(count)]
    async with Path(kafka) as path:
        ids = [path.append(path.slot("t"), value) for value in values]
        ids.append(path.append(path.slot("healthy"), b"bystander"))
        path.flush()
        later = path.send(b"later")
        await path.drained()
        assert path.owner.released == [*ids, later]
    good = [value for n, value in enumerate(values) if n not in bad]
    assert topic.values() == [*good, b"later"]
    assert kafka.topics[DEAD_LETTERS].values() == [values[n] for n in sorted(bad)]
    assert healthy.values() == [b"bystander"]
    assert path.observer.incarnations == [1]  # a rejected batch gives its sequence numbers back
    assert path.ledger.dead_lettered == len(bad)
    assert path.ledger.delivered == count - len(bad) + 2
    assert path.dead == [DeadLetterReason.INVALID_RECORD] * len(bad)


async def test_a_dead_letter_carries_the_original_bytes_and_says_why() -> None:
    kafka, _ = FakeKafka.with_topic(reject=poison)
    headers = [("mqtt.topic", b"devices/7"), ("empty", b""), ("null", None), ("twice", b"1"), ("twice", b"2")]
    async with Path(kafka) as path:
        for value in (b"1", b"2", b"poison \x00\xff", b"4"):
            path.append(path.slot("t", qos=2), value, key=b"key", headers=headers, timestamp=1_763_683_200_123)
        await path.drained()
    (record,) = kafka.topics[DEAD_LETTERS].records()
    assert (record.key, record.value) == (b"key", b"poison \x00\xff")
    assert list(record.headers)[:6] == [("mqtt.qos", b"2"), *headers]
    assert dict(list(record.headers)[6:]) == {
        wire.DLQ_REASON: b"invalid_record",
        wire.DLQ_ERROR_CLASS: b"PoisonedError",
        wire.DLQ_ERROR: b"Kafka will not take it: InvalidRecordError.",
        wire.DLQ_ATTEMPTS: b"3",  # in a batch of all four, in one of two, and alone
        wire.DLQ_FIRST_SEEN_MS: b"1763683200123",
        wire.DLQ_ROUTE: b"route",
        wire.DLQ_KAFKA_TOPIC: b"t",
        wire.GATEWAY_ID: b"gw",
    }


async def test_a_span_is_not_released_while_one_half_of_its_split_batch_waits() -> None:
    """The dead letter's half is done, the other half of the same span is not: neither may be acknowledged."""
    kafka = FakeKafka()
    refusing = True

    def reject(records: list[StoredRecord]) -> BridgeError | None:
        alone = [record.value for record in records] == [b"good"]
        return RefusedError("no") if alone and refusing else poison(records)

    kafka.topic("t", reject=reject)
    async with Path(kafka) as path:
        path.append(path.slot("t"), b"poison")
        path.send(b"good")
        await path.until(lambda: kafka.topics[DEAD_LETTERS].values() == [b"poison"], "dead letter stored")
        await asyncio.sleep(60)
        assert path.owner.released == []
        refusing = False
        await path.drained()
        assert path.owner.released == [b"1", b"2"]


@pytest.mark.parametrize("named", [False, True])
async def test_a_message_waits_for_each_of_its_records_when_its_batch_is_split(named: bool) -> None:
    """The first record of a message becomes a dead letter, which is refused. The second one is delivered."""
    kafka = FakeKafka()

    def reject(records: list[StoredRecord]) -> BridgeError | None:
        return named_poison(records) or (PoisonedError("no") if any(one.value == b"2a" for one in records) else None)

    topic = kafka.topic("t", reject=reject)
    dead = kafka.topic(DEAD_LETTERS, reject=lambda _records: RefusedError("no"))
    kafka.latency_s = lambda: 0.05
    async with Path(kafka) as path:
        path.send(b"first")
        for value in (b"1",) + (b"poison",) * named + (b"2b", b"3"):  # these share a batch
            slot = path.slot("t")
            if value == b"2b":
                path.accumulator.append(slot, timestamp=7, key=None, value=b"2a", headers=[])
                mark_unfinished(slot)
            path.append(slot, value)
            path.flush()
        await path.until(lambda: topic.values() == [b"first", b"1", b"2b", b"3"], "the others are delivered")
        await asyncio.sleep(60)
        assert set(path.owner.released) <= {b"1", b"2"}
        dead.reject = None
        await path.drained()
    counts = [(1, 0), (1, 0), *[(0, 1)] * named, (1, 0), (1, 0)]
    assert [(span.stored, span.dead) for span in path.spans] == counts


@pytest.mark.parametrize(("reject", "size"), [(poison, 0), (named_poison, 6000)], ids=["one record", "two, named"])
async def test_a_dead_letter_that_is_poisoned_itself_is_held_not_buried_again(reject: Reject, size: int) -> None:
    kafka, _ = FakeKafka.with_topic(reject=reject, batch_bytes=1 << 20)
    dead = kafka.topic(DEAD_LETTERS, reject=reject)
    values = [b"poison %d" % number + b"." * size for number in range(3)]
    async with Path(kafka) as path:
        for value in values:
            path.append(path.slot("t"), value)
        path.flush()
        await asyncio.sleep(120)
        assert path.held == 3
        assert dead.values() == []
        before = len(path.observer.failed)
        await asyncio.sleep(120)
        assert 12 <= len(path.observer.failed) - before <= 19, "it is asked for every seven to ten seconds"
        dead.reject = None
        await path.drained()
        assert path.ledger.dead_lettered == 3
    assert b"".join(value or b"" for value in dead.values()) == b"".join(values)


async def test_records_too_large_for_their_topic_alone_are_dead_lettered_in_parts_the_topic_takes() -> None:
    """The dead letters' topic usually has the same limit: a copy of the record would be refused as well."""
    kafka, topic = FakeKafka.with_topic(max_batch_bytes=200_000, batch_bytes=1 << 20)
    dead = kafka.topic(DEAD_LETTERS, max_batch_bytes=200_000)
    large = bytes(range(256)) * 2000
    async with Path(kafka, max_record_bytes=1_000_000) as path:
        path.append(path.slot("t"), b"small")
        path.append(path.slot("t"), large, headers=[("mqtt.topic", b"x/y")])
        path.send(b"also small")
        await path.drained()
        assert path.ledger.dead_lettered == 1
        assert path.dead == [DeadLetterReason.TOO_LARGE]
    assert topic.values() == [b"small", b"also small"]
    parts = dead.records()
    assert b"".join(record.value or b"" for record in parts) == large
    assert {len(record.value or b"") for record in parts[:-1]} == {SMALL_PART_BYTES}
    numbers = [dict(record.headers)[wire.DLQ_PART] for record in parts]
    assert numbers == [b"%d/%d" % (n, len(parts)) for n in range(1, len(parts) + 1)]
    assert all(dict(record.headers)[wire.DLQ_REASON] == b"too_large" for record in parts)


async def test_a_batch_of_dead_letter_parts_can_be_split_and_counts_each_message_once() -> None:
    kafka, _ = FakeKafka.with_topic(max_batch_bytes=200_000, batch_bytes=1 << 20)
    dead = kafka.topic(DEAD_LETTERS, max_batch_bytes=200_000)
    kafka.latency_s = lambda: 0.05
    async with Path(kafka, max_record_bytes=1_000_000) as path:
        bodies = [bytes([65 + n]) * 300_000 for n in range(3)]
        for body in bodies:
            path.send(body)
        await path.drained()
        assert path.ledger.dead_lettered == 3
        assert path.owner.released == [b"1", b"2", b"3"]
    assert b"".join(record.value or b"" for record in dead.records()) == b"".join(bodies)


# --- incarnations -----------------------------------------------------------------------------------------------------
def _once(error: BridgeError) -> Reject:
    """Fails one batch of a topic with an error, then takes everything."""
    left = [error]
    return lambda _records: left.pop() if left else None


async def test_nothing_is_handed_over_while_an_incarnation_is_being_replaced() -> None:
    kafka = FakeKafka()
    kafka.topic("bad", reject=_once(IncarnationError("UnknownProducerId")))
    healthy = kafka.topic("healthy")
    async with Path(kafka) as path:
        kafka.unreachable = DOWN
        path.send(b"x", "bad")
        await path.until(lambda: len(path.observer.failed) == 1, "failed")
        for number in range(5):
            path.send(value_of(number), "healthy")
            await asyncio.sleep(1)
        assert len(path.observer.failed) == 1
        assert healthy.values() == []
        kafka.unreachable = None
        await path.drained()
    assert healthy.values() == [value_of(n) for n in range(5)]


async def test_an_answer_for_a_batch_that_has_been_rebuilt_changes_nothing() -> None:
    kafka, topic = FakeKafka.with_topic()
    kafka.late = lambda: True
    kafka.answers_after_close = True
    policy = SenderPolicy(delivery_timeout_ns=5_000_000_000, settle_ns=1_000_000_000)
    async with Path(kafka, policy=policy) as path:
        kafka.latency_s = lambda: 8.0
        path.send(b"x")
        await asyncio.sleep(4)
        kafka.latency_s = lambda: 1.0
        await path.drained()
        await asyncio.sleep(20)
        assert path.balanced()
        assert path.accumulator.buffered_bytes == 0
    assert topic.values() == [b"x", b"x"]
    assert path.observer.stored == 1


async def test_a_healthy_partition_that_does_not_answer_is_waited_for_only_so_long_and_sent_again() -> None:
    kafka = FakeKafka()
    kafka.topic("bad", reject=_once(IncarnationError("UnknownProducerId")))
    slow = kafka.topic("slow")
    loop = asyncio.get_running_loop()
    async with Path(kafka) as path:
        path.send(b"x", "bad")
        kafka.latency_s = lambda: 1e6
        path.send(b"y", "slow")
        kafka.latency_s = lambda: 0.005
        begun_s = loop.time()
        await path.drained()
        assert loop.time() - begun_s < POLICY_SETTLE_S + 2
    assert slow.values() == [b"y"]


@pytest.mark.parametrize("steps", range(4))
async def test_a_close_that_comes_with_an_answer_ends_a_replacement(steps: int) -> None:
    kafka = FakeKafka()
    kafka.topic("bad", reject=_once(IncarnationError("UnknownProducerId")))
    kafka.topic("slow")
    async with Path(kafka) as path:
        path.send(b"x", "bad")
        kafka.latency_s = lambda: 1e6
        path.send(b"y", "slow")
        kafka.latency_s = lambda: 0.005
        await path.until(lambda: path.sender._state is SenderState.REPLACING, "replacing")
        await asyncio.sleep(0.1)
        path.sender._answered.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        await path.sender.close(patience_s=0)
        await asyncio.sleep(POLICY_SETTLE_S + 1)
        assert path.sender._state is SenderState.CLOSED
        assert not kafka.live


async def test_no_answer_within_the_delivery_timeout_replaces_the_incarnation() -> None:
    policy = SenderPolicy(delivery_timeout_ns=30_000_000_000, settle_ns=1_000_000_000)
    async with Path(policy=policy) as path:
        path.kafka.latency_s = lambda: 1e6
        path.send(b"x")
        path.kafka.latency_s = lambda: 0.005
        await asyncio.sleep(29)
        assert path.observer.incarnations == [1]
        await path.until(lambda: path.observer.incarnations == [1, 2], "replaced", within_s=3)
        await path.drained()
        (error,) = path.observer.failed
        assert str(error) == "No answer for t/0 within kafka.delivery_timeout (30 s)."
    assert path.topic.values() == [b"x"]


async def test_an_answer_that_comes_before_the_batch_is_rebuilt_is_believed() -> None:
    """The delivery time-out passed, Kafka answered while the incarnation was being replaced: no copy is written."""
    kafka, topic = FakeKafka.with_topic()
    kafka.topic("slow")
    policy = SenderPolicy(delivery_timeout_ns=10_000_000_000, settle_ns=5_000_000_000)
    async with Path(kafka, policy=policy) as path:
        kafka.latency_s = lambda: 12.0
        path.send(b"late")
        await asyncio.sleep(5)
        kafka.latency_s = lambda: 1e6
        path.send(b"keeps the replacement waiting", "slow")
        kafka.latency_s = lambda: 0.005
        await path.drained()
    assert topic.values() == [b"late"]


async def test_what_the_old_incarnation_still_delivers_does_not_change_the_order_of_first_occurrences() -> None:
    kafka, topic = FakeKafka.with_topic(batch_bytes=200)
    kafka.late = lambda: True
    policy = SenderPolicy(delivery_timeout_ns=10_000_000_000, settle_ns=1_000_000_000)
    async with Path(kafka, policy=policy) as path:
        kafka.latency_s = lambda: 15.0
        for number in range(30):
            path.append(path.slot("t"), value_of(number))
        path.flush()
        await asyncio.sleep(11)
        kafka.latency_s = lambda: 0.005
        await path.drained()
        await asyncio.sleep(20)
    assert list(dict.fromkeys(topic.values())) == [value_of(n) for n in range(30)]
    assert len(topic.values()) > 30  # the late ones came


async def test_a_failure_that_repeats_is_not_answered_by_a_storm_of_incarnations() -> None:
    kafka = FakeKafka()
    topic = kafka.topic("bad", reject=lambda _records: IncarnationError("UnknownServerError"))
    healthy = kafka.topic("healthy")
    async with Path(kafka) as path:
        path.send(b"x", "bad")
        await asyncio.sleep(600)
        assert len(kafka.producers) < 100, "in ten minutes"
        path.send(b"y", "healthy")
        await path.until(lambda: healthy.values() == [b"y"], "others go on", within_s=1)
        topic.reject = None
        await path.drained(within_s=15)
    assert topic.values() == [b"x"]


async def test_a_failure_during_the_handover_to_the_new_incarnation_is_recovered_from_too() -> None:
    """The replacement sends, and the new producer fails at once, while the recovery is not yet over."""
    kafka, topic = FakeKafka.with_topic(reject=_once(IncarnationError("x")))
    send = FakeProducer.send

    async with Path(kafka) as path:

        def failing(self: FakeProducer, *args: object) -> object:
            if self.id == 2:
                raise IncarnationError("fails at the handover")
            return send(self, *args)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FakeProducer, "send", failing)
            path.send(b"x")
            await path.drained(within_s=10)
    assert topic.values() == [b"x"]
    assert path.observer.incarnations == [1, 2, 3]


async def test_a_batch_poisoned_while_an_incarnation_is_being_replaced_is_taken_apart_all_the_same() -> None:
    kafka = FakeKafka()
    kafka.topic("lost", reject=_once(IncarnationError("x")))
    topic = kafka.topic("t", reject=poison)
    async with Path(kafka) as path:
        path.send(b"x", "lost")
        kafka.latency_s = lambda: 2.0
        for value in (b"1", b"poison", b"2"):
            path.append(path.slot("t"), value)
        path.flush()
        kafka.latency_s = lambda: 0.005
        await path.drained()
    assert topic.values() == [b"1", b"2"]
    assert kafka.topics[DEAD_LETTERS].values() == [b"poison"]
    assert path.observer.incarnations == [1, 2]


async def test_kafka_away_at_a_replacement_is_tried_with_a_growing_wait_until_it_is_back() -> None:
    kafka, topic = FakeKafka.with_topic(reject=_once(IncarnationError("x")))
    async with Path(kafka) as path:
        kafka.unreachable = DOWN
        path.send(b"x")
        await asyncio.sleep(600)
        tries = len(kafka.producers)
        assert 550 < tries < 900  # every second in the end
        assert all(producer.closed for producer in kafka.producers)
        kafka.unreachable = None
        await path.drained(within_s=1.1)
        # and soon again at the next time
        await asyncio.sleep(120)
        topic.reject = _once(IncarnationError("x"))
        kafka.start_failures.append(DOWN)
        path.send(b"y")
        await path.drained(within_s=1)
        topic.reject = _once(IncarnationError("x"))
        kafka.start_failures.append(RefusedError("Kafka refused user 'gw'."))  # is tried again, too
        path.send(b"z")
        await path.drained(within_s=15)
    assert topic.values() == [b"x", b"y", b"z"]


# --- refused ----------------------------------------------------------------------------------------------------------
async def test_a_right_that_is_lost_holds_the_partition_and_nothing_is_dead_lettered() -> None:
    kafka, topic = FakeKafka.with_topic(refused=True)
    healthy = kafka.topic("healthy")
    async with Path(kafka) as path:
        for number in range(5):
            path.send(value_of(number))
        await asyncio.sleep(300)
        assert kafka.topics[DEAD_LETTERS].values() == []
        assert path.owner.released == []
        assert {type(error) for error in path.observer.failed} == {RefusedError}
        assert 30 <= len(path.observer.failed) <= 60  # asked again every ten seconds in the end
        assert path.observer.incarnations == [1]
        path.send(b"y", "healthy")
        await path.until(lambda: healthy.values() == [b"y"], "others go on", within_s=1)
        topic.refused = False
        await path.drained(within_s=15)
        assert path.owner.released == [b"%d" % n for n in range(1, 7)]
    assert topic.values() == [value_of(n) for n in range(5)]


# --- leaders ----------------------------------------------------------------------------------------------------------
async def test_a_partition_without_a_leader_keeps_its_batch_until_it_has_one() -> None:
    kafka, topic = FakeKafka.with_topic(2, led=False)
    async with Path(kafka) as path:
        for number in range(10):
            path.send(value_of(number), "t", number % 2)
        await asyncio.sleep(60)
        assert [record.value for record in topic.partitions[1].log] == [value_of(n) for n in range(1, 10, 2)]
        assert topic.partitions[0].log == []
        assert path.observer.incarnations == [1]
        topic.partitions[0].has_leader = True
        await path.drained(within_s=3)
    assert [record.value for record in topic.partitions[0].log] == [value_of(n) for n in range(0, 10, 2)]
    assert path.observer.failed == []  # nothing was handed over to fail


async def test_a_topic_that_metadata_has_lost_waits_and_is_asked_for() -> None:
    """A replaced producer may not know a topic that was located through its predecessor."""
    async with Path(topics=[DEAD_LETTERS]) as path:
        path.send(b"x")
        await path.drained(within_s=3)
    assert path.topic.values() == [b"x"]


async def test_a_leader_lost_between_metadata_and_handover_costs_nothing() -> None:
    """LeaderMissingError at the handover: nothing was sent, no sequence number used, no incarnation lost."""
    send = FakeProducer.send
    raised = 0

    def failing(self: FakeProducer, *args: object) -> object:
        nonlocal raised
        raised += 1
        if raised <= 4:
            raise LeaderMissingError("gone")
        return send(self, *args)  # type: ignore[arg-type]

    async with Path(FakeKafka("t", batch_bytes=100)) as path:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FakeProducer, "send", failing)
            for number in range(12):  # several batches, so that one put back has followers to stand before
                path.append(path.slot("t"), value_of(number))
            await path.drained(within_s=3)
    assert path.topic.values() == [value_of(n) for n in range(12)]
    assert path.observer.incarnations == [1]


async def test_a_leader_that_stays_away_costs_incarnations_of_the_delivery_timeout_and_loses_nothing() -> None:
    async with Path() as path:
        path.send(b"x")
        path.topic.partitions[0].has_leader = False
        await asyncio.sleep(1000)
        assert path.observer.incarnations == [1, 2]  # the second does not get the batch while nobody leads
        path.topic.partitions[0].has_leader = True
        await path.drained(within_s=3)
    assert path.topic.values() == [b"x"]


# --- quotas -----------------------------------------------------------------------------------------------------------
async def test_a_broker_that_wants_no_batches_gets_none_and_loses_nothing_for_it() -> None:
    """Longer than any time-out of ours: it is no failure, and what waits goes in order when the time is over."""
    async with Path() as path:
        path.send(value_of(0))
        await path.drained(within_s=3)
        path.kafka.held_until_ns = path.clock_ns() + 300 * S
        for number in range(1, 10):
            path.send(value_of(number))
            await asyncio.sleep(30)
        assert path.topic.values() == [value_of(0)]
        assert path.observer.failed == []
        await asyncio.sleep(30)
        await path.drained(within_s=3)
    assert path.topic.values() == [value_of(n) for n in range(10)]
    assert (path.observer.incarnations, path.observer.failed) == ([1], [])


async def test_the_delivery_timeout_of_what_is_under_way_begins_when_the_broker_reads_again() -> None:
    async with Path() as path:
        path.kafka.freeze()
        path.send(b"x")
        path.kafka.held_until_ns = path.clock_ns() + 300 * S
        delivery_s = POLICY.delivery_timeout_ns / 1e9
        await asyncio.sleep(300 + delivery_s - 2)
        assert path.observer.incarnations == [1]
        await asyncio.sleep(4)
        assert len(path.observer.failed) == 1, "then it counts"
        path.kafka.thaw()
        await path.drained(within_s=30)
    assert set(path.topic.values()) == {b"x"}


async def test_what_the_spool_has_waits_for_a_quota_like_the_rest() -> None:
    async with SpoolPath() as path:
        path.kafka.held_until_ns = path.clock_ns() + 60 * S
        path.feed(0, 5)
        await asyncio.sleep(5)
        assert path.spooler.messages() == 5, "the disk may have what a quota keeps waiting"
        assert len(path.owner.released) == 5
        path.feed(5, 5)
        await asyncio.sleep(50)
        assert path.topic.values() == []
        await asyncio.sleep(6)
        await path.drained(within_s=3)
        assert path.balanced()
    assert path.topic.values() == [value_of(n) for n in range(10)]


# --- the start --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [DOWN, RefusedError("no")])
async def test_a_start_that_fails_leaves_nothing_behind_and_may_be_tried_again(error: BridgeError) -> None:
    kafka, topic = FakeKafka.with_topic()
    kafka.start_failures.append(error)
    path = Path(kafka)
    with pytest.raises(type(error)):
        await path.sender.start()
    assert kafka.live == []
    async with path:
        path.send(b"x")
        await path.drained()
    assert topic.values() == [b"x"]


# --- the end ----------------------------------------------------------------------------------------------------------
async def test_close_ends_at_once_whatever_is_going_on() -> None:
    """Under way, frozen, leaderless, replacing, unreachable: none of it makes a stop wait."""
    loop = asyncio.get_running_loop()
    for trouble in ("under way", "frozen", "leaderless", "replacing", "unreachable"):
        kafka, topic = FakeKafka.with_topic()
        path = Path(kafka)
        async with path:
            if trouble == "frozen":
                kafka.freeze()
            topic.partitions[0].has_leader = trouble != "leaderless"
            if trouble in ("replacing", "unreachable"):
                topic.reject = lambda _records: IncarnationError("x")
                kafka.unreachable = DOWN if trouble == "unreachable" else None
            path.send(b"x")
            await asyncio.sleep(0 if trouble == "under way" else 2)
            begun_s = loop.time()
        assert loop.time() - begun_s <= 2, trouble
        assert path.owner.released == []
        assert path.held == 1
        assert path.balanced()
        assert kafka.live == [], trouble


async def test_close_in_the_middle_of_a_replacement_s_start_leaves_no_producer_behind() -> None:
    kafka, _ = FakeKafka.with_topic(reject=_once(IncarnationError("x")))
    async with Path(kafka) as path:
        path.send(b"x")
        await asyncio.sleep(0.01)
        kafka.latency_s = lambda: 100.0
        await path.until(lambda: len(kafka.producers) == 2, "the new one is starting")
        assert not kafka.producers[1].closed
    assert kafka.live == []


async def test_nothing_is_sent_after_the_close() -> None:
    async with Path() as path:
        pass
    path.send(b"x")
    path.sender.renew("too late")
    await asyncio.sleep(10)
    assert (path.topic.values(), path.held, path.observer.incarnations) == ([], 1, [1])


# --- defects of ours -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("defective", "trouble"), [
    ("in_front", "replaced"),  # in the recovery
    ("start", "replaced"),  # as the next producer starts
    ("batch_stored", ""),  # as an answer is taken in
    ("send", "leaderless"),  # as waiting partitions are tried
    ("batch_failed", "frozen"),  # in the watch over deadlines
])  # fmt: skip
async def test_a_defect_is_fatal_not_silent(defective: str, trouble: str) -> None:
    kafka, topic = FakeKafka.with_topic(led=trouble != "leaderless")
    topic.reject = _once(IncarnationError("x")) if trouble == "replaced" else None
    defect = RuntimeError("a defect")

    def broken(*_: object) -> None:
        raise defect

    async with Path(kafka) as path:
        owner = {"in_front": PartitionQueue, "send": FakeProducer}.get(defective, path.observer)
        with pytest.MonkeyPatch.context() as patch:
            if defective == "start":
                kafka.start_failures.append(defect)
            else:
                patch.setattr(owner, defective, broken)
            kafka.frozen = trouble == "frozen"
            path.send(b"x")
            await asyncio.sleep(1)
            topic.partitions[0].has_leader = True
            await asyncio.sleep(300 if trouble == "frozen" else 3)
        assert path.fatal == [defect]
    assert kafka.live == []


async def test_a_failure_names_the_partition_of_its_batch_where_the_slot_has_moved_on() -> None:
    kafka, _ = FakeKafka.with_topic(3, reject=poison)
    async with Path(kafka) as path:
        slot = path.accumulator.keyless_slot(path.route, 1, "t", 3)
        path.append(slot, b"poison", key=None)
        first = slot.queue.partition
        path.flush()
        path.append(slot, b"good", key=None)
        assert slot.queue.partition != first
        await path.drained()
        assert path.observer.failed_at == [first]


async def test_a_batch_larger_than_settings_allow_now_is_taken_apart_into_more() -> None:
    """The spool keeps batches across a change of settings."""
    too_large = PoisonedError("too large", DeadLetterReason.TOO_LARGE)
    kafka, topic = FakeKafka.with_topic(reject=_once(too_large), batch_bytes=1000)
    async with Path(kafka) as path:
        for number in range(10):
            path.append(path.slot("t"), value_of(number))
        path.flush()
        kafka.batch_bytes = 90  # two records
        await path.drained()
        assert topic.values() == [value_of(number) for number in range(10)]
        assert len(path.owner.released) == 10
        assert path.dead == []


@pytest.mark.parametrize("refused", [False, True])
async def test_a_replacement_goes_on_with_the_last_answer_it_waited_for(refused: bool) -> None:
    kafka = FakeKafka()
    latencies = iter([1.0, 0.005])
    kafka.latency_s = lambda: next(latencies, 0.005)
    kafka.topic("bad", reject=_once(IncarnationError("x")))
    healthy = kafka.topic("healthy", refused=refused)
    async with Path(kafka) as path:
        loop = asyncio.get_running_loop()
        latencies = iter([1.0, 0.005])
        path.send(b"1", "healthy")
        path.send(b"2", "bad")
        began_s = loop.time()
        await path.until(lambda: path.observer.incarnations == [1, 2], "replaced")
        assert 0.9 < loop.time() - began_s < 1.5, "it waits for the healthy one's answer, and no longer"
        healthy.refused = False
        await path.drained()
        assert healthy.values() == [b"1"]
        assert len(path.observer.failed) in ((2, 3) if refused else (1,))


in_manual_time(globals())
