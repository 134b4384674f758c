"""The Kafka port on aiokafka: the only module of the data path that knows it.

What aiokafka does that a caller would not expect is dealt with here, and each fact is pinned by a contract test, so
that an upgrade that changes one is noticed:

- ``send_batch`` has no order between two callers on one partition; with one batch of a partition under way it never
  suspends, so it is
  driven to its result at once and needs no task;
- pending futures of an idempotent producer never expire and ``stop()`` waits for them; ``close`` here ends its tasks
  and connections itself;
- a built batch cannot be sent again by another producer; ``records`` takes its records back out of the bytes;
- why a bootstrap failed goes to the log only; ``start`` asks each address again to say it.
"""

from __future__ import annotations

__all__ = ["KafkaProducer", "Topics", "connection_options"]

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import aiokafka.errors as kafka_errors
import structlog
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.conn import create_conn
from aiokafka.producer.message_accumulator import BatchBuilder as AioBatchBuilder
from aiokafka.record import MemoryRecords

from bridge.errors import (
    BridgeError,
    IncarnationError,
    LeaderMissingError,
    PoisonedError,
    RefusedError,
    RetriableError,
    TopicMissingError,
    UnreachableError,
)
from bridge.ports import StoredRecord
from bridge.tls import tls_context
from bridge.wire import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bridge.ports import BatchBuilder
    from config.settings import KafkaSettings

log = structlog.get_logger("kafka")

_POISONED = {
    10,  # MESSAGE_TOO_LARGE
    17,  # INVALID_TOPIC_EXCEPTION
    18,  # RECORD_LIST_TOO_LARGE
    32,  # INVALID_TIMESTAMP
    43,  # UNSUPPORTED_FOR_MESSAGE_FORMAT
    87,  # INVALID_RECORD: a compacted topic's record without key, a rejected schema
}
_REFUSED = (
    kafka_errors.TopicAuthorizationFailedError,
    kafka_errors.ClusterAuthorizationFailedError,
    kafka_errors.TransactionalIdAuthorizationFailed,
    kafka_errors.SaslAuthenticationFailed,
    kafka_errors.AuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
)


def connection_options(settings: KafkaSettings, client_id: str) -> dict[str, Any]:
    """What every aiokafka client of ours is made with: addresses, security, time-outs."""
    options: dict[str, Any] = {
        "bootstrap_servers": list(settings.bootstrap_servers),
        "client_id": client_id,
        "request_timeout_ms": int(settings.request_timeout.total_seconds() * 1000),
        "metadata_max_age_ms": int(settings.metadata_max_age.total_seconds() * 1000),
        "retry_backoff_ms": int(settings.retry_backoff.total_seconds() * 1000),
        "security_protocol": settings.security,
    }
    if settings.security.endswith("SSL"):
        options["ssl_context"] = tls_context(settings.tls, "kafka.tls")
    if settings.sasl is not None:
        options["sasl_mechanism"] = settings.sasl.mechanism
        options["sasl_plain_username"] = settings.sasl.username
        options["sasl_plain_password"] = settings.sasl.password.get_secret_value()
    return options


class KafkaBatch:
    """A batch of aiokafka's, filled past its Python wrapper (``bridge.ports.BatchBuilder``).

    ``BatchBuilder.append`` costs 0.46 µs a record, the compiled builder below it 0.21: a fifth of what a message costs
    here in all. ``append`` is that builder's own; a contract test watches the three private names this rests on.
    """

    __slots__ = ("_count", "append", "batch", "size")

    def __init__(self, batch: AioBatchBuilder) -> None:
        self.batch = batch
        self.append = batch._builder.append
        self.size = batch.size
        self._count = 0

    def close(self, count: int) -> None:
        self._count = count
        self.batch._relative_offset = count
        self.batch.close()

    def record_count(self) -> int:
        data = self.batch._buffer
        # The batch's header counts its records (KIP-98: RecordCount, after 57 bytes); before that we know only ours.
        return self._count if data is None else int.from_bytes(data[57:61])


