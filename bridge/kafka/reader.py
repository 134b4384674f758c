"""Reads topics without a consumer group: all records, a range of offsets, or new records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import aiokafka.errors as kafka_errors
from aiokafka import TopicPartition
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.protocol.metadata import MetadataRequest

from bridge.dead_letters.reading import LoggedRecord, Place
from bridge.errors import RefusedError, TopicMissingError, UnreachableError
from bridge.kafka.client import Client
from bridge.kafka.connection import (
    REFUSED,
    connection_options,
    make_admin,
    make_consumer,
    read_failure,
    stop_consumer,
    why_unreachable,
)
from bridge.kafka.login import KafkaLogin
from config.error_words import words
from config.numbers import some

if TYPE_CHECKING:
    from aiokafka.admin import AIOKafkaAdminClient

    from config.settings import KafkaSettings

POLL_MS = 200
POLL_RECORDS = 1000
FETCH_BYTES = 256 * 1024  # compressed, from a partition at a time; the records may be fifty times as large
CLOSE_PATIENCE_S = 2.0
LOOK_AGAIN_S = 2.0  # between two checks for new partitions, or for the topic's deletion
GONE_S = 5.0  # a topic that is absent from the metadata for so long was deleted; a change of leader is shorter
Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic's partitions and retention. ``retention_ms`` is -1 without a limit, None if Kafka does not tell it."""

    name: str
    partitions: int
    retention_ms: int | None
    cleanup_policy: str | None


