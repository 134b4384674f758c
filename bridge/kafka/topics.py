"""Checks and creates the topics in the settings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import aiokafka.errors as kafka_errors
import structlog
from aiokafka.admin import NewTopic

from bridge.backoff import broker_timeout_ms
from bridge.errors import RefusedError, RetriableError, TopicMissingError, UnreachableError
from bridge.kafka.connection import REFUSED, connection_options, make_admin
from bridge.kafka.login import KafkaLogin
from config.error_words import words

if TYPE_CHECKING:
    from bridge.kafka.producer import KafkaProducer
    from config.settings import KafkaSettings

log = structlog.get_logger("kafka")

_THROTTLED = 89  # THROTTLING_QUOTA_EXCEEDED (KIP-599): unknown to aiokafka
_CLOSE_PATIENCE_S = 1.0
_SETTLING_S = 10.0  # a broker takes records for a new topic some 0.1 s after it lists it; later on a busy machine


class Topics:
    """Checks and creates the topics in the settings."""

    def __init__(self, settings: KafkaSettings, client_id: str, login: KafkaLogin | None = None) -> None:
        self._settings = settings
        self._client_id = client_id
        self._login = login or KafkaLogin(settings)
        self._made: dict[str, float] = {}  # time of creation, monotonic seconds

    def is_settling(self, topic: str) -> bool:
        """Whether the topic is so new that brokers may still refuse its records."""
        made = self._made.get(topic)
        return made is not None and time.monotonic() - made < _SETTLING_S

    def adopt(self, settings: KafkaSettings) -> None:
        """Use other settings for new topics from now on."""
        self._settings = settings

    async def missing(self, producer: KafkaProducer, topics: Iterable[str]) -> list[str]:
        """The topics that Kafka does not have. The producer watches all of ``topics`` from now on. Raises RefusedError,
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
                f"Kafka does not let us describe topic {', '.join(refused)}. Check the ACLs: Describe and Write on it."
            )
        return missing

    async def ensure(
        self, producer: KafkaProducer, topics: Iterable[str], settings: KafkaSettings | None = None
    ) -> None:
        """Wait until the producer's metadata has every topic; creates missing ones if the settings allow it. Raises
        TopicMissingError, RefusedError, RetriableError."""
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
        """Create topics as settings say, with ``partitions`` partitions if given. Existing topics are not changed.

        Raises RefusedError, RetriableError, BridgeError."""
        admin = make_admin(connection_options(self._settings, self._client_id), self._login)
        new = [_new_topic(settings or self._settings, topic, partitions) for topic in topics]
        try:
            await admin.start()
            timeout_s = self._settings.request_timeout.total_seconds()
            response = await admin.create_topics(new, timeout_ms=broker_timeout_ms(timeout_s))
        except (OSError, TimeoutError, AttributeError, kafka_errors.KafkaError) as error:
            # Without a controller in the cluster, aiokafka raises AttributeError.
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
                    f"Kafka does not let us create topic {name}: {reason}. Create it yourself, or allow Create on it."
                )
            raise TopicMissingError(
                f"Topic {name} could not be created: {reason}. Check kafka.topics (partitions, replication)."
            )


def _new_topic(settings: KafkaSettings, name: str, partitions: int | None) -> NewTopic:
    """A topic for aiokafka to create. ``partitions`` None: as many as the settings say."""
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
