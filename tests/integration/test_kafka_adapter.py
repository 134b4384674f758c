"""The adapter on a real Kafka: the port's behaviour, and every fact about aiokafka and the broker that it relies on."""

import asyncio
import itertools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psutil
import pytest
from aiokafka.client import ConnectionGroup
from aiokafka.errors import RequestTimedOutError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from confluent_kafka.admin import AdminClient

from bridge.errors import IncarnationError, PoisonedError, TimestampError, UnreachableError
from bridge.kafka.batch import KafkaBatch
from bridge.kafka.connection import cluster_id
from bridge.kafka.producer import CODECS, KafkaProducer
from bridge.kafka.session import Told
from bridge.ports import Producer, StoredRecord
from bridge.wire import DeadLetterReason
from tests.brokers.kafka_backend import KafkaBackend
from tests.producer_port import NOW_MS, RECORDS, ProducerPort, fill, running, sent, values
from tests.waiting import DEADLINE_S, until


class TestKafkaProducer(ProducerPort):
    """All of the suite that the Kafka in memory obeys."""


async def test_the_id_is_the_clusters_own_and_whoever_objects_to_it_ends_the_start(backend: KafkaBackend) -> None:
    told: list[str | None] = []
    producer = KafkaProducer(backend.settings, "gateway-test", (), told.append)
    async with running(producer):
        assert told == [producer.cluster_id()] == [await cluster_id(backend.settings, "gateway-test")]
    admin = AdminClient({"bootstrap.servers": backend.cluster.bootstrap})
    assert (await asyncio.to_thread(admin.list_topics, timeout=20)).cluster_id == told[0]

    def object_to(_cluster: str | None) -> None:
        raise LookupError("another cluster")

    with pytest.raises(LookupError, match="another cluster"):
        async with running(KafkaProducer(backend.settings, "gateway-test", (), object_to)):
            pass


async def test_a_kafka_that_is_not_there_does_not_say_which_it_is(backend: KafkaBackend) -> None:
    nowhere = backend.settings.model_copy(update={"bootstrap_servers": ("127.0.0.1:1",)})
    with pytest.raises(UnreachableError, match="connection refused"):
        await cluster_id(nowhere, "gateway-test")


def wrap_send(producer: Producer, around: Callable[[Any, int], Any]) -> None:
    """Let ``around(send, number)`` stand for each produce request of a started producer, counted from 1."""
    assert isinstance(producer, KafkaProducer)
    client = producer._client
    assert client is not None
    ask, count = client.ask, 0
    tasks: set[asyncio.Task[None]] = set()

    def wrapped(node: int, request: object, told: Told) -> object:
        nonlocal count
        way = client._conns.get((node, ConnectionGroup.DEFAULT))
        if way is None or not way.connected():
            return None
        count += 1

        async def send() -> object:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            ask(node, request, lambda *outcome: answer.set_result(outcome))
            response, error = await answer
            if error is not None:
                raise error
            return response

        async def run(number: int) -> None:
            try:
                response = await around(send, number)
            except Exception as error:  # noqa: BLE001 - whatever the test wants
                told(None, error)
            else:
                told(response, None)

        task = asyncio.create_task(run(count))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return way

    client.ask = wrapped  # type: ignore[assignment, method-assign]


def losing_answers(*lost: int) -> Callable[[Any, int], Any]:
    """The requests of these numbers are carried out, and their answers lost."""

    async def around(send: Any, number: int) -> object:
        answer = await send()
        if number in lost:
            raise RequestTimedOutError
        return answer

    return around


# --- batches --------------------------------------------------------------------------------------------------------


def test_the_compiled_builder_is_there() -> None:
    """The one in Python costs 20 times as much a record."""
    assert DefaultRecordBatchBuilder.__module__ == "aiokafka.record._crecords.default_records"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_every_codec_arrives_and_can_be_taken_out_again(backend: KafkaBackend, codec: str) -> None:
    topic = await backend.topic()
    records = [*RECORDS, *values(*(b"repeated " * 20 for _ in range(20)))]
    async with running(backend.producer([topic], compression=codec)) as producer:
        batch = fill(producer.create_batch(compressed=True), records)
        plain = batch.size()
        await producer.send(topic, 0, batch)
        assert producer.records(batch) == records
        assert (batch.size() < plain) == (codec != "none")
        ours = fill(KafkaBatch(1 << 18, CODECS[codec], ours=True), records)
        await producer.send(topic, 0, ours)
        assert producer.records(ours) == records
    assert await backend.read(topic) == records * 2


