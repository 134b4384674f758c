"""A producer's requests: how each ends, whatever becomes of its connection. On a client in memory."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import AuthenticationFailedError, KafkaConnectionError

from bridge.errors import BridgeError, PoisonedError, RefusedError
from bridge.kafka import producer as producer_module
from bridge.kafka.producer import KafkaProducer
from bridge.kafka.session import Told
from bridge.ports import BatchBuilder, StoredRecord
from config.settings import KafkaSettings
from tests.unit.manual_time import in_manual_time

PLACE = ("t", 0)
MESSAGE_TOO_LARGE = 10


class Client:
    """Brokers that answer when the test says so, or whose connections never come about."""

    def __init__(self) -> None:
        self.cluster = ClusterMetadata()
        self.leader = 1
        self.cluster.leader_for_partition = lambda _place: self.leader
        self.connectable: set[int] = {1, 2}
        self.refuses_login = False
        self.open: set[int] = set()
        self.asked: list[tuple[int, Told]] = []
        self.closed: list[int] = []
        self.connections: list[Any] = []

    def ask(self, node: int, _request: Any, told: Told) -> object:
        if node not in self.open:
            return None
        self.asked.append((node, told))
        return SimpleNamespace(close=lambda _reason: self.closed.append(node))

    async def ready(self, node: int) -> bool:
        if self.refuses_login:
            raise AuthenticationFailedError
        if node not in self.connectable:
            await asyncio.get_running_loop().create_future()
        self.open.add(node)
        return True

    def force_metadata_update(self) -> None: ...

    async def close(self) -> None: ...

    def answer(self, offset: int) -> None:
        _, told = self.asked.pop(0)
        told(SimpleNamespace(topics=[(PLACE[0], [(PLACE[1], 0, offset)])]), None)


def batch(producer: KafkaProducer) -> BatchBuilder:
    made = producer.create_batch(compressed=False)
    made.append(0, 1, None, b"x", [])
    made.close(1)
    return made


def started(retried: Callable[[str, BridgeError], None] | None = None) -> tuple[KafkaProducer, Client]:
    producer = KafkaProducer(KafkaSettings(), "test", (), None, retried)
    client = producer._client = Client()  # type: ignore[assignment]
    return producer, client


async def test_the_answer_is_told_in_the_turn_that_brings_it() -> None:
    producer, client = started()
    told: list[tuple[int, BridgeError | None]] = []
    producer.hand_over(*PLACE, batch(producer), lambda *outcome: told.append(outcome))
    await asyncio.sleep(0.1)
    assert [node for node, _ in client.asked] == [1], "the connection was opened for it"
    client.answer(17)
    assert told == [(17, None)]


@pytest.mark.parametrize("connected", [True, False])
async def test_a_silent_broker_is_left_when_another_leads(connected: bool) -> None:
    errors: list[BridgeError] = []
    producer, client = started(lambda _topic, error: errors.append(error))
    client.open = {1, 2} if connected else {2}
    client.connectable = {2}
    answer = producer.send(*PLACE, batch(producer))
    await asyncio.sleep(producer_module._ABANDON_AFTER_S / 2)
    client.leader = 2
    producer._refreshed(client.cluster)
    assert not errors, "it may answer yet"
    await asyncio.sleep(producer_module._ABANDON_AFTER_S)
    producer._refreshed(client.cluster)
    assert "another leader" in str(errors)
    assert client.closed == [1] * connected, "the broker would read what waits in the connection much later"
    await asyncio.sleep(0.1)
    late = client.asked.pop(0)[1] if connected else None
    client.answer(4)
    assert await answer == 4
    if late is not None:
        late(None, KafkaConnectionError("closed"))
    assert len(errors) == 1


@pytest.mark.parametrize("lost", [False, True], ids=["never sent", "sent, and the answer lost"])
async def test_a_refused_login_frees_the_sequence_numbers_of_a_batch_that_was_never_sent(lost: bool) -> None:
    """Kafka may have stored the one that was sent: with its numbers other records would be taken for a repetition."""
    producer, client = started()
    client.open = {1} if lost else set()
    client.refuses_login = True
    answer = producer.send(*PLACE, batch(producer))
    await asyncio.sleep(0.1)
    epoch = producer._epoch
    if lost:
        client.open.clear()
        client.asked.pop(0)[1](None, KafkaConnectionError("lost"))
        await asyncio.wait({answer}, timeout=60)
    assert isinstance(answer.exception(), RefusedError)
    assert producer._sequences[PLACE] == 0
    assert (producer._epochs.get(PLACE, epoch) == epoch) is not lost, "numbers that are free again, or a new epoch"


async def test_batches_of_two_writers_of_a_partition_go_one_after_the_other() -> None:
    """Routes and commands both write the dead-letter topic. Of two in one request the broker drops the first, and a
    refused batch gives its numbers back, which must not be those before another's."""
    producer, client = started()
    client.open = {1}
    refused, other = (producer.send(*PLACE, batch(producer)) for _ in range(2))
    await asyncio.sleep(0.1)
    ((_, told),) = client.asked
    client.asked.clear()
    told(SimpleNamespace(topics=[(PLACE[0], [(PLACE[1], MESSAGE_TOO_LARGE, -1)])]), None)
    assert isinstance(producer.failure(refused), PoisonedError)
    await asyncio.sleep(0.1)
    client.answer(7)
    assert await other == 7
    assert producer._sequences[PLACE] == 1
    assert not producer._places


async def test_a_closed_producer_tells_nothing_more() -> None:
    producer, client = started()
    client.open = {1}
    answer = producer.send(*PLACE, batch(producer))
    await asyncio.sleep(0.1)
    await producer.close(patience_s=1)
    client.answer(3)
    assert not answer.done()


async def test_a_defect_in_an_answer_fails_its_batches_and_no_others() -> None:
    producer, client = started()
    client.open = {1}
    bad = producer.send(*PLACE, batch(producer))
    await asyncio.sleep(0.1)
    _, told = client.asked.pop(0)
    told(SimpleNamespace(topics=None), None)
    assert isinstance(producer.failure(bad), BridgeError)
    good = producer.send(PLACE[0], 0, batch(producer))
    await asyncio.sleep(0.1)
    client.answer(5)
    assert await good == 5


@pytest.mark.parametrize("codec", ["none", "gzip"])
async def test_a_batch_from_the_spool_gets_the_present_codec(codec: str) -> None:
    """The broker may not know the one that it was written with: it refuses that for ever."""
    made = KafkaProducer(KafkaSettings(), "test", ()).create_batch(compressed=True)
    records = [StoredRecord(number, None, b"x" * 1000, [("a", None)]) for number in range(100)]
    for number, record in enumerate(records):  # more than a batch of the present settings holds
        made.append(number, record.timestamp_ms, record.key, record.value, record.headers)
    made.close(len(records))
    producer = KafkaProducer(KafkaSettings(compression=codec, batch_bytes=16384), "test", ())
    restored = producer.restore(made.encode())
    assert (restored.encode()[22] & 7, restored.record_count()) == (producer_module.CODECS[codec], len(records))
    assert producer.records(restored) == records


in_manual_time(globals())
