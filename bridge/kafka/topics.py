"""The topics that settings name: they exist, or are made, or starting ends with a sentence."""

from __future__ import annotations

__all__ = ["Topics"]

import asyncio
import time
from typing import TYPE_CHECKING

import aiokafka.errors as kafka_errors
import structlog
from aiokafka.admin import NewTopic
from aiokafka.protocol.metadata import MetadataRequest

from bridge.backoff import broker_timeout_ms
from bridge.errors import RefusedError, RetriableError, TopicMissingError, UnreachableError
from bridge.kafka.connection import REFUSED, connection_options, make_admin
from bridge.kafka.login import KafkaLogin
from config.error_words import words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiokafka.client import AIOKafkaClient

    from bridge.kafka.producer import KafkaProducer
    from config.settings import KafkaSettings

log = structlog.get_logger("kafka")

_THROTTLED = 89  # THROTTLING_QUOTA_EXCEEDED (KIP-599): unknown to aiokafka
_DELETION_DISABLED = 73  # delete.topic.enable = false: unknown to aiokafka
_CLOSE_PATIENCE_S = 1.0
_SETTLING_S = 10.0  # a broker lists a new topic before it takes records for it: some 0.1 s, more on a busy machine


class Topics:
    """Looks after the topics that settings name: they exist, or are made, or starting ends with a sentence."""

    def __init__(self, settings: KafkaSettings, client_id: str, login: KafkaLogin | None = None) -> None:
        self._settings = settings
        self._client_id = client_id
        self._login = login or KafkaLogin(settings)
        self._made: dict[str, float] = {}  # when, monotonic

    def is_settling(self, topic: str) -> bool:
        """Whether the topic was made so lately that its brokers may not take records for it yet."""
        made = self._made.get(topic)
        return made is not None and time.monotonic() - made < _SETTLING_S

    def adopt(self, settings: KafkaSettings) -> None:
        """Create topics as other settings say from now on."""
        self._settings = settings

    async def missing(self, producer: KafkaProducer, topics: Iterable[str]) -> list[str]:
        """Which of these Kafka does not have; the producer watches all of them from now on. Raises RefusedError,
        RetriableError."""
        wanted = sorted(set(topics))
        for topic in wanted:
            producer.watch_topic(topic)
        if not await producer.refresh_metadata():
            raise UnreachableError("Kafka gave no metadata; are all brokers down?")
        missing = [topic for topic in wanted if producer.partition_count(topic) is None]
        refused = [topic for topic in missing if producer.refused(topic)]
        if refused:
            producer.forget_topics(refused)
            raise RefusedError(
                f"Kafka does not let us see topic {', '.join(refused)}. Check the ACLs: Describe and Write on it."
            )
        return missing

    async def ensure(
        self, producer: KafkaProducer, topics: Iterable[str], settings: KafkaSettings | None = None
    ) -> None:
        """Make sure every topic is in the producer's metadata; where some are made, as ``settings`` say if given.
        Raises TopicMissingError, RefusedError, RetriableError."""
        missing = await self.missing(producer, topics)
        if not missing:
            return
        if not self._settings.topics.create:
            producer.forget_topics(missing)
            raise TopicMissingError(
                f"Kafka has no topic {', '.join(missing)}. "
                "`gateway topics apply` makes it; with kafka.topics.create = true the start does."
            )
        try:
            await self.create(missing, settings=settings)
        except TopicMissingError:
            producer.forget_topics(missing)
            raise
        deadline = time.monotonic() + self._settings.delivery_timeout.total_seconds()
        while any(producer.partition_count(topic) is None for topic in missing):
            if time.monotonic() > deadline:
                raise UnreachableError(f"Kafka took the creation of {', '.join(missing)} but does not list it.")
            await producer.refresh_metadata()
            await asyncio.sleep(0.05)

    async def create(
        self, topics: Iterable[str], partitions: int | None = None, settings: KafkaSettings | None = None
    ) -> None:
        """Create topics as settings say, but with ``partitions`` of them if given; one that exists already is fine.

        Raises RefusedError, RetriableError, BridgeError."""
        admin = make_admin(connection_options(self._settings, self._client_id), self._login)
        new = [_new_topic(settings or self._settings, topic, partitions) for topic in topics]
        try:
            await admin.start()
            timeout_s = self._settings.request_timeout.total_seconds()
            response = await admin.create_topics(new, timeout_ms=broker_timeout_ms(timeout_s))
        except (OSError, TimeoutError, AttributeError, kafka_errors.KafkaError) as error:
            # aiokafka's answer to a cluster without a controller is an AttributeError.
            raise RetriableError(f"Topics could not be created now: {words(error)}.") from error
        finally:
            await asyncio.wait([asyncio.ensure_future(admin.close())], timeout=_CLOSE_PATIENCE_S)
        for name, code, *text in response.topic_errors:
            kind = kafka_errors.for_code(code)
            if kind is kafka_errors.NoError:
                log.info("topic_created", topic=name)
            if kind in {kafka_errors.NoError, kafka_errors.TopicAlreadyExistsError}:
                self._made[name] = time.monotonic()
                continue
            reason = (text[0].rstrip(".") if text and text[0] else None) or words(kind())
            if kind.retriable or code == _THROTTLED:
                raise RetriableError(f"Topic {name} could not be created now: {reason}.")
            if issubclass(kind, REFUSED):
                raise RefusedError(
                    f"Kafka does not let us create topic {name}: {reason}. Create it by hand or allow Create on it."
                )
            raise TopicMissingError(
                f"Topic {name} could not be created: {reason}. Check kafka.topics (partitions, replication)."
            )

    async def remove(self, topics: Iterable[str], patience_s: float) -> None:
        """Delete topics, and return when no broker that answers lists them any more; those that are not there are fine.

        Raises RefusedError, RetriableError when Kafka took the wish but a broker still lists one."""
        names = sorted(set(topics))
        deadline = time.monotonic() + patience_s
        admin = make_admin(connection_options(self._settings, self._client_id), self._login)
        try:
            await admin.start()
            response = await admin.delete_topics(names)
            for name, code in response.topic_error_codes:
                _check_deleted(name, code)
            while listed := await _listed(admin._client, names):
                if time.monotonic() > deadline:
                    raise RetriableError(f"Kafka deletes {', '.join(sorted(listed))}, but brokers still list it.")
                await asyncio.sleep(0.05)
        except (OSError, TimeoutError, AttributeError, kafka_errors.KafkaError) as error:
            raise RetriableError(f"Topics could not be deleted now: {words(error)}.") from error
        finally:
            await asyncio.wait([asyncio.ensure_future(admin.close())], timeout=_CLOSE_PATIENCE_S)


