"""A worker's own state as /status shows it: brokers, partitions, problems, dead letters without what was in them."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from bridge import wire
from bridge.certificate import Validity
from bridge.errors import BridgeError, LeaderMissingError, PoisonedError, UnreachableError
from bridge.interceptors import InterceptorError
from bridge.kafka.batch import KafkaBatch
from bridge.produce.batch import Batch
from bridge.wire import DeadLetterReason
from config.settings import KafkaSettings, RouteSettings, Settings
from gateway.base.lifecycle import State, StopRequest
from gateway.base.process.machine_facts import CpuWaits
from gateway.health import pace
from gateway.health.observation import MOST_PARTITIONS
from gateway.worker.worker import Worker
from tests.unit.fake_kafka import FakeBatch

S = 1_000_000_000


def made_producer() -> Any:
    """What the metadata say: broker 1 leads even partitions, broker 2 odd ones. All that it is told is kept."""
    producer = SimpleNamespace(
        live=True, probed=[], held={}, shown=[], leader=lambda _topic, partition: partition % 2 + 1,
        replicas=lambda *_: ((1, 2), (1, 2)), trouble_of=lambda *_: None, trouble=lambda _topic: None,
        refuses=lambda _topic: False, connected=lambda broker: broker == 1, has_leader=lambda *_: True,
        partition_count=lambda _topic: 6, metadata_refreshed_ns=time.monotonic_ns, cluster_id=lambda: "c",
    )  # fmt: skip
    producer.held_until_ns = lambda topic, partition: producer.held.get((topic, partition), 0)
    producer.certificates = lambda: iter(producer.shown)
    producer.probe = lambda broker: producer.probed.append(broker.broker)
    return producer


class Clock:
    """Monotonic time that a test moves, and nothing else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now_ns = time.monotonic_ns()
        monkeypatch.setattr(time, "monotonic_ns", self.__call__)

    def __call__(self) -> int:
        return self._now_ns

    def advance(self, seconds: float) -> None:
        self._now_ns += round(seconds * S)


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
        monkeypatch.setattr(pace, "cpu_waits", lambda: CpuWaits(0.0, 0.0, 0.0))  # the machine's load is no case here
        self.worker = Worker(settings, StopRequest())
        self.producer = made_producer()
        monkeypatch.setattr(self.worker.kafka, "producer", lambda: self.producer)
        monkeypatch.setattr(self.worker.kafka.sender, "_number", 1)
        for state in (State.STARTING, State.RECOVERY, State.RUNNING):
            self.worker.service.lifecycle.advance(state)
        self.worker.mqtt.sessions = []
        self.worker.kafka.contacts.clock_ns = clock
        self.worker.kafka.contacts.listed([(1, "kafka-1", 9092), (2, "kafka-2", 9092)])

    def wait_for(self, partition: int, records: int) -> None:
        """So many records are under way to a partition, from now."""
        slot = self.worker.mqtt.groups[0].accumulator.slot("telemetry", 1, "orders", partition)
        builder = FakeBatch(1 << 20)
        for number in range(records):
            builder.append(number, 0, b"key", b"secret payload", [])
        batch = Batch(slot, builder, self.clock())
        batch.count, batch.size = records, builder.size()
        builder.close(records)
        slot.queue.in_flight = batch
        self.worker.ledger.received += records

    def acknowledge(self, partition: int) -> None:
        queue = self.worker.kafka.partitions.queues["orders", partition]
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
        document = self.worker.diagnosis.document()
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
    assert 1.8 <= rows[1]["silent_seconds"] < 30, "time goes on meanwhile"
    assert document["partitions"][-1]["partition"] == 0, "the worst come first"
    one, two = document["brokers"]
    assert (one["id"], one["host"], one["port"], one["leads"], one["connected"]) == (1, "kafka-1", 9092, 2, True)
    assert (two["leads"], two["waiting"], two["connected"]) == (2, 6, False)
    assert not document["problems"]
    silence = rig.metric("gateway_kafka_partition_silence_seconds")
    assert silence["orders", "0"] == 0
    assert 1.8 <= silence["orders", "3"] < 30