@pytest.mark.parametrize("ours", [False, True])
def test_the_number_of_records_is_read_from_the_bytes_that_were_sent(ours: bool) -> None:
    """So a record the builder lost, or took twice, shows in the account."""
    batch = KafkaBatch(1 << 16, 0, ours=ours)
    for number in range(7):
        batch.append(number, NOW_MS, b"k", b"v", [])
    batch.close(9)  # as the data path would count if two had been lost
    assert batch.record_count() == 9
    batch.stamp(1, 0, 0)
    assert batch.record_count() == 7


@pytest.mark.parametrize("ours", [False, True])
def test_a_built_batch_holds_its_records_once_and_takes_no_more(ours: bool) -> None:
    batch = KafkaBatch(1 << 20, 4, ours=ours)
    for number in range(1000):
        batch.append(number, NOW_MS, None, b"." * 900, [])
    assert batch.size() > 900_000
    batch.close(1000)
    data = batch.stamp(1, 0, 0)
    assert batch.size() == len(data) < 100_000
    assert batch.append(1000, NOW_MS, None, b"x", []) is None
    again = batch.stamp(2, 2, 2)
    assert again is not data, "whoever still sends it must not see it change"
    assert len(again) == len(data)
    restored = KafkaBatch.restored(batch.encode())
    assert restored.record_count() == 1000
    assert restored.stamp(1, 0, 0) == data, "the producer's fields and the checksum alone are exchanged"


# --- sequence numbers (KIP-98) --------------------------------------------------------------------------------------


async def test_an_answer_that_never_comes_ends_with_its_connection_and_the_batch_goes_over_another(
    backend: KafkaBackend,
) -> None:
    topic = await backend.topic()
    async with running(backend.producer([topic])) as producer:
        assert isinstance(producer, KafkaProducer)
        assert producer._client is not None
        assert await sent(producer, topic, values(b"before")) is None
        connection = next(c for (_, group), c in producer._client._conns.items() if group == ConnectionGroup.DEFAULT)
        backend.freeze()
        try:
            answer = producer.send(topic, 0, fill(producer.create_batch(compressed=True), values(b"frozen")))
            await until(lambda: not connection.connected(), "the connection ends")
        finally:
            backend.thaw()
        async with asyncio.timeout(DEADLINE_S):
            await answer
        assert await sent(producer, topic, values(b"after")) is None
    assert await backend.read(topic) == values(b"before", b"frozen", b"after")


async def test_a_gap_in_the_sequence_holds_up_its_partition_alone(backend: KafkaBackend) -> None:
    """Kafka does not know the place any more: the partition begins anew, in a later epoch, and no other is asked to."""
    topic = await backend.topic(2)
    async with running(backend.producer([topic])) as producer:
        assert isinstance(producer, KafkaProducer)
        for partition in range(2):
            assert await sent(producer, topic, values(b"before"), partition) is None
        for number in range(3):
            producer._sequences[topic, 0] += 1
            for partition in range(2):
                assert await sent(producer, topic, values(b"%d" % number, b"and"), partition) is None
        assert await sent(producer, topic, values(b"after")) is None
        assert producer._sequences == {(topic, 0): 3, (topic, 1): 7}
        assert producer._epochs == {(topic, 0): producer._epoch + 3}
    expected = values(b"before", b"0", b"and", b"1", b"and", b"2", b"and")
    assert await backend.read(topic) == [*expected, *values(b"after")]
    assert await backend.read(topic, 1) == expected


async def test_a_place_that_is_lost_again_at_once_costs_the_incarnation(backend: KafkaBackend) -> None:
    topic = await backend.topic()

    async def around(send: Any, number: int) -> object:
        answer = await send()
        if number > 1:
            answer.topics = [(name, [(n, 45, *rest[1:]) for n, *rest in many]) for name, many in answer.topics]
        return answer

    async with running(backend.producer([topic])) as producer:
        wrap_send(producer, around)
        assert await sent(producer, topic, values(b"before")) is None
        failure = await sent(producer, topic, values(b"lost"))
        assert isinstance(failure, IncarnationError)
        assert "OUT_OF_ORDER_SEQUENCE" in str(failure)