def _check_deleted(name: str, code: int) -> None:
    kind = kafka_errors.for_code(code)
    if kind in {kafka_errors.NoError, kafka_errors.UnknownTopicOrPartitionError}:
        return
    if issubclass(kind, REFUSED):
        raise RefusedError(f"Kafka does not let us delete topic {name}. Check the ACLs: Delete on it.")
    if code == _DELETION_DISABLED:
        raise RefusedError(f"Kafka deletes no topics (delete.topic.enable), so {name} stays.")
    raise RetriableError(f"Topic {name} could not be deleted now: {words(kind())}.")


async def _listed(client: AIOKafkaClient, names: list[str]) -> set[str]:
    """Those of the topics that a broker still knows. Brokers that do not answer have no say."""
    listed = set()
    for broker in client.cluster.brokers():
        try:
            answer = await client.send(broker.nodeId, MetadataRequest(names, allow_auto_topic_creation=False))
        except (OSError, TimeoutError, kafka_errors.KafkaError):
            continue
        for topic in answer.to_object()["topics"]:
            kind = kafka_errors.for_code(topic["error_code"])
            if issubclass(kind, REFUSED):
                raise RefusedError(
                    f"Kafka took the wish to delete topic {topic['topic']}, but does not let us see whether it is gone."
                )
            if kind is not kafka_errors.UnknownTopicOrPartitionError:
                listed.add(topic["topic"])
    return listed


def _new_topic(settings: KafkaSettings, name: str, partitions: int | None) -> NewTopic:
    topics = settings.topics
    declared = next((topic for topic in topics.declare if topic.name == name), None)
    configs = {}
    if declared is not None and declared.retention is not None:
        configs["retention.ms"] = str(int(declared.retention.total_seconds() * 1000))
    if declared is not None and declared.cleanup_policy is not None:
        configs["cleanup.policy"] = declared.cleanup_policy
    if partitions is None:
        partitions = declared.partitions if declared is not None else topics.partitions
    new = NewTopic(name=name, num_partitions=partitions, replication_factor=1, topic_configs=configs)
    # aiokafka's constructor refuses -1, the broker's own default (KIP-464); the request takes it.
    new.replication_factor = declared.replication if declared is not None else topics.replication
    return new
