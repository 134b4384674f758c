"""Fixtures of real brokers: one of each for the whole session, and factories for tests that need their own.

A folder's conftest imports those it wants: ``from tests.brokers.fixtures import *  # noqa: F403``.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping

__all__ = [
    "free_ports",
    "kafka",
    "make_kafka",
    "make_mosquitto",
    "make_mqtt_broker",
    "make_topic",
    "mosquitto",
    "mqtt_broker",
    "unique",
]

import contextlib
import re
import uuid
from typing import Any, Protocol, TypeVar

import pytest

from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.embedded.mqtt import MqttBroker
from gateway.local.runtime.ports import reserve_ports
from tests.brokers.mosquitto import Mosquitto
from tests.brokers.secured import SecuredKafka, SecuredMqtt
from tests.brokers.topics import create_topic, delete_topics

Broker = TypeVar("Broker", bound=KafkaCluster | MqttBroker)

NEVER_FENCED = {
    "broker.session.timeout.ms": "600000",
    # Several of these stand by until the last test: with these they take a third of what they would.
    "broker.heartbeat.interval.ms": "10000",
    "num.io.threads": "3",
    "num.network.threads": "2",
}
"""A lone node that a busy machine, or a test's freeze, keeps from sending heartbeats is otherwise fenced by itself. Its
partitions have no leader then, in whatever test comes next. Not for a Kafka that is killed: until this time is over the
next life may not register."""
KEEPS_ALL = {"log.retention.ms": "-1"}
"""Kafka looks every five minutes for records that are too old, and tests write records of years ago."""


class MakeTopic(Protocol):
    """Creates a topic with a name of its own, led in every partition; removed when the test ends."""

    async def __call__(
        self,
        name: str = ...,
        *,
        partitions: int = 1,
        replication: int = -1,
        config: Mapping[str, str] | None = None,
        cluster: KafkaCluster | None = None,
    ) -> str: ...


@contextlib.contextmanager
def shared(broker: Broker) -> Iterator[Broker]:
    """A broker that runs for many tests. The first of a machine would write the class data at its end, and until then
    all others start without; it does so at once, and is started again."""
    with broker:
        if broker._class_data.recording:
            broker.stop()
            broker.start()
        yield broker


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """A Kafka of one node, shared: tests use topics and groups of their own, and leave the broker running."""
    with shared(KafkaCluster(settings=NEVER_FENCED | KEEPS_ALL)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def mqtt_broker() -> Iterator[MqttBroker]:
    """An MQTT broker that lets everybody in, shared: tests use client ids and topics of their own."""
    with shared(MqttBroker()) as broker:
        yield broker


@pytest.fixture
def make_kafka() -> Iterator[Callable[..., SecuredKafka]]:
    """Start a SecuredKafka (its arguments) for this test alone, to be killed, frozen or configured at will."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(SecuredKafka(*args, **kwargs))


@pytest.fixture
def make_mqtt_broker() -> Iterator[Callable[..., SecuredMqtt]]:
    """Start a SecuredMqtt (its arguments) for this test alone."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(SecuredMqtt(*args, **kwargs))


@pytest.fixture
def make_mosquitto() -> Iterator[Callable[..., Mosquitto]]:
    """Start a Mosquitto (its arguments) for this test alone; skips the test where none is installed."""
    with contextlib.ExitStack() as stack:
        yield lambda **kwargs: stack.enter_context(Mosquitto(**kwargs))


@pytest.fixture
def mosquitto(make_mosquitto: Callable[..., Mosquitto]) -> Mosquitto:
    """One for this test alone, that lets everybody in."""
    return make_mosquitto()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, for topics, client ids and groups: valid in MQTT and Kafka."""
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', request.node.name).strip('-')[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def make_topic(request: pytest.FixtureRequest, unique: str) -> AsyncIterator[MakeTopic]:
    """A factory of topics, on the shared Kafka unless ``cluster`` is given: ``await make_topic(partitions=12)``."""
    made: dict[str, list[str]] = {}

    async def make(name: str | None = None, *, cluster: KafkaCluster | None = None, **options: Any) -> str:
        bootstrap = (cluster or request.getfixturevalue("kafka")).bootstrap
        names = made.setdefault(bootstrap, [])
        name = name or f"{unique}-{len(names)}"
        await create_topic(bootstrap, name, **options)
        if cluster is None:  # the others' brokers end with their test
            names.append(name)
        return name

    yield make
    for bootstrap, names in made.items():
        if names:
            await delete_topics(bootstrap, names)


@pytest.fixture
def free_ports() -> Iterator[Callable[[int], list[int]]]:
    """Reserve loopback ports until the test ends: ``http, mqtt = free_ports(2)``. Nothing listens on them."""
    with contextlib.ExitStack() as stack:

        def reserve(count: int) -> list[int]:
            reservation = reserve_ports(count)
            stack.callback(reservation.release)
            return list(reservation.ports)

        yield reserve
