"""What failed leaves nothing of its batches in memory, at once and without the garbage collector.

The collector comes seldom in a worker (``gateway.base.process.memory``): what waits for it is bounded in objects, not
in bytes."""

import asyncio
import gc
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import Mock

import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import KafkaConnectionError, KafkaError, RequestTimedOutError

from bridge.errors import SpoolWriteError
from bridge.kafka.batch import Handover, KafkaBatch, Request
from bridge.kafka.producer import KafkaProducer
from bridge.kafka.session import Told
from bridge.ledger import Ledger
from bridge.produce import spooler as spooler_module
from bridge.produce.accumulator import Accumulator
from bridge.produce.partitions import Partitions
from bridge.produce.spool_replay import SpoolLinks
from bridge.produce.spooler import Spooler, SpoolPolicy
from bridge.spool.record import SpoolBatch
from config.errors import forget_frames
from config.settings import KafkaSettings
from tests.unit.spool_path import opened_spool
from tests.unit.test_kafka_requests import batch
from tests.waiting import until


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(*classes: type) -> Counter[str]:
    """How many of each class there are, reachable or not."""
    return Counter(type(thing).__name__ for thing in gc.get_objects() if type(thing) in classes)


@pytest.mark.usefixtures("no_collector")
def test_an_error_that_knows_its_frame_lets_go_of_it() -> None:
    class Big:
        pass

    def fail(big: object) -> Exception:
        kept: list[Exception] = []  # what a future does in the frame that awaits it
        try:
            try:
                raise OSError("the disk")  # noqa: TRY301 - raised where it is caught, as in a coroutine
            except OSError as error:
                raise ValueError("the sentence") from error
        except ValueError as error:
            kept.append(error)
        assert big
        return kept[0]

    def once(*, forget: bool) -> None:
        error = fail(Big())
        assert str(error.__cause__) == "the disk"
        if forget:
            forget_frames(error)
            assert str(error.__cause__) == "the disk", "what was said stays"

    once(forget=False)
    assert alive(Big) == {"Big": 1}, "the cycle this is about"
    gc.collect()
    once(forget=True)
    assert not alive(Big)


class Broker:
    """aiokafka's client with one broker that leads everything; ``outcomes`` says what becomes of each request."""

    def __init__(self, *outcomes: KafkaError | None) -> None:
        self.cluster = ClusterMetadata()
        self.cluster.leader_for_partition = lambda _place: 1
        self.knot = self  # aiokafka's client knows its connections, and they know it
        self.outcomes = list(outcomes)
        self.connections: list[Any] = []

    def force_metadata_update(self) -> None: ...

    async def close(self) -> None: ...

    def ask(self, _node: int, request: Any, told: Told) -> Self:
        asyncio.get_running_loop().call_soon(self._answer, told, request, self.outcomes.pop(0))
        return self

    def _answer(self, told: Told, request: Any, outcome: KafkaError | None) -> None:
        topics = [(name, [(n, 0, 7) for n, _ in partitions]) for name, partitions in request._topics]
        told(None if outcome is not None else SimpleNamespace(topics=topics), outcome)


@pytest.mark.usefixtures("no_collector")
async def test_requests_that_failed_do_not_keep_their_batches() -> None:
    producer = KafkaProducer(KafkaSettings(bootstrap_servers=("127.0.0.1:1",), retry_backoff="1ms"), "test", ())
    failures: list[KafkaError | None] = []
    for _ in range(10):
        failures += (RequestTimedOutError(), KafkaConnectionError("gone"), None)
    producer._client = Broker(*failures)  # type: ignore[assignment]
    for _ in range(10):
        future = producer.send("t", 0, batch(producer))
        assert await asyncio.wait_for(future, 60) == 7
        del future
    await until(lambda: not producer._under_way, "nothing is under way")
    await asyncio.sleep(0)
    found = alive(KafkaBatch, Handover, Request)
    assert not found, found


@pytest.mark.usefixtures("no_collector")
async def test_a_producer_that_was_replaced_does_not_keep_its_batches() -> None:
    """Its client is a knot that waits for the collector."""
    producer = KafkaProducer(KafkaSettings(bootstrap_servers=("127.0.0.1:1",)), "test", ())
    client = producer._client = Broker()  # type: ignore[assignment]
    client.cluster.add_listener(producer._refreshed)
    for partition in range(6):
        producer.send("t", partition, batch(producer))
    await producer.close(patience_s=1.0)
    await producer.close(patience_s=1.0)
    await asyncio.sleep(0)
    del producer, client
    assert alive(Broker)
    found = alive(KafkaProducer, KafkaBatch, Handover, Request)
    assert not found, found


@pytest.mark.usefixtures("no_collector")
async def test_a_disk_that_takes_nothing_keeps_nothing_of_what_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At an attempt a second, of 4 MiB each, a full disk would take all memory within minutes."""
    monkeypatch.setattr(spooler_module, "RETRY_S", 0.0)
    monkeypatch.setattr(spooler_module, "LOOK_INTERVAL_S", 0.001)
    spool = await opened_spool(tmp_path / "spool")
    attempts = 0
    full = os.open("/dev/full", os.O_WRONLY)

    def no_space(*_: object) -> None:
        nonlocal attempts
        attempts += 1
        try:
            os.write(full, b"x")
        except OSError as error:
            raise SpoolWriteError("The disk is full.") from error

    append = spool._store.append
    monkeypatch.setattr(spool._store, "append", no_space)
    partitions = Partitions()
    accumulator = Accumulator(lambda _compressed: KafkaBatch(1 << 20, 0), lambda _span: None, partitions)
    defects: list[BaseException] = []
    links = SpoolLinks(
        spool, partitions, Mock(), Ledger(accumulator.in_flight), Mock(), time.monotonic_ns, defects.append
    )
    spooler = Spooler(links, SpoolPolicy(0, True, 1 << 30, 1 << 20))
    spooler.opened()
    slot = accumulator.slot("route", 1, "t", 0)
    accumulator.append(slot, timestamp=0, key=None, value=b"x" * 100_000, headers=[])
    accumulator.flush()
    await until(lambda: attempts >= 20, "twenty attempts")
    assert spooler.problem == "The disk is full."
    found = alive(SpoolBatch)
    assert found["SpoolBatch"] <= 2, f"{found} of {attempts}: the one under way, and the one that was just refused"
    monkeypatch.setattr(spool._store, "append", append)
    await until(lambda: spool.batches == 1, "the disk takes it")
    await spooler.close()
    await spool.close()
    os.close(full)
    assert not defects