class KafkaProducer:
    """One incarnation of an idempotent, acks=all producer (``bridge.ports.Producer``)."""

    def __init__(self, settings: KafkaSettings, client_id: str, topics: Iterable[str]) -> None:
        self._settings = settings
        self._options = connection_options(settings, client_id)
        self._topics = set(topics)
        self._producer: AIOKafkaProducer | None = None
        self._refreshed_ns = 0

    async def start(self) -> None:
        compression = None if self._settings.compression == "none" else self._settings.compression
        producer = AIOKafkaProducer(
            **self._options,
            acks="all",
            enable_idempotence=True,
            compression_type=compression,
            max_batch_size=self._settings.batch_bytes,
        )
        self._producer = producer
        producer.client.cluster.add_listener(self._refreshed)
        timeout_s = 4 * self._settings.request_timeout.total_seconds()
        try:
            # Without brokers that answer, fetching a producer id would be retried for ever.
            await asyncio.wait_for(producer.start(), timeout_s)
        except kafka_errors.KafkaConnectionError as error:
            raise await _why_unreachable(self._options) from error
        except TimeoutError as error:
            raise UnreachableError(
                f"Kafka at {', '.join(self._settings.bootstrap_servers)} took a connection but gave no producer id "
                f"within {timeout_s:g} s. Perhaps the brokers' advertised addresses cannot be reached from here, "
                "or no controller is elected."
            ) from error
        except kafka_errors.KafkaError as error:
            raise translate(error) from error
        if self._topics:
            producer.client.set_topics(self._topics)

    async def close(self, *, patience_s: float) -> None:
        producer = self._producer
        if producer is None or producer._closed:
            return
        producer._closed = True  # stop() itself waits for futures that never expire
        sender = producer._sender
        produce_tasks = [task for task in asyncio.all_tasks() if _is_produce_task(task, sender)]
        with contextlib.suppress(TimeoutError, OSError, kafka_errors.KafkaError):
            await asyncio.wait_for(producer.client.close(), patience_s)
        tasks = [*produce_tasks, *([sender.sender_task] if sender.sender_task is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=patience_s)

    def create_batch(self, *, compressed: bool) -> BatchBuilder:
        if compressed:
            return KafkaBatch(self._live().create_batch())
        return KafkaBatch(AioBatchBuilder(self._settings.batch_bytes, 0))

    def send(self, topic: str, partition: int, batch: BatchBuilder) -> asyncio.Future[object]:
        assert isinstance(batch, KafkaBatch)
        producer = self._live()
        accumulator = producer._message_accumulator
        if accumulator._closed or accumulator._exception is not None:
            raise IncarnationError(f"The producer has ended: {accumulator._exception or 'closed'}.")
        if not self.has_leader(topic, partition):
            raise LeaderMissingError(f"Kafka names no leader for {topic}/{partition}; was the topic deleted?")
        # What send_batch does in the end, without its coroutine, its wait for a free place (ours to keep: one batch of
        # a partition at a time) and the shield around the future: a third of what a small batch costs.
        future: asyncio.Future[object] = accumulator._append_batch(batch.batch, TopicPartition(topic, partition)).future
        return future

    def failure(self, answer: asyncio.Future[object]) -> BridgeError | None:
        if answer.cancelled():
            return IncarnationError("The producer ended before Kafka answered.")
        error = answer.exception()
        return None if error is None else translate(error)

    def partition_count(self, topic: str) -> int | None:
        partitions = self._live().client.cluster.partitions_for_topic(topic)
        return len(partitions) if partitions else None

    def has_leader(self, topic: str, partition: int) -> bool:
        leader = self._live().client.cluster.leader_for_partition(TopicPartition(topic, partition))
        return leader is not None and leader >= 0

    def refused(self, topic: str) -> bool:
        return topic in self._live().client.cluster.unauthorized_topics

    def metadata_refreshed_ns(self) -> int:
        return self._refreshed_ns

    def watch_topic(self, topic: str) -> None:
        self._topics.add(topic)
        self._live().client.add_topic(topic)

    async def refresh_metadata(self) -> bool:
        return bool(await self._live().client.force_metadata_update())

    def records(self, batch: BatchBuilder) -> list[StoredRecord]:
        assert isinstance(batch, KafkaBatch)
        memory = MemoryRecords(bytes(batch.batch._build()))
        records: list[StoredRecord] = []
        while (part := memory.next_batch()) is not None:
            records += (StoredRecord(r.timestamp, r.key, r.value, list(r.headers)) for r in part)
        return records

    def _live(self) -> AIOKafkaProducer:
        assert self._producer is not None, "start() comes first"
        return self._producer

    def _refreshed(self, _cluster: object) -> None:
        self._refreshed_ns = time.monotonic_ns()


def _is_produce_task(task: asyncio.Task[Any], sender: object) -> bool:
    """Whether a task is one of the sender's produce requests: nothing else holds a reference to them."""
    coroutine = task.get_coro()
    frame = getattr(coroutine, "cr_frame", None)
    name = getattr(coroutine, "__qualname__", "")
    return frame is not None and name == "Sender._send_produce_req" and frame.f_locals.get("self") is sender


def translate(error: BaseException) -> BridgeError:
    """The most specific of our errors for one of aiokafka's."""
    if isinstance(error, _REFUSED):
        return RefusedError(
            f"Kafka refused us: {error or type(error).__name__}. "
            "Check kafka.sasl and the ACLs: Write and Describe on the topics."
        )
    if getattr(error, "errno", None) in _POISONED:
        too_large = isinstance(error, kafka_errors.MessageSizeTooLargeError | kafka_errors.RecordListTooLargeError)
        reason = DeadLetterReason.TOO_LARGE if too_large else DeadLetterReason.INVALID_RECORD
        return PoisonedError(f"Kafka will not take it: {type(error).__name__} ({error}).", reason)
    if isinstance(error, kafka_errors.NotLeaderForPartitionError | kafka_errors.LeaderNotAvailableError):
        # It expired inside the producer while its partition had no leader, and its sequence numbers went with it.
        return IncarnationError(f"{type(error).__name__}: the partition had no leader for kafka.request_timeout.")
    if isinstance(error, BridgeError):
        return error
    return IncarnationError(f"{type(error).__name__}: {error}")


async def _why_unreachable(options: dict[str, Any]) -> BridgeError:
    """Ask each bootstrap address why it cannot be used, and say it in a sentence."""
    reasons = []
    connection = {
        k: v for k, v in options.items() if k not in {"bootstrap_servers", "metadata_max_age_ms", "retry_backoff_ms"}
    }
    for address in options["bootstrap_servers"]:
        host, _, port = address.rpartition(":")
        try:
            conn = await create_conn(host.strip("[]"), int(port), **connection)
        except _REFUSED as error:
            user = options.get("sasl_plain_username")
            mechanism = options.get("sasl_mechanism")
            return RefusedError(
                f"Kafka at {address} refused user {user!r} with {mechanism}: {error}. "
                "Check kafka.sasl.username, password and mechanism."
            )
        except (OSError, TimeoutError, kafka_errors.KafkaError) as error:
            reasons.append(f"{address}: {_guess(error, options)}")
        else:
            conn.close()
            reasons.append(f"{address}: answers now")
    return UnreachableError(f"Kafka cannot be reached. {' '.join(reasons)}")


def _guess(error: BaseException, options: dict[str, Any]) -> str:
    text = str(error) or type(error).__name__
    secured = options["security_protocol"]
    if isinstance(error, ConnectionRefusedError):
        return f"connection refused. Is the broker running, and is this the port of its {secured} listener?"
    if "CERTIFICATE" in text.upper():
        return f"{text}. Check kafka.tls.ca_file and kafka.tls.server_name."
    if isinstance(error, TimeoutError | kafka_errors.RequestTimedOutError):
        return f"no answer within kafka.request_timeout. A firewall, or a TLS listener spoken to in {secured}?"
    if isinstance(error, kafka_errors.KafkaConnectionError | ConnectionError):
        return f"{text}. The broker hung up: is this port another security protocol than {secured} (kafka.security)?"
    return text


class Topics:
    """Looks after the topics that settings name: they exist, or are made, or starting ends with a sentence."""

    def __init__(self, settings: KafkaSettings, client_id: str) -> None:
        self._settings = settings
        self._client_id = client_id

    async def ensure(self, producer: KafkaProducer, topics: Iterable[str]) -> None:
        """Make sure every topic is in the producer's metadata. Raises TopicMissingError, RefusedError,
        RetriableError."""
        wanted = sorted(set(topics))
        for topic in wanted:
            producer.watch_topic(topic)
        if not await producer.refresh_metadata():
            raise UnreachableError("Kafka gave no metadata; are all brokers down?")
        missing = [topic for topic in wanted if producer.partition_count(topic) is None]
        refused = [topic for topic in missing if producer.refused(topic)]
        if refused:
            raise RefusedError(
                f"Kafka does not let us see topic {', '.join(refused)}. Check the ACLs: Describe and Write on it."
            )
        if not missing:
            return
        if not self._settings.topics.create:
            raise TopicMissingError(
                f"Kafka has no topic {', '.join(missing)}. "
                "Create it, or set kafka.topics.create = true to have it made at start."
            )
        await self.create(missing)
        deadline = time.monotonic() + self._settings.delivery_timeout.total_seconds()
        while any(producer.partition_count(topic) is None for topic in missing):
            if time.monotonic() > deadline:
                raise UnreachableError(f"Kafka took the creation of {', '.join(missing)} but does not list it.")
            await producer.refresh_metadata()
            await asyncio.sleep(0.05)

    async def create(self, topics: Iterable[str]) -> None:
        """Create topics as settings say; one that exists already is fine. Raises RefusedError, RetriableError,
        BridgeError."""
        admin = AIOKafkaAdminClient(**connection_options(self._settings, self._client_id))
        new = [self._new_topic(topic) for topic in topics]
        try:
            await admin.start()
            response = await admin.create_topics(new)
        except kafka_errors.KafkaError as error:
            raise RetriableError(f"Topics could not be created now: {error}") from error
        finally:
            await admin.close()
        for name, code, *text in response.topic_errors:
            kind = kafka_errors.for_code(code)
            if kind is kafka_errors.NoError:
                log.info("topic_created", topic=name)
            if kind in {kafka_errors.NoError, kafka_errors.TopicAlreadyExistsError}:
                continue
            reason = (text[0] if text and text[0] else None) or kind.__name__
            if issubclass(kind, _REFUSED):
                raise RefusedError(
                    f"Kafka does not let us create topic {name}: {reason}. Create it by hand or allow Create on it."
                )
            raise TopicMissingError(
                f"Topic {name} could not be created: {reason}. Check kafka.topics (partitions, replication)."
            )

    def _new_topic(self, name: str) -> NewTopic:
        topics = self._settings.topics
        declared = next((topic for topic in topics.declare if topic.name == name), None)
        configs = {}
        if declared is not None and declared.retention is not None:
            configs["retention.ms"] = str(int(declared.retention.total_seconds() * 1000))
        if declared is not None and declared.cleanup_policy is not None:
            configs["cleanup.policy"] = declared.cleanup_policy
        partitions = declared.partitions if declared is not None else topics.partitions
        new = NewTopic(name=name, num_partitions=partitions, replication_factor=1, topic_configs=configs)
        # aiokafka's constructor refuses -1, the broker's own default (KIP-464); the request takes it.
        new.replication_factor = declared.replication if declared is not None else topics.replication
        return new
