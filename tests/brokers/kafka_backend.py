"""A real Kafka as ``tests.producer_port`` wants it: topics, rights, an independent reader."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Message
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
from tests.brokers.fixtures import NEVER_FENCED, shared
from tests.brokers.reading import read_all
from tests.brokers.secured import SecuredKafka
from tests.brokers.topics import add_partitions, create_topic
from tests.waiting import wait_until

SECURED = {
    # Everybody may do everything but what a test forbids; the plain listener, which knows no names, is above that.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}
"""Server properties for a cluster whose users' rights can be taken away."""

Rights = dict[AclOperation, AclPermissionType]
_READ_SECONDS = 60.0


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
    """All records of each partition, to the end of this moment. Blocks."""

    def record(message: Message) -> StoredRecord:
        return StoredRecord(message.timestamp()[1], message.key(), message.value(), list(message.headers() or []))

    return read_all(bootstrap, topic, record)


def set_rights(
    bootstrap: str, name: str, rights: Rights, *, kind: ResourceType = ResourceType.TOPIC, prefixed: bool = False
) -> None:
    """Give everybody these rights on a topic, a group or the cluster, and no others; ``prefixed``: on all whose names
    begin so. Returns when the broker knows them."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    everything = AclBindingFilter(kind, name, pattern, None, None, AclOperation.ANY, AclPermissionType.ANY)
    for future in admin.delete_acls([everything]).values():
        future.result(_READ_SECONDS)
    rules = [AclBinding(kind, name, pattern, "User:*", "*", *right) for right in rights.items()]
    for future in admin.create_acls(rules).values() if rules else ():
        future.result(_READ_SECONDS)
    wait_until(
        lambda: set(admin.describe_acls(everything).result(_READ_SECONDS)) == set(rules), "the broker knows its rights"
    )


class KafkaBackend:
    """``tests.producer_port.Backend`` on a running cluster with a SASL listener and SECURED settings."""

    def __init__(self, cluster: SecuredKafka, name: str, dead_port: int) -> None:
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
        await add_partitions(self.cluster.bootstrap, topic, partitions)

    def producer(self, topics: Iterable[str] = (), **changes: Any) -> KafkaProducer:
        return KafkaProducer(self.settings.model_copy(update=changes), "gateway-test", topics)

    def nowhere(self) -> KafkaProducer:
        return KafkaProducer(kafka_settings(f"127.0.0.1:{self._dead_port}"), "gateway-test", ())

    async def read(self, topic: str, partition: int = 0) -> list[StoredRecord]:
        return (await asyncio.to_thread(read_topic, self.cluster.bootstrap, topic))[partition]

    async def forbid(self, topic: str, *, forbidden: bool = True) -> None:
        write = AclPermissionType.DENY if forbidden else AclPermissionType.ALLOW
        await self._allow(topic, {AclOperation.WRITE: write, AclOperation.DESCRIBE: AclPermissionType.ALLOW})

    async def hide(self, topic: str, *, visible: bool = False) -> None:
        """Deny everything with a topic that exists or does not, but, if ``visible``, seeing whether it does."""
        kind = AclPermissionType.ALLOW if visible else AclPermissionType.DENY
        await self._allow(topic, {AclOperation.DESCRIBE: kind})

    async def allow_creation(self, *, allowed: bool) -> None:
        """Whether users may create topics anywhere in the cluster; a topic's own rights may still let them."""
        kind = AclPermissionType.ALLOW if allowed else AclPermissionType.DENY
        permissions = {AclOperation.ALL: AclPermissionType.ALLOW, AclOperation.CREATE: kind}
        await self._allow("kafka-cluster", permissions, kind=ResourceType.BROKER)

    async def _allow(self, name: str, rights: Rights, **options: Any) -> None:
        await asyncio.to_thread(set_rights, self.cluster.bootstrap, name, rights, **options)

    def freeze(self) -> None:
        self.cluster.freeze()

    def thaw(self) -> None:
        self.cluster.thaw()


@pytest.fixture(scope="session")
def secured_kafka() -> Iterator[SecuredKafka]:
    """One node with every kind of listener and rights that can be taken away. Tests may freeze it, and thaw it."""
    with shared(SecuredKafka(sasl=True, tls=True, settings=SECURED | NEVER_FENCED)) as cluster:
        yield cluster


@pytest.fixture
def backend(secured_kafka: SecuredKafka, unique: str, free_ports: Callable[[int], list[int]]) -> KafkaBackend:
    """The secured Kafka, for topics of this test's own."""
    return KafkaBackend(secured_kafka, unique, free_ports(1)[0])