async def test_a_rejection_after_an_attempt_without_answer_does_not_give_numbers_back(backend: KafkaBackend) -> None:
    """The first attempt may have been stored. With its numbers the next batch would be taken for its repetition."""
    topic = await backend.topic()

    async def around(send: Any, number: int) -> object:
        answer: Any = await send()
        if number == 1:
            raise RequestTimedOutError
        if number == 2:
            answer.topics = [(name, [(n, 10, *rest[1:]) for n, *rest in many]) for name, many in answer.topics]
        return answer

    async with running(backend.producer([topic])) as producer:
        wrap_send(producer, around)
        failure = await sent(producer, topic, values(b"stored, and rejected when it came again"))
        assert isinstance(failure, PoisonedError)
        assert await sent(producer, topic, values(b"no repetition")) is None
    assert await backend.read(topic) == values(b"stored, and rejected when it came again", b"no repetition")


async def test_a_repetition_of_stored_numbers_is_acknowledged_and_dropped(backend: KafkaBackend) -> None:
    """Why those numbers must never be given to other records."""
    topic = await backend.topic()
    async with running(backend.producer([topic])) as producer:
        assert isinstance(producer, KafkaProducer)
        assert await sent(producer, topic, values(b"stored")) is None
        producer._sequences[topic, 0] = 0
        assert await sent(producer, topic, values(b"taken for a repetition")) is None
    assert await backend.read(topic) == values(b"stored")


async def test_the_broker_s_word_that_it_has_a_batch_already_is_an_acknowledgement(backend: KafkaBackend) -> None:
    """DUPLICATE_SEQUENCE_NUMBER: it has forgotten the offset, not the batch."""
    topic = await backend.topic()

    async def around(send: Any, _number: int) -> object:
        answer = await send()
        answer.topics = [
            (name, [(partition, 46, *rest[1:]) for partition, *rest in many]) for name, many in answer.topics
        ]
        return answer

    async with running(backend.producer([topic])) as producer:
        wrap_send(producer, around)
        assert await sent(producer, topic, values(b"1")) is None
        assert await sent(producer, topic, values(b"2")) is None
    assert await backend.read(topic) == values(b"1", b"2")


async def test_a_batch_whose_answer_was_lost_is_stored_once_also_where_numbers_wrap_as_java_s_do(
    backend: KafkaBackend,
) -> None:
    """Of the second batch an answer is lost, of the third one two."""
    topic = await backend.topic()
    async with running(backend.producer([topic])) as producer:
        assert isinstance(producer, KafkaProducer)
        producer._sequences[topic, 0] = 2**31 - 3
        wrap_send(producer, losing_answers(2, 4, 5))
        for number in range(4):
            assert await sent(producer, topic, values(*(b"%d.%d" % (number, n) for n in range(5)))) is None
        assert producer._sequences[topic, 0] == 17
    assert await backend.read(topic) == values(*(b"%d.%d" % (number, n) for number in range(4) for n in range(5)))


# --- what the broker refuses ----------------------------------------------------------------------------------------


async def test_a_record_without_key_is_poison_to_a_compacted_topic_and_told_as_such(backend: KafkaBackend) -> None:
    topic = await backend.topic(**{"cleanup.policy": "compact"})
    async with running(backend.producer([topic])) as producer:
        failure = await sent(producer, topic, [StoredRecord(NOW_MS, None, b"x", [])])
        assert isinstance(failure, PoisonedError)
        assert failure.reason is DeadLetterReason.INVALID_RECORD
        assert failure.records == (0,), "Kafka names it"
        assert str(failure) == (
            f"Kafka will not take a batch to topic {topic}: it has a record without a key for a compacted topic, "
            "or one that the broker's own check refuses (INVALID_RECORD)."
        )
        assert await sent(producer, topic, values(b"with one")) is None
    assert await backend.read(topic) == values(b"with one")


