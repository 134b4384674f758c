"""A route with sessions of its own: alarms do not wait behind telemetry, whatever telemetry waits for."""

import asyncio
import json
import math
import time
from collections.abc import Callable

import pytest
from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_LOG_APPEND_TIME, Consumer, TopicPartition

from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.packets import Message
from tests.brokers.topics import create_topic, delete_topics
from tests.chaos.case import in_order
from tests.chaos.fixtures import MakeCase
from tests.chaos.harness import FULL
from tests.chaos.threaded import ThreadedBroker
from tests.waiting import passes, wait_until

pytestmark = pytest.mark.slow

BACKLOG = 1_000_000 if FULL else 150_000
ALARMS = 100
AT_ONCE_MS = 100  # on a busy machine a tenth of the drain: behind telemetry an alarm would take half of it
ALARM_SESSIONS = {"groups": [{"name": "alarms"}]}


def routes(telemetry: str, alarms: str) -> list[dict[str, object]]:
    return [
        {"name": "alarms", "filters": ["devices/+/alarm"], "topic": alarms, "group": "alarms"},
        {"name": "telemetry", "filters": ["devices/#"], "topic": telemetry},
    ]


def raise_alarm(broker: ThreadedBroker, number: int) -> None:
    """One alarm, which says when it was published."""

    def publish() -> None:
        body = json.dumps({"number": number, "ms": time.time() * 1000}).encode()
        broker.broker.publish(Message("devices/d1/alarm", body, 1, publisher="alarmist"))

    broker.call(publish)


def delays_ms(bootstrap: str, topic: str, count: int) -> list[float]:
    """From each alarm's publication to its place in Kafka's log, by the broker's clock."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "alarms", "enable.auto.commit": False})
    found: dict[int, float] = {}
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        deadline = time.monotonic() + 30
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} alarms"
            for message in consumer.consume(1000, 0.2):
                kind, appended_ms = message.timestamp()
                assert kind == TIMESTAMP_LOG_APPEND_TIME
                value = message.value()
                assert value is not None
                body = json.loads(value)
                found.setdefault(body["number"], appended_ms - body["ms"])
    finally:
        consumer.close()
    return sorted(found.values())


def test_alarms_are_in_kafka_at_once_while_a_backlog_of_telemetry_drains(
    kafka: KafkaCluster, make_case: MakeCase, unique: str
) -> None:
    alarms = f"{unique}-alarms"
    asyncio.run(create_topic(kafka.bootstrap, alarms, config={"message.timestamp.type": "LogAppendTime"}))
    case = make_case(in_order(10_000_000, max_inflight=1000), mqtt=ALARM_SESSIONS, routes=routes(unique, alarms))
    broker, gateway = case.broker, case.gateway
    assert gateway.stop() == -15, "the sessions stay, and queue what comes"
    broker.start_load(1)
    broker.burst(BACKLOG)
    wait_until(lambda: broker.waiting() >= BACKLOG, "the backlog is there")
    published = broker.stop_load()
    gateway.start(ready=False)
    wait_until(gateway.running, "it drains")
    began, number = time.monotonic(), 0
    while not broker.drained() or number < ALARMS:
        raise_alarm(broker, number)
        number += 1
        passes(began + number * 0.02 - time.monotonic())  # the pace of alarms
    drained_s = time.monotonic() - began
    found = delays_ms(kafka.bootstrap, alarms, number)
    median, p99 = found[len(found) // 2], found[int(len(found) * 0.99)]
    print(f"{BACKLOG} messages drained in {drained_s:.1f} s beside {number} alarms: median "
          f"{median:.0f} ms, p99 {p99:.0f} ms, longest {found[-1]:.0f} ms")  # fmt: skip
    case.finish(published, copies=math.inf, ordered=False)
    assert median <= max(AT_ONCE_MS, drained_s * 1000 / 10)
    assert p99 <= drained_s * 1000 / 2


@pytest.mark.parametrize("way", ["reload", "restart", "crash"])
def test_what_waits_while_its_route_gets_sessions_of_its_own_is_written(
    make_case: MakeCase, unique: str, way: str
) -> None:
    """The broker has queued it for the other sessions alone, which later drop copies of the same topics."""
    other = {"name": "other", "filters": ["other/#"], "topic": unique, "group": "alarms"}
    own = {"name": "own", "filters": ["devices/+/telemetry"], "topic": unique, "group": "alarms"}
    every = {"name": "every", "filters": ["devices/#"], "topic": unique}
    slow = in_order(max_inflight=8)
    if way == "reload":
        case = make_case(slow, workers=1, mqtt=ALARM_SESSIONS, routes=[other, every])
    else:
        case = make_case(slow, workers=1, routes=[every])
        assert case.gateway.stop() == -15, "the sessions stay, and queue what comes"
    broker, gateway = case.broker, case.gateway
    broker.start_load(500, waiting=6000)
    wait_until(lambda: broker.waiting() > 5000, "a queue")
    gateway.configure(mqtt=ALARM_SESSIONS, routes=[own, {**every, "topic": f"{unique}-rest"}])
    if way == "reload":
        gateway.commanded("reload")
    else:
        gateway.start()
    if way == "crash":
        case.kill()
        gateway.start()
    first = broker.stop_load()
    established = {"group": "alarms", "filters": ["$share/gateway/devices/+/telemetry"]}
    wait_until(
        lambda: any(established.items() <= event.items() for event in gateway.events("filters_established")),
        f"the queues were empty; {gateway.tail()}", 60,
    )  # fmt: skip
    broker.start_load(500, counts=first)
    case.flows(1000)
    case.finish(copies=sum(first.values()), ordered=False)


def test_alarms_are_acknowledged_while_telemetry_cannot_be_written(
    make_kafka: Callable[..., KafkaCluster], make_case: MakeCase, unique: str
) -> None:
    """Without a spool, and with telemetry's topic gone: its windows fill, and reading pauses."""
    kafka = make_kafka()
    alarms = f"{unique}-alarms"
    for topic in (unique, f"{unique}-dead", alarms):
        asyncio.run(create_topic(kafka.bootstrap, topic, config={"message.timestamp.type": "LogAppendTime"}))
    case = make_case(
        bootstrap=kafka.bootstrap, spool={"enabled": False}, ledger={"topic": ""}, kafka={"topics": {"create": False}},
        mqtt=ALARM_SESSIONS, routes=routes(unique, alarms),
    )  # fmt: skip
    broker = case.broker
    asyncio.run(delete_topics(kafka.bootstrap, [unique]))
    wait_until(lambda: not case.gateway.ready(), "the topic is gone")
    broker.start_load(2000)
    wait_until(lambda: broker.unacknowledged() >= 4 * 32, "telemetry's windows are full")
    for number in range(3 * ALARMS):
        raise_alarm(broker, number)
        if (number + 1) % ALARMS == 0:
            wait_until(lambda: broker.unacknowledged() == 4 * 32, "every alarm is acknowledged")
    found = delays_ms(kafka.bootstrap, alarms, 3 * ALARMS)
    assert found[ALARMS - 1] <= 10 * AT_ONCE_MS, "once in three times 100 at once, behind nothing else"
