"""A worker's own state as /status shows it: brokers, partitions, problems, dead letters without what was in them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from bridge.batch import Batch
from bridge.errors import BridgeError, PoisonedError
from bridge.interceptors import InterceptorError
from bridge.wire import DeadLetterReason
from config.settings import KafkaSettings, RouteSettings, Settings
from gateway.lifecycle import State, StopRequest
from gateway.observation import MOST_PARTITIONS
from gateway.worker import Worker
from tests.unit.fake_kafka import FakeBatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

S = 1_000_000_000


class Producer:
    """What the metadata say: broker 1 leads even partitions, broker 2 odd ones."""

    live = True

    def __init__(self) -> None:
        self.probed: list[int] = []
        self.troubles: dict[tuple[str, int], str] = {}

    def leader(self, _topic: str, partition: int) -> int:
        return partition % 2 + 1

    def replicas(self, _topic: str, _partition: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (1, 2), (1, 2)

    def trouble_of(self, topic: str, partition: int) -> str | None:
        return self.troubles.get((topic, partition))

    def trouble(self, _topic: str) -> None: ...

    def refuses(self, _topic: str) -> bool:
        return False

    def connected(self, broker: int) -> bool:
        return broker == 1

    def has_leader(self, _topic: str, _partition: int) -> bool:
        return True

    def partition_count(self, _topic: str) -> int:
        return 6

    def metadata_refreshed_ns(self) -> int:
        return time.monotonic_ns()

    def cluster_id(self) -> str:
        return "c"

    def probe(self, broker: Any) -> None:
        self.probed.append(broker.broker)


class Clock:
    """Monotonic time that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = time.monotonic_ns
        self._ahead_ns = 0
        monkeypatch.setattr(time, "monotonic_ns", self.__call__)

    def __call__(self) -> int:
        return self._real() + self._ahead_ns

    def advance(self, seconds: float) -> None:
        self._ahead_ns += round(seconds * S)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Rig:
    """A worker that was made, and not started, beside a producer that the test plays."""

    def __init__(self, directory: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = Settings(
            data_dir=directory,
            kafka=KafkaSettings(bootstrap_servers=("kafka-1:9092",)),
            routes=(RouteSettings(name="telemetry", filters=("devices/#",), topic="orders"),),
        )
        self.clock = clock
        self.worker = Worker(settings, StopRequest())
        self.producer = Producer()
        monkeypatch.setattr(self.worker, "kafka_producer", lambda: self.producer)
        monkeypatch.setattr(self.worker.sender, "_number", 1)
        for state in (State.STARTING, State.RECOVERY, State.RUNNING):
            self.worker.service.lifecycle.advance(state)
        self.worker.sessions = []
        self.worker.contacts.clock_ns = clock
        self.worker.contacts.listed([(1, "kafka-1", 9092), (2, "kafka-2", 9092)])

    def wait_for(self, partition: int, records: int) -> None:
        """So many records are under way to a partition, from now."""
        slot = self.worker.groups[0].accumulator.slot("telemetry", 1, "orders", partition)
        builder = FakeBatch(1 << 20)
        for number in range(records):
            builder.append(number, 0, b"key", b"secret payload", [])
        batch = Batch(slot, builder, self.clock())
        batch.count, batch.size = records, builder.size()
        builder.close(records)
        slot.queue.in_flight = batch
        self.worker.ledger.received += records

    def acknowledge(self, partition: int) -> None:
        queue = self.worker.partitions.queues["orders", partition]
        assert queue.in_flight is not None
        self.worker.ledger.delivered += queue.in_flight.count
        queue.in_flight, queue.last_acknowledged_ns = None, self.clock()

    def pass_by(self, seconds: int) -> None:
        """Look once a second for so long, as the gateway does."""
        observation = self.worker.observation
        for _ in range(seconds):
            self.clock.advance(1.0)
            for look in observation.vitals.looks:
                look(self.clock())

    def document(self) -> dict[str, Any]:
        document = self.worker.observation.diagnosis.document()
        assert "secret payload" not in json.dumps(document)
        document["problems"] = [one for one in document["problems"] if one["id"] != "mqtt-disconnected"]
        return document

    def metric(self, name: str) -> dict[tuple[str, ...], float]:
        family: Any = self.worker.metrics.families[name]
        return dict(family.read())


@pytest.fixture
async def rig(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(tmp_path, clock, monkeypatch)


async def test_what_waits_and_for_whom(rig: Rig) -> None:
    for partition in range(4):
        rig.wait_for(partition, 3)
    rig.acknowledge(0)
    rig.pass_by(3)
    document = rig.document()
    rows = {row["partition"]: row for row in document["partitions"]}
    assert document["partitions_total"] == len(rows) == 4
    assert (rows[0]["health"], rows[0]["waiting"], rows[0]["silent_seconds"]) == ("ok", 0, 0)
    assert (rows[1]["health"], rows[1]["leader"], rows[1]["waiting"]) == ("waiting", 2, 3)
    assert rows[1]["waiting_bytes"] > 3 * len("secret payload")
    assert rows[1]["last_ack_age_seconds"] is None
    assert rows[1]["silent_seconds"] == pytest.approx(2, abs=0.2)
    assert document["partitions"][-1]["partition"] == 0, "the worst come first"
    one, two = document["brokers"]
    assert (one["id"], one["host"], one["port"], one["leads"], one["connected"]) == (1, "kafka-1", 9092, 2, True)
    assert (two["leads"], two["waiting"], two["connected"]) == (2, 6, False)
    assert not document["problems"]
    silence = rig.metric("gateway_kafka_partition_silence_seconds")
    assert silence["orders", "0"] == 0
    assert silence["orders", "3"] == pytest.approx(2, abs=0.2)


async def test_a_mute_broker_is_probed_named_and_forgiven(rig: Rig) -> None:
    rig.wait_for(1, 3)
    rig.worker.contacts.asked(2)
    rig.pass_by(7)
    assert rig.producer.probed.count(2) >= 3
    document = rig.document()
    (problem,) = document["problems"]
    assert (problem["id"], problem["subject"]) == ("broker-silent", "broker 2")
    assert "orders/1" in problem["text"]
    assert [broker["health"] for broker in document["brokers"]] == ["idle", "silent"]
    assert rig.metric("gateway_kafka_broker_up") == {("1",): 1, ("2",): 0}
    assert rig.metric("gateway_kafka_broker_silence_seconds")["2",] > 5
    rig.worker.contacts.answered(2)
    rig.acknowledge(1)
    rig.pass_by(1)
    assert not rig.document()["problems"]
    assert rig.metric("gateway_kafka_broker_up") == {("1",): 1, ("2",): 1}


async def test_a_broker_that_leads_what_waits_is_asked_before_it_owes_anything(rig: Rig) -> None:
    rig.wait_for(0, 1)
    rig.pass_by(5)
    assert 1 in rig.producer.probed


async def test_a_gateway_that_stood_still_calls_nobody_silent(rig: Rig) -> None:
    """A paused container: nobody could have read an answer meanwhile."""
    rig.wait_for(1, 3)
    rig.worker.contacts.asked(2)
    observation = rig.worker.observation
    now_ns = rig.clock()
    observation.vitals.stalls.tick(now_ns, now_ns + S)
    rig.pass_by(1)
    rig.clock.advance(60)
    assert not rig.document()["problems"], "before the late look"
    now_ns = rig.clock()
    observation.vitals.stalls.tick(now_ns, now_ns + S)
    found = [problem["id"] for problem in rig.document()["problems"]]
    assert found == ["event-loop-blocked"]


async def test_the_last_dead_letters_are_told_without_what_was_in_them(rig: Rig) -> None:
    note = rig.worker.observation.note_dead_letter
    for number in range(12):
        note("telemetry", DeadLetterReason.TOO_LARGE, PoisonedError(f"Number {number} is too large."), "orders")
    cause = ValueError("invalid literal for int(): 'secret payload'")
    error = InterceptorError(f"Route 'telemetry', interceptor 1: {cause}")
    error.__cause__ = cause
    note("telemetry", DeadLetterReason.INTERCEPTOR_ERROR, error, "orders")
    note("telemetry", DeadLetterReason.MISSING_VALUE, BridgeError("x" * 5000), None)
    last = rig.document()["dead_letters"]["last"]
    assert len(last) == 10
    assert (last[0]["reason"], last[0]["topic"], len(last[0]["text"])) == ("missing_value", None, 301)
    assert last[1]["text"] == "Route 'telemetry', interceptor 1: ValueError"
    assert last[2]["text"] == "Number 11 is too large."


async def test_dead_letters_are_a_problem_for_a_quarter_of_an_hour(rig: Rig) -> None:
    observation = rig.worker.observation
    observation.buried.look(rig.clock())
    rig.worker.metrics.dlq_records.child("too_large").value += 4
    found = rig.document()
    assert found["dead_letters"]["by_reason"] == {"too_large": 4}
    assert "4 messages became dead letters" in found["problems"][0]["text"]
    for _ in range(17):
        rig.clock.advance(60)
        observation.buried.look(rig.clock())
    assert not rig.document()["problems"]
    assert rig.document()["dead_letters"]["total"] == 4


async def test_partitions_are_bounded_and_the_silent_ones_are_among_them(rig: Rig) -> None:
    for partition in range(MOST_PARTITIONS + 50):
        rig.worker.partitions.queue("orders", partition)
    rig.wait_for(MOST_PARTITIONS + 40, 1)
    rig.pass_by(3)
    document = rig.document()
    assert (len(document["partitions"]), document["partitions_total"]) == (MOST_PARTITIONS, MOST_PARTITIONS + 50)
    assert document["partitions"][0]["partition"] == MOST_PARTITIONS + 40
    rows = rig.metric("gateway_kafka_partition_silence_seconds")
    assert len(rows) == MOST_PARTITIONS
    assert rows["orders", str(MOST_PARTITIONS + 40)] > 0


@pytest.fixture(autouse=True)
def _no_leftovers(rig: Rig) -> Iterator[None]:
    yield
    rig.worker.chains.close()


async def test_a_look_at_thousands_of_partitions_is_short(rig: Rig) -> None:
    """The event loop carries the messages meanwhile: CPU time, on whatever machine."""
    for partition in range(MOST_PARTITIONS):
        rig.worker.partitions.queue("orders", partition)
    rig.document()
    began = time.process_time()
    for look in rig.worker.observation.vitals.looks:
        look(rig.clock())
    looked = time.process_time() - began
    rig.document()
    asked = time.process_time() - began - looked
    print(f"a look {looked * 1e3:.2f} ms, a document {asked * 1e3:.1f} ms for {MOST_PARTITIONS} partitions")
    assert looked < 0.1
    assert asked < 1.0