async def test_records_of_the_far_future_are_named_and_no_poison(backend: KafkaBackend) -> None:
    topic = await backend.topic()
    late = [StoredRecord(NOW_MS + (2 * 3_600_000 if n in (1, 4) else 0), b"k", b"%d" % n, []) for n in range(6)]
    async with running(backend.producer([topic])) as producer:
        failure = await sent(producer, topic, late)
        assert isinstance(failure, TimestampError)
        assert failure.records == (1, 4)
        assert "compare the gateway's clock with the broker's" in str(failure)
        assert await sent(producer, topic, values(b"now")) is None


async def test_an_unexpected_error_in_a_request_is_an_answer_not_a_silence(backend: KafkaBackend) -> None:
    topic = await backend.topic()

    async def around(send: Any, number: int) -> object:
        if number == 1:
            raise KeyError("a defect")
        return await send()

    async with running(backend.producer([topic])) as producer:
        wrap_send(producer, around)
        failure = await sent(producer, topic, values(b"x"))
        assert isinstance(failure, IncarnationError)
        assert "a defect" in str(failure)


# --- metadata -------------------------------------------------------------------------------------------------------


async def test_metadata_is_renewed_once_per_age_unasked(backend: KafkaBackend) -> None:
    age_ns = backend.settings.metadata_max_age.total_seconds() * 1e9
    async with running(backend.producer([await backend.topic()])) as producer:
        seen = [producer.metadata_refreshed_ns()]
        while len(seen) < 5:
            await until(lambda: producer.metadata_refreshed_ns() != seen[-1], "it is renewed")
            seen.append(producer.metadata_refreshed_ns())
        assert all(later - earlier > 0.9 * age_ns for earlier, later in itertools.pairwise(seen[1:]))


async def test_a_broker_s_older_word_on_its_leaders_does_not_count(backend: KafkaBackend) -> None:
    """As a thawed broker gives it, or one cut off from its controller. A request to the right leader goes on."""
    topic = await backend.topic()
    async with running(backend.producer([topic])) as producer:
        assert isinstance(producer, KafkaProducer)
        client = producer._client
        assert client is not None
        assert client._leaders._known[topic, 0][0] >= 0, "the broker tells the epoch"
        newer = (client._leaders._known[topic, 0][0] + 1, (0, 0, 7, [7], [7]))
        client._leaders._known[topic, 0] = newer
        assert await producer.refresh_metadata()
        assert producer.leader(topic, 0) == 7
        client._leaders._known.clear()
        assert await producer.refresh_metadata()
        assert producer.leader(topic, 0) == 1


async def test_a_frozen_broker_s_metadata_ages(backend: KafkaBackend) -> None:
    """What /readyz turns red by."""
    async with running(backend.producer([await backend.topic()])) as producer:
        backend.freeze()
        try:
            await asyncio.sleep(0.1)  # an answer may be on its way
            seen = producer.metadata_refreshed_ns()
            async with asyncio.timeout(DEADLINE_S):
                assert not await producer.refresh_metadata()
            assert producer.metadata_refreshed_ns() == seen
        finally:
            backend.thaw()


async def test_a_close_ends_the_wait_for_metadata(backend: KafkaBackend) -> None:
    async with running(backend.producer([await backend.topic()], request_timeout=timedelta(seconds=60))) as producer:
        backend.freeze()
        try:
            asked = asyncio.ensure_future(producer.refresh_metadata())
            await asyncio.wait([asked], timeout=0.1)
            assert not asked.done()
            await producer.close(patience_s=1)
            async with asyncio.timeout(30):
                assert not await asked
        finally:
            backend.thaw()


@pytest.mark.parametrize("turns", range(6))
async def test_a_topic_watched_while_metadata_is_under_way_is_in_the_answer_all_the_same(
    backend: KafkaBackend, turns: int
) -> None:
    first, later = await backend.topic(), await backend.topic()
    async with running(backend.producer([first])) as producer:
        under_way = asyncio.ensure_future(producer.refresh_metadata())
        for _ in range(turns):
            await asyncio.sleep(0)
        producer.watch_topic(later)
        assert await producer.refresh_metadata()
        assert producer.partition_count(later) == 1
        assert producer.partition_count(first) == 1
        await under_way


# --- the end --------------------------------------------------------------------------------------------------------


