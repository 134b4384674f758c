"""Reads dead-letter topics for ``gateway dlq``: everything in them, or single places; no consumer group, no trace."""

from __future__ import annotations

__all__ = ["DeadLetterReader", "TopicFacts"]

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import aiokafka.errors as kafka_errors
from aiokafka import TopicPartition
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from bridge.dead_letter_reading import Assembler, LoggedRecord, Place
from bridge.errors import RefusedError, TopicMissingError, UnreachableError
from bridge.kafka_connection import (
    REFUSED,
    connection_options,
    make_admin,
    make_consumer,
    stop_consumer,
    why_unreachable,
)
from bridge.kafka_login import KafkaLogin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from aiokafka.admin import AIOKafkaAdminClient

    from bridge.dead_letter_reading import DeadLetter
    from config.settings import KafkaSettings

POLL_MS = 200
POLL_RECORDS = 1000
FETCH_BYTES = 256 * 1024  # compressed, from a partition at a time; what is in it may be fifty times as much
CLOSE_PATIENCE_S = 2.0
Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What a topic's settings mean for what is in it. ``retention_ms`` is -1 for ever, None where Kafka does not tell
    us."""

    name: str
    partitions: int
    retention_ms: int | None
    cleanup_policy: str | None


class DeadLetterReader:
    """A consumer without a group over some topics; ``async with`` connects and closes it.

    Raises UnreachableError, RefusedError and TopicMissingError, each a sentence.
    """

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

    async def __aenter__(self) -> Self:
        # Why Kafka cannot be reached is said by us, in one sentence, not by each attempt of the library's.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        self.facts = await self._ask()
        self._consumer = make_consumer(
            self._options,
            self.login,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
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
        admin = make_admin(self._options, self.login)
        try:
            await admin.start()
            described = await admin.describe_topics(list(self._topics))
            counts = {topic["topic"]: self._partitions(topic) for topic in described}
            return tuple([await self._facts(admin, name, counts[name]) for name in self._topics])
        except kafka_errors.KafkaConnectionError as error:
            raise await why_unreachable(self._options, self.login) from error
        except kafka_errors.KafkaError as error:
            raise UnreachableError(
                f"Kafka did not say which partitions {', '.join(self._topics)} has: {error}"
            ) from error
        finally:
            await asyncio.wait([asyncio.ensure_future(admin.close())], timeout=CLOSE_PATIENCE_S)

    @staticmethod
    def _partitions(described: dict[str, Any]) -> int:
        name, kind = described["topic"], kafka_errors.for_code(described["error_code"])
        if issubclass(kind, REFUSED):
            raise RefusedError(f"Kafka does not let us see topic {name}. Check the ACLs: Describe and Read on it.")
        if kind is not kafka_errors.NoError or not described["partitions"]:
            raise TopicMissingError(
                f"Kafka has no topic {name}, so there are no dead letters in it. Check dead_letter.topic and "
                "routes[].dead_letter_topic, and that --config is the gateway's own."
            )
        return len(described["partitions"])

    @staticmethod
    async def _facts(admin: AIOKafkaAdminClient, name: str, partitions: int) -> TopicFacts:
        """Retention needs another right (DescribeConfigs) than reading: without it, it is unknown."""
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

    def _all_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(facts.name, number) for facts in self.facts for number in range(facts.partitions)]

    # --- reading

    async def ends(self) -> dict[Partition, int]:
        """The offset behind the last record of each partition, at this moment."""
        ends = await self._answered(self._consumer.end_offsets(self._all_partitions()))
        return {(at.topic, at.partition): end for at, end in ends.items()}

    async def beginnings(self) -> dict[Partition, int]:
        """The offset of the first record that each partition still has."""
        starts = await self._answered(self._consumer.beginning_offsets(self._all_partitions()))
        return {(at.topic, at.partition): start for at, start in starts.items()}

    async def read(self, starts: Mapping[Partition, int], ends: Mapping[Partition, int]) -> AsyncIterator[LoggedRecord]:
        """The records from ``starts`` to before ``ends``, in order within each partition. Records that have expired
        are passed over."""
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
                        place = Place(record.topic, record.partition, record.offset)
                        yield LoggedRecord(place, record.timestamp, record.key, record.value, list(record.headers))
            for at in list(wanted):
                if await self._answered(self._consumer.position(at)) >= wanted[at]:
                    del wanted[at]
                    self._consumer.pause(at)
            if loop.time() > waited_until:
                missing = ", ".join(f"{at.topic}/{at.partition}" for at in wanted)
                raise UnreachableError(
                    f"Kafka gave no more of {missing} within {self._patience_s:g} s. Have these partitions a leader?"
                )

    async def fetch(self, letters: Iterable[DeadLetter]) -> dict[Place, DeadLetter]:
        """The same dead letters with their payloads, by place; those that have expired meanwhile are left out."""
        starts: dict[Partition, int] = {}
        ends: dict[Partition, int] = {}
        wanted = set()
        for letter in letters:
            for topic, partition, offset in letter.places:
                at = (topic, partition)
                starts[at] = min(starts.get(at, offset), offset)
                ends[at] = max(ends.get(at, 0), offset + 1)
                wanted.add((topic, partition, offset))
        assembler = Assembler()
        found = {}
        async for record in self.read(starts, ends):
            whole = assembler.take(record) if tuple(record.place) in wanted else None
            if whole is not None:
                found[whole.place] = whole
        return found

    async def _answered(self, question: Any) -> Any:
        try:
            return await question
        except REFUSED as error:
            raise RefusedError(
                f"Kafka does not let us read {', '.join(self._topics)}: {error}. Check the ACLs: Describe and Read."
            ) from error
        except kafka_errors.KafkaError as error:
            raise UnreachableError(f"Kafka could not be asked about {', '.join(self._topics)}: {error!r}") from error