async def test_a_mute_broker_is_probed_named_and_forgiven(rig: Rig) -> None:
    rig.wait_for(1, 3)
    rig.worker.kafka.contacts.asked(2)
    rig.pass_by(8)
    assert rig.producer.probed.count(2) >= 3
    document = rig.document()
    (problem,) = document["problems"]
    assert (problem["id"], problem["subject"]) == ("broker-silent", "broker 2")
    assert "orders/1" in problem["text"]
    assert [broker["health"] for broker in document["brokers"]] == ["idle", "silent"]
    assert rig.metric("gateway_kafka_broker_up") == {("1",): 1, ("2",): 0}
    assert rig.metric("gateway_kafka_broker_silence_seconds")["2",] > 5
    rig.worker.kafka.contacts.answered(2)
    rig.acknowledge(1)
    rig.pass_by(1)
    assert not rig.document()["problems"]
    assert rig.metric("gateway_kafka_broker_up") == {("1",): 1, ("2",): 1}


async def test_a_broker_that_stopped_in_good_order_is_not_up_though_it_owes_nothing(rig: Rig) -> None:
    """GatewayBrokerUnreachable fires when it has not returned for ten minutes."""
    rig.worker.kafka.contacts.listed([(1, "k1", 9092)])
    rig.pass_by(1)
    assert rig.metric("gateway_kafka_broker_up") == {("1",): 1, ("2",): 0}
    rig.wait_for(0, 1)
    rig.acknowledge(0)
    rig.pass_by(700)
    assert rig.metric("gateway_kafka_broker_up") == {("1",): 1, ("2",): 0}, "its replicas are missing"
    rig.producer.replicas, rig.producer.live = lambda *_: ((1,), (1,)), False
    rig.pass_by(1)
    assert ("2",) in rig.metric("gateway_kafka_broker_up"), "its replicas are not known"
    rig.producer.live = True
    rig.pass_by(1)
    assert rig.metric("gateway_kafka_broker_up") == {("1",): 1}


async def test_a_broker_that_left_before_the_start_is_not_up(rig: Rig) -> None:
    rig.producer.replicas = lambda *_: ((1, 2, 3), (1, 2))
    rig.wait_for(0, 1)
    rig.pass_by(1)
    assert rig.metric("gateway_kafka_broker_up") == {("1",): 1, ("2",): 1, ("3",): 0}


async def test_a_broker_that_leads_what_waits_is_asked_before_it_owes_anything(rig: Rig) -> None:
    rig.wait_for(0, 1)
    rig.pass_by(5)
    assert 1 in rig.producer.probed


async def test_a_broker_over_its_quota_is_not_silent_and_said_to_be_throttled(rig: Rig) -> None:
    for partition in (1, 3):
        rig.wait_for(partition, 3)
    rig.pass_by(1)
    for second in range(20):
        if second == 5:
            assert not rig.document()["problems"], "a moment only"
        if second % 5 == 0:
            rig.worker.kafka.contacts.hold(2, 4000)
        contact = rig.worker.kafka.contacts.get(2)
        for partition in (1, 3):
            rig.producer.held["orders", partition] = contact.held_until_ns
        rig.pass_by(1)
    document = rig.document()
    assert [row["health"] for row in document["partitions"]] == ["waiting"] * 2
    (problem,) = document["problems"]
    assert (problem["id"], problem["severity"], problem["subject"]) == ("kafka-throttled", "warning", "broker 2")
    assert "told the gateway to wait for 16 s of the last minute" in problem["text"]
    assert "6 records wait" in problem["text"]
    assert rig.producer.probed == []
    rig.acknowledge(1)
    rig.acknowledge(3)
    rig.pass_by(62)
    assert not rig.document()["problems"], "over a minute ago"


