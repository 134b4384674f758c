"""The adapter on a real Kafka: the port's behaviour, and every fact about aiokafka and the broker that it relies on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.embedded.kafka import KafkaCluster
from tests.brokers.kafka_backend import SECURED, KafkaBackend
from tests.producer_port import ProducerPort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """One node with every kind of listener, for this module: it is frozen and its rights are changed."""
    with KafkaCluster(sasl=True, tls=True, settings=SECURED) as cluster:
        yield cluster


@pytest.fixture
def backend(cluster: KafkaCluster, unique: str, free_ports: Callable[[int], list[int]]) -> KafkaBackend:
    return KafkaBackend(cluster, unique, free_ports(1)[0])


class TestKafkaProducer(ProducerPort):
    """All of the suite that the Kafka in memory obeys."""
