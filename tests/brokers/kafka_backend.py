"""A real Kafka as ``tests.producer_port`` wants it: topics, rights, an independent reader."""

from __future__ import annotations

__all__ = ["SECURED", "KafkaBackend", "backend", "kafka_settings", "read_topic", "secured_kafka"]

import asyncio
import itertools
import time
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from bridge.kafka.producer import KafkaProducer
from bridge.ports import StoredRecord
from config.settings import KafkaSettings
from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SECURED = {
    # Everybody may do everything but what a test forbids; the plain listener, which knows no names, is above that.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}
"""Server properties for a cluster whose users' rights can be taken away."""

_READ_SECONDS = 30.0


def kafka_settings(bootstrap: str, **changes: Any) -> KafkaSettings:
    """Settings for tests: they fail and renew sooner than the defaults."""
    return KafkaSettings.model_validate(
        {
            "bootstrap_servers": tuple(bootstrap.split(",")),
            "request_timeout": timedelta(seconds=2),
            "metadata_max_age": timedelta(milliseconds=300),
            **changes,
        }
    )


def read_topic(bootstrap: str, topic: str) -> list[list[StoredRecord]]:
    """All records of each partition, as librdkafka reads them, from the beginning to the end of this moment. Blocks."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "check.crcs": True,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=_READ_SECONDS).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        places = [TopicPartition(topic, n, OFFSET_BEGINNING) for n in sorted(found.partitions)]
        ends = [consumer.get_watermark_offsets(place, timeout=_READ_SECONDS)[1] for place in places]
        consumer.assign(places)
        records: list[list[StoredRecord]] = [[] for _ in places]
        next_offset = [0] * len(places)
        deadline = time.monotonic() + _READ_SECONDS
        while any(at < end for at, end in zip(next_offset, ends, strict=True)):
            assert time.monotonic() < deadline, f"{topic}: read {next_offset} of {ends}"
            for message in consumer.consume(num_messages=10_000, timeout=0.1):
                if message.error():
                    raise KafkaException(message.error())
                headers = [(name, value) for name, value in message.headers() or []]
                record = StoredRecord(message.timestamp()[1], message.key(), message.value(), headers)
                records[message.partition()].append(record)
                next_offset[message.partition()] = message.offset() + 1
        return records
    finally:
        consumer.close()


class KafkaBackend:
    """``tests.producer_port.Backend`` on a running cluster with a SASL listener and SECURED settings."""

    def __init__(self, cluster: KafkaCluster, name: str, dead_port: int) -> None:
        self.cluster = cluster
        self.settings = kafka_settings(
            cluster.sasl_bootstrap,
            security="SASL_PLAINTEXT",
            sasl={"username": "gateway", "password": "gateway-secret"},
            batch_bytes=16_384,
        )
        self.batch_bytes = self.settings.batch_bytes
        self._name = name
        self._dead_port = dead_port
        self._numbers = itertools.count()

    async def topic(self, partitions: int = 1, *, max_batch_bytes: int | None = None, **config: str) -> str:
        name = f"{self._name}-{next(self._numbers)}"
        if max_batch_bytes is not None:
            config["max.message.bytes"] = str(max_batch_bytes)
        async with asyncio.timeout(_READ_SECONDS):
            while True:
                try:
                    await create_topic(self.cluster.bootstrap, name, partitions=partitions, config=config)
                except AttributeError:  # aiokafka's answer to a cluster without controller, as it is after a freeze
                    await asyncio.sleep(0.1)
                else:
                    return name

    async def grow(self, topic: str, partitions: int) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.cluster.bootstrap)
        await admin.start()
        try:
            await admin.create_partitions({topic: NewPartitions(partitions)})
        finally:
            await admin.close()

    def producer(self, topics: Iterable[str] = (), **changes: Any) -> KafkaProducer:
        return KafkaProducer(self.settings.model_copy(update=changes), "gateway-test", topics)

    def nowhere(self) -> KafkaProducer:
        return KafkaProducer(kafka_settings(f"127.0.0.1:{self._dead_port}"), "gateway-test", ())

    async def read(self, topic: str, partition: int = 0) -> list[StoredRecord]:
        return (await asyncio.to_thread(read_topic, self.cluster.bootstrap, topic))[partition]

    async def forbid(self, topic: str, *, forbidden: bool = True) -> None:
        write = AclPermissionType.DENY if forbidden else AclPermissionType.ALLOW
        allow = AclPermissionType.ALLOW
        await asyncio.to_thread(self._allow, topic, {AclOperation.WRITE: write, AclOperation.DESCRIBE: allow})

    async def hide(self, topic: str, *, visible: bool = False) -> None:
        """Deny everything with a topic that exists or does not, but, if ``visible``, seeing whether it does."""
        kind = AclPermissionType.ALLOW if visible else AclPermissionType.DENY
        await asyncio.to_thread(self._allow, topic, {AclOperation.DESCRIBE: kind})

    async def allow_creation(self, *, allowed: bool) -> None:
        """Whether users may create topics anywhere in the cluster; a topic's own rights may still let them."""
        kind = AclPermissionType.ALLOW if allowed else AclPermissionType.DENY
        permissions = {AclOperation.ALL: AclPermissionType.ALLOW, AclOperation.CREATE: kind}
        await asyncio.to_thread(self._allow, "kafka-cluster", permissions, ResourceType.BROKER)

    def _allow(
        self,
        name: str,
        permissions: dict[AclOperation, AclPermissionType],
        resource: ResourceType = ResourceType.TOPIC,
    ) -> None:
        """Give everybody these rights on a topic, or the cluster, and no others."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        everything = AclBindingFilter(
            resource, name, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        for future in admin.delete_acls([everything]).values():
            future.result(_READ_SECONDS)
        rules = [
            AclBinding(resource, name, ResourcePatternType.LITERAL, "User:*", "*", operation, permission)
            for operation, permission in permissions.items()
        ]
        for future in admin.create_acls(rules).values():
            future.result(_READ_SECONDS)
        deadline = time.monotonic() + _READ_SECONDS
        while set(admin.describe_acls(everything).result(_READ_SECONDS)) != set(rules):
            assert time.monotonic() < deadline, "the broker does not know the new rights"
            time.sleep(0.02)

    def freeze(self) -> None:
        self.cluster.freeze()

    def thaw(self) -> None:
        self.cluster.thaw()


@pytest.fixture(scope="session")
def secured_kafka() -> Iterator[KafkaCluster]:
    """One node with every kind of listener and rights that can be taken away. Tests may freeze it, and thaw it."""
    with KafkaCluster(sasl=True, tls=True, settings=SECURED) as cluster:
        yield cluster


@pytest.fixture
def backend(secured_kafka: KafkaCluster, unique: str, free_ports: Callable[[int], list[int]]) -> KafkaBackend:
    """The secured Kafka, for topics of this test's own."""
    return KafkaBackend(secured_kafka, unique, free_ports(1)[0])