async def test_a_topic_that_does_not_exist_is_missing_and_not_silent(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.pass_by(1)
    assert rig.metric("gateway_kafka_topic_missing")["orders",] == 0
    rig.wait_for(0, 3)
    monkeypatch.setattr(rig.producer, "partition_count", lambda topic: None if topic == "orders" else 6)
    monkeypatch.setattr(rig.producer, "leader", lambda _topic, _partition: None)
    rig.pass_by(30)
    assert [problem["id"] for problem in rig.document()["problems"]] == ["topic-missing"]
    missing = rig.metric("gateway_kafka_topic_missing")
    assert missing["orders",] == 1
    assert sum(missing.values()) == 1
    monkeypatch.setattr(rig.producer, "refuses", lambda topic: topic == "orders")
    assert rig.metric("gateway_kafka_topic_missing")["orders",] == 0, "acl-refused: it may well be there"


async def test_a_spool_that_cannot_be_read_fails_in_the_metric_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rig.worker.spooling is not None
    assert rig.metric("gateway_spool_failing") == {(): 0}
    monkeypatch.setattr(rig.worker.spooling.spooler.replay, "problem", "Input/output error")
    assert [problem["id"] for problem in rig.document()["problems"]] == ["spool-broken"]
    assert rig.metric("gateway_spool_failing") == {(): 1}


async def test_silence_is_counted_for_each_leader_from_when_it_leads(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.wait_for(0, 3)
    rig.pass_by(15)
    assert [problem["subject"] for problem in rig.document()["problems"]] == ["broker 1"]
    monkeypatch.setattr(rig.producer, "leader", lambda _topic, _partition: 2)
    rig.pass_by(2)
    document = rig.document()
    assert not document["problems"], "broker 2 leads it for two seconds"
    assert 15.5 <= document["partitions"][0]["silent_seconds"] < 45
    assert rig.metric("gateway_kafka_broker_silence_seconds")["2",] < 12
    rig.pass_by(12)
    assert len(rig.document()["problems"]) == 1, "now it is its own silence"
    rig.acknowledge(0)
    rig.pass_by(1)
    assert not rig.document()["problems"]


async def test_a_gateway_that_stood_still_calls_nobody_silent(rig: Rig) -> None:
    """A paused container: nobody could have read an answer meanwhile."""
    rig.wait_for(1, 3)
    rig.worker.kafka.contacts.asked(2)
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


async def test_the_first_end_of_the_brokers_certificates_is_a_metric_and_a_problem(rig: Rig) -> None:
    assert not rig.document()["problems"]
    now_s = time.time()
    rig.producer.shown = [Validity(0, now_s + days * 86_400) for days in (300, 9.5, 100)]
    [problem] = rig.document()["problems"]
    assert (problem["id"], problem["severity"]) == ("server-certificate-expires", "warning")
    assert "certificate of a Kafka broker expires in 9.5 days" in problem["text"]
    ends = rig.metric("gateway_credential_expiry_timestamp_seconds")
    assert ends["kafka_server_certificate",] == now_s + 9.5 * 86_400
    assert ends["mqtt_server_certificate",] == 0


async def test_a_gateway_that_is_slow_does_not_say_that_all_is_well(rig: Rig) -> None:
    """Its page shows the p99 beside: 9.8 s."""
    vitals = rig.worker.observation.vitals
    for look in (*vitals.seldom, *(lambda one=one: one(rig.clock()) for one in vitals.minutely)):
        look()
    assert not rig.document()["problems"]
    rig.worker.metrics.end_to_end_seconds.child("telemetry").observe_many(round(9.8 * S), 100)
    rig.clock.advance(2)
    document = rig.document()
    assert document["latency"]["end_to_end"]["p99"] > 9
    assert [(one["id"], one["subject"]) for one in document["problems"]] == [("end-to-end-latency-high", "telemetry")]


async def test_the_last_dead_letters_are_told_without_what_was_in_them(rig: Rig) -> None:
    note = rig.worker.observation.note_dead_letter
    for number in range(12):
        note("telemetry", DeadLetterReason.TOO_LARGE, PoisonedError(f"Number {number} is too large."), "orders")
    cause = ValueError("invalid literal for int(): 'secret payload'")
    error = InterceptorError(f"Route 'telemetry', interceptor 1: {cause}")
    error.__cause__ = cause
    note("telemetry", DeadLetterReason.INTERCEPTOR_ERROR, error, "orders")
    note("telemetry", DeadLetterReason.MISSING_VALUE, BridgeError("x" * 5000), None)
    assert rig.document()["dead_letters"]["last"] == [], "Kafka has none of them yet"
    for reason in (*["too_large"] * 12, "interceptor_error", "missing_value"):
        rig.worker.observation.dead_letter_stored("telemetry", reason)
    last = rig.document()["dead_letters"]["last"]
    assert len(last) == 10
    assert (last[0]["reason"], last[0]["topic"], len(last[0]["text"])) == ("missing_value", None, 301)
    assert last[1]["text"] == "Route 'telemetry', interceptor 1: ValueError"
    assert last[2]["text"] == "Number 11 is too large."


async def test_a_dead_letter_counts_when_kafka_has_it(rig: Rig) -> None:
    """Also one that an earlier life left in the spool; of one in parts the last alone."""
    accumulator = rig.worker.mqtt.groups[0].accumulator
    slot = accumulator.slot("telemetry", 1, "gateway-dead-letters", 0, dead_letter=True)
    note = rig.worker.observation.note_dead_letter
    for _ in range(7):  # a message that comes again and again, since its dead letter is refused
        note("telemetry", DeadLetterReason.TOO_LARGE, PoisonedError("Larger than the broker takes."), "orders")
    assert rig.document()["dead_letters"] == {"total": 0, "by_reason": {}, "last": []}
    assert not rig.document()["problems"]
    builder = KafkaBatch(1 << 20, 0)
    said = [(wire.DLQ_REASON, b"too_large"), (wire.DLQ_ROUTE, b"telemetry")]
    for number, part in enumerate((b"1/2", b"2/2")):
        builder.append(number, 0, b"key", b"secret payload", [*said, (wire.DLQ_PART, part)])
    builder.append(2, 0, None, None, [(wire.DLQ_REASON, b"invalid_topic"), (wire.DLQ_ROUTE, b"gone")])
    builder.close(3)
    batch = Batch(slot, builder, rig.clock())
    batch.count, batch.size, batch.sent_ns = 3, builder.size(), rig.clock()
    rig.worker.kafka.counts.batch_stored(batch, 0, 17, rig.clock())
    found = rig.document()["dead_letters"]
    assert (found["total"], found["by_reason"]) == (2, {"too_large": 1, "invalid_topic": 1})
    assert [one["text"] for one in found["last"]] == ["Larger than the broker takes."]


async def test_a_dead_letter_that_kafka_refuses_is_a_problem_and_the_pages_problems_are_a_metric(rig: Rig) -> None:
    rig.wait_for(0, 3)
    queue = rig.worker.kafka.partitions.queues["orders", 0]
    no_session = {("mqtt-disconnected", "warning"): 1.0}
    assert rig.metric("gateway_problems") == no_session
    queue.dead_letters_refused = "It is larger than max.message.bytes."
    (problem,) = rig.document()["problems"]
    assert (problem["id"], problem["severity"]) == ("dead-letters-refused", "critical")
    assert problem["text"] == (
        "Kafka refuses dead letters for orders/0, and 3 records wait: It is larger than max.message.bytes."
    )
    rig.clock.advance(1.0)  # the next scrape
    assert rig.metric("gateway_problems") == {**no_session, ("dead-letters-refused", "critical"): 1.0}
    queue.dead_letters_refused = ""
    rig.clock.advance(1.0)
    assert rig.metric("gateway_problems") == no_session


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
        rig.worker.kafka.partitions.queue("orders", partition)
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
    rig.worker.mqtt.chains.close()


async def test_a_look_at_thousands_of_partitions_is_short(rig: Rig) -> None:
    """The event loop carries the messages meanwhile: CPU time, on whatever machine."""
    for partition in range(MOST_PARTITIONS):
        rig.worker.kafka.partitions.queue("orders", partition)
    rig.document()
    looks = []
    for _ in range(3):  # the garbage collector may run in one
        began = time.process_time()
        for look in rig.worker.observation.vitals.looks:
            look(rig.clock())
        looks.append(time.process_time() - began)
    looked = min(looks)
    began = time.process_time()
    rig.document()
    asked = time.process_time() - began
    print(f"a look {looked * 1e3:.2f} ms, a document {asked * 1e3:.1f} ms for {MOST_PARTITIONS} partitions")
    assert looked < 0.1
    assert asked < 1.0


@pytest.mark.parametrize(("error", "made", "level"), [
    (LeaderMissingError("NOT_LEADER_OR_FOLLOWER"), True, "info"),
    (LeaderMissingError("NOT_LEADER_OR_FOLLOWER"), False, "warning"),
    (UnreachableError("no answer"), True, "warning"),
])  # fmt: skip
async def test_a_topic_just_made_may_have_no_leader_without_a_warning(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: BridgeError, made: bool, level: str
) -> None:
    monkeypatch.setattr(rig.worker.kafka.topics, "is_settling", lambda topic: made and topic == "orders")
    with capture_logs() as lines:
        rig.worker.kafka._batch_retried("orders", error)
    assert [(line["event"], line["log_level"]) for line in lines] == [("batch_retried", level)]