class Leftovers:
    """Tasks and sockets that are there now and were not before."""

    def __init__(self) -> None:
        self._tasks = asyncio.all_tasks()
        self._process = psutil.Process()
        self._sockets = self._open()

    def _open(self) -> set[tuple[int, Any]]:
        return {(c.fd, c.laddr) for c in self._process.net_connections("tcp")}

    def now(self) -> list[object]:
        return [*(asyncio.all_tasks() - self._tasks), *(self._open() - self._sockets)]

    async def gone(self) -> None:
        await until(lambda: not self.now(), f"nothing is left; at first {self.now()}")


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("frozen_s", [0, 0.3, 2.7], ids=["alive", "frozen", "frozen, connecting again"])
async def test_a_closed_producer_leaves_no_task_and_no_socket(
    backend: KafkaBackend, frozen_s: float, listener: str
) -> None:
    topic = await backend.topic(12)
    changes: dict[str, Any] = {}
    if listener == "SASL_SSL":
        certificates = backend.cluster.certificates
        tls = backend.settings.tls.model_copy(update={"ca_file": certificates.ca_file})
        changes = {
            "bootstrap_servers": tuple(backend.cluster.sasl_tls_bootstrap.split(",")),
            "security": "SASL_SSL",
            "tls": tls,
        }
    before = Leftovers()
    producer = backend.producer([topic], **changes)
    await producer.start()
    assert await sent(producer, topic, values(b"before")) is None
    try:
        if frozen_s:
            backend.freeze()
        large = values(b"".join(n.to_bytes(4) for n in range(3, 10**7, 997)) * 30)  # more than a socket's buffer takes
        answers = [producer.send(topic, n, fill(producer.create_batch(compressed=False), large)) for n in range(12)]
        await asyncio.wait(answers, timeout=frozen_s)
        begun = time.monotonic()
        await producer.close(patience_s=1)
        assert time.monotonic() - begun < 29, "a TLS connection alone would wait 30 s for the frozen broker's goodbye"
        await before.gone()
    finally:
        backend.thaw()


async def test_a_start_that_is_cancelled_leaves_nothing_once_it_is_closed(backend: KafkaBackend) -> None:
    before = Leftovers()
    backend.freeze()
    try:
        for wait_s in (0.0, 0.01, 0.1, 0.5):
            producer = backend.producer([])
            starting = asyncio.ensure_future(producer.start())
            await asyncio.sleep(wait_s)
            starting.cancel()
            await asyncio.wait([starting])
            await producer.close(patience_s=1)
        await before.gone()
    finally:
        backend.thaw()


async def test_a_close_that_is_cancelled_can_be_gone_on_with(backend: KafkaBackend) -> None:
    topic = await backend.topic()
    before = Leftovers()
    producer = backend.producer([topic])
    await producer.start()
    backend.freeze()
    try:
        answer = producer.send(topic, 0, fill(producer.create_batch(compressed=True), values(b"x")))
        await asyncio.wait([answer], timeout=0.1)
        closing = asyncio.ensure_future(producer.close(patience_s=5))
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await producer.close(patience_s=1)
        await before.gone()
    finally:
        backend.thaw()


async def test_what_a_closed_producer_had_not_handed_to_the_network_is_never_delivered(backend: KafkaBackend) -> None:
    """Delivered after a thaw it would come behind what the next incarnation has sent since."""
    topic = await backend.topic()
    producer = backend.producer([topic])
    await producer.start()
    assert await sent(producer, topic, values(b"before")) is None
    large = values(b"." * 20_000_000)  # more than the sockets' buffers take
    backend.freeze()
    try:
        answer = producer.send(topic, 0, fill(producer.create_batch(compressed=False), large))
        await asyncio.wait([answer], timeout=0.5)
        await producer.close(patience_s=1)
    finally:
        backend.thaw()
    async with running(backend.producer([topic])) as successor:
        assert await sent(successor, topic, values(b"after")) is None
    assert await backend.read(topic) == values(b"before", b"after")


async def test_a_frozen_broker_at_the_start_is_unreachable_within_its_timeouts(backend: KafkaBackend) -> None:
    producer = backend.producer([])
    timeout_s = backend.settings.request_timeout.total_seconds()
    backend.freeze()
    try:
        begun = time.monotonic()
        with pytest.raises(UnreachableError, match=r"no answer within kafka\.request_timeout"):
            await producer.start()
        assert time.monotonic() - begun < 15 * timeout_s
    finally:
        backend.thaw()
        await producer.close(patience_s=1)