class TopicReader:
    """A consumer without a group over some topics; ``async with`` connects and closes it.

    Raises UnreachableError, RefusedError and TopicMissingError, each a sentence.
    """

    isolation_level = "read_uncommitted"  # records of aborted transactions, too

    def __init__(
        self, settings: KafkaSettings, client_id: str, topics: Iterable[str], login: KafkaLogin | None = None
    ) -> None:
        self._settings = settings
        self._options = connection_options(settings, client_id)
        self.login = login or KafkaLogin(settings)
        self._topics = tuple(topics)
        self._patience_s = 4 * settings.request_timeout.total_seconds()
        self._consumer: Any = None
        self.facts: tuple[TopicFacts, ...] = ()
        self.partitions: list[TopicPartition] = []  # all; what is taken out is not asked about
        self.leaderless: list[TopicPartition] = []  # at the start

    async def __aenter__(self) -> Self:
        """Ask for the facts and connect. Raises UnreachableError, RefusedError or TopicMissingError."""
        # One sentence of ours says why Kafka cannot be reached, instead of a line for each attempt of the library.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        self.facts = await self._ask()
        self.partitions = [TopicPartition(one.name, number) for one in self.facts for number in range(one.partitions)]
        self._consumer = make_consumer(
            self._options,
            self.login,
            auto_offset_reset="earliest",
            isolation_level=self.isolation_level,
            max_partition_fetch_bytes=FETCH_BYTES,
        )
        try:
            await self._consumer.start()
        except kafka_errors.KafkaError as error:
            await self._close()
            raise await why_unreachable(self._options, self.login) from error
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._close()

    async def _close(self) -> None:
        if self._consumer is not None:
            await stop_consumer(self._consumer)

    # --- the topics

    async def _ask(self) -> tuple[TopicFacts, ...]:
        """The facts of each topic. Raises UnreachableError, RefusedError or TopicMissingError."""
        admin = make_admin(self._options, self.login)
        try:
            await admin.start()
            described = await self._describe(admin)
            counts = {topic["topic"]: self._partitions(topic) for topic in described}
            self.leaderless = [
                TopicPartition(topic["topic"], row["partition"])
                for topic in described
                for row in topic["partitions"]
                if row["leader"] < 0
            ]
            return tuple([await self._facts(admin, name, counts[name]) for name in self._topics])
        except kafka_errors.KafkaConnectionError as error:
            raise await why_unreachable(self._options, self.login) from error
        except kafka_errors.KafkaError as error:
            raise UnreachableError(
                f"Kafka did not list the partitions of {', '.join(self._topics)}: {words(error)}."
            ) from error
        finally:
            await asyncio.wait([asyncio.ensure_future(admin.close())], timeout=CLOSE_PATIENCE_S)

    async def _describe(self, admin: AIOKafkaAdminClient) -> list[dict[str, Any]]:
        """The topics' rows of metadata. A missing topic is not created."""
        client = admin._client
        # aiokafka's own request would create a missing topic on a broker with auto.create.topics.enable.
        request = MetadataRequest(list(self._topics), allow_auto_topic_creation=False)
        described: list[dict[str, Any]] = (await client.send(client.get_random_node(), request)).to_object()["topics"]
        return described

    def missing(self, name: str) -> str:
        """The sentence about a missing topic."""
        return f"Kafka has no topic {name}. Check its name, and that the addresses are those of the right cluster."

    def _partitions(self, described: dict[str, Any]) -> int:
        """The number of partitions by a topic's row. Raises RefusedError or TopicMissingError."""
        name, kind = described["topic"], kafka_errors.for_code(described["error_code"])
        if issubclass(kind, REFUSED):
            raise RefusedError(f"Kafka does not let us describe topic {name}. Check the ACLs: Describe and Read on it.")
        if kind is not kafka_errors.NoError or not described["partitions"]:
            raise TopicMissingError(self.missing(name))
        return len(described["partitions"])

    @staticmethod
    async def _facts(admin: AIOKafkaAdminClient, name: str, partitions: int) -> TopicFacts:
        """The topic's facts. Retention needs the right DescribeConfigs, and is unknown without it."""
        names = ("retention.ms", "cleanup.policy")
        wanted = ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(names))
        values: dict[str, str] = {}
        try:
            for response in await admin.describe_configs([wanted]):
                for code, _message, _kind, _name, entries in response.resources:
                    if code == 0:
                        values.update((entry[0], entry[1]) for entry in entries)
        except kafka_errors.KafkaError:
            pass
        retention = values.get("retention.ms")
        return TopicFacts(name, partitions, None if retention is None else int(retention), values.get("cleanup.policy"))

    # --- reading

    async def ends(self) -> dict[Partition, int]:
        """The offset after the last record of each partition, now."""
        ends = await self._answered(self._consumer.end_offsets(self.partitions))
        return {(at.topic, at.partition): end for at, end in ends.items()}

    async def beginnings(self) -> dict[Partition, int]:
        """The offset of the first record of each partition."""
        starts = await self._answered(self._consumer.beginning_offsets(self.partitions))
        return {(at.topic, at.partition): start for at, start in starts.items()}

    async def offsets_at(self, moment_ms: int) -> dict[Partition, int]:
        """The offset of each partition's first record with that timestamp or a later one; its end without one."""
        wanted = dict.fromkeys(self.partitions, max(0, moment_ms))  # Kafka knows no time before 1970
        found = await self._answered(self._consumer.offsets_for_times(wanted))
        ends = await self.ends()
        return {
            (at.topic, at.partition): ends[at.topic, at.partition] if place is None else place.offset
            for at, place in found.items()
        }

    async def read(self, starts: Mapping[Partition, int], ends: Mapping[Partition, int]) -> AsyncIterator[LoggedRecord]:
        """The records from ``starts`` to before ``ends``, in order within each partition, without expired ones."""
        wanted = {TopicPartition(*at): end for at, end in ends.items() if starts.get(at, 0) < end}
        self._consumer.assign(list(wanted))
        for at in wanted:
            self._consumer.seek(at, starts.get((at.topic, at.partition), 0))
        loop = asyncio.get_running_loop()
        waited_until = loop.time() + self._patience_s
        while wanted:
            batches = await self._answered(
                self._consumer.getmany(*wanted, timeout_ms=POLL_MS, max_records=POLL_RECORDS)
            )
            for at, records in batches.items():
                waited_until = loop.time() + self._patience_s
                for record in records:
                    if record.offset < wanted[at]:
                        yield logged(record)
            for at in list(wanted):
                if await self._answered(self._consumer.position(at)) >= wanted[at]:
                    del wanted[at]
                    self._consumer.pause(at)
            if loop.time() > waited_until:
                missing = ", ".join(f"{at.topic}/{at.partition}" for at in wanted)
                raise UnreachableError(
                    f"Kafka sent no records of {missing} within {self._patience_s:g} s. Do they have a leader?"
                )

    async def follow(self, starts: Mapping[Partition, int]) -> AsyncIterator[list[LoggedRecord]]:
        """The records from ``starts`` on, then new ones, without end; in order within each partition.

        Yields a list every ``POLL_MS`` at the latest: an empty one without new records, or while Kafka cannot be
        reached. New partitions are read from their beginning, unless ``starts`` leaves some of the present ones out.
        Raises TopicMissingError when a topic is deleted."""
        positions = {TopicPartition(*at): offset for at, offset in starts.items()}
        some = positions.keys() < {*self.partitions}
        self._assign(positions)
        loop = asyncio.get_running_loop()
        look_s = loop.time() + LOOK_AGAIN_S
        absent: dict[str, float] = {}
        while True:
            batches = await self._answered(self._consumer.getmany(timeout_ms=POLL_MS, max_records=POLL_RECORDS))
            found = []
            for at, records in batches.items():
                positions[at] = records[-1].offset + 1
                found += [logged(record) for record in records]
            yield found
            if loop.time() < look_s:
                continue
            look_s = loop.time() + LOOK_AGAIN_S
            new = self._grown(positions, absent, loop.time())
            if new and not some:
                positions.update(dict.fromkeys(new, 0))
                self._assign(positions)

    def _assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._consumer.assign(list(positions))
        for at, offset in positions.items():
            self._consumer.seek(at, offset)

    def _grown(
        self, known: Mapping[TopicPartition, int], absent: dict[str, float], now_s: float
    ) -> list[TopicPartition]:
        """New partitions. ``absent`` has the time since when each missing topic is not listed."""
        new = []
        for topic in self._topics:
            numbers = self._consumer.partitions_for_topic(topic)
            if numbers:
                absent.pop(topic, None)
                at_all = [TopicPartition(topic, number) for number in sorted(numbers)]
                new += [at for at in at_all if at not in known and at not in self.leaderless]
            elif now_s - absent.setdefault(topic, now_s) > GONE_S:
                raise TopicMissingError(f"Topic {topic} was deleted while it was read.")
        return new

    def unread(self) -> str:
        """Why ``follow`` may yield nothing although records exist; empty if no reason is known."""
        client: Client = self._consumer._client
        settings = self._settings
        patience_s = (settings.metadata_max_age + 2 * settings.request_timeout).total_seconds()
        if asyncio.get_running_loop().time() - client.metadata_s > patience_s:
            return "Kafka does not answer. What arrives meanwhile is shown once it does."
        assigned = sorted(self._consumer.assignment())
        leaderless = [f"{at.topic}/{at.partition}" for at in assigned if not self.has_leader(at)]
        return f"No broker leads {some(leaderless)}: nothing can be read there." if leaderless else ""

    def has_leader(self, at: TopicPartition) -> bool:
        """Whether a partition has a leader, by the latest metadata."""
        client: Client = self._consumer._client
        return client.has_leader(at)

    async def _answered(self, question: Any) -> Any:
        try:
            return await question
        except kafka_errors.KafkaError as error:
            raise read_failure(error, ", ".join(self._topics)) from error


def logged(record: Any) -> LoggedRecord:
    """One of aiokafka's records."""
    place = Place(record.topic, record.partition, record.offset)
    by_broker = record.timestamp_type == 1
    return LoggedRecord(place, record.timestamp, record.key, record.value, list(record.headers), by_broker)
