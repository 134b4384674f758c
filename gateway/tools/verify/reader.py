"""Reads Kafka for a verification: with aiokafka, in no consumer group, a partition at a time.

A fetch holds a few MiB at most, and one piece of records is in memory at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import aiokafka.errors as kafka_errors
from aiokafka import TopicPartition
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from bridge import wire
from bridge.errors import TopicMissingError, UnreachableError
from bridge.kafka.connection import (
    connection_options,
    make_admin,
    make_consumer,
    read_failure,
    stop_consumer,
    why_unreachable,
)
from bridge.kafka.login import KafkaLogin
from gateway.tools.verify.log import SLACK_MS, FoundRecord, LedgerRow, PartitionView, TopicView

if TYPE_CHECKING:
    from typing import TypeVar

    from config.settings import KafkaSettings

    T = TypeVar("T")

_RECORDS: Final = 5000
_LOOK_S: Final = 2.0  # after this time without a record, check whether the topic still exists
_STALL_S: Final = 30.0
_UNKNOWN_TOPIC: Final = 3


class KafkaReader:
    """The topics of a cluster; an async context manager. Every method may raise BridgeError.

    ``leaderless``: topics and partitions that could not be read to the end for lack of a leader."""

    def __init__(self, settings: KafkaSettings, gateway: str, login: KafkaLogin | None = None) -> None:
        self._options = connection_options(settings, f"{gateway}-verify")
        self._login = login or KafkaLogin(settings)
        self._tag = gateway.encode()  # value of the header gateway.id in own records
        self._consumer: Any = None
        self._admin: Any = None
        self.leaderless: set[tuple[str, int]] = set()

    async def __aenter__(self) -> Self:
        """Connect. Raises UnreachableError or RefusedError."""
        self._consumer = make_consumer(
            self._options,
            self._login,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=20,  # each partition read first waits for the answer that the one before it left behind
        )
        self._admin = make_admin(self._options, self._login)
        try:
            await self._consumer.start()
            await self._admin.start()
        except (kafka_errors.KafkaError, OSError) as error:
            await self._close()
            raise await why_unreachable(self._options, self._login) from error
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        await stop_consumer(self._consumer)
        await self._admin.close()

    # --- topics -----------------------------------------------------------------------------

    async def topic(self, name: str) -> TopicView | None:
        """The topic's partitions that have a leader, and its retention; None without the topic."""
        if (numbers := await self._partitions(name)) is None:
            return None
        try:
            partitions = await self._offsets(name, numbers)
        except UnreachableError:
            before, numbers = numbers, await self._partitions(name)
            if numbers is None:
                return None  # deleted just now
            if numbers == before:
                raise
            partitions = await self._offsets(name, numbers)  # partitions with a leader
        config = await self._config(name)
        if config is None:
            return TopicView(partitions, known=False)
        policy = config.get("cleanup.policy", "delete")
        retention_ms = int(config.get("retention.ms", -1))
        return TopicView(
            partitions,
            compacted="compact" in policy,
            deletes="delete" in policy,
            retention_ms=None if retention_ms < 0 else retention_ms,
            by_size=int(config.get("retention.bytes", -1)) >= 0,
        )

    async def _offsets(self, topic: str, numbers: list[int]) -> dict[int, PartitionView]:
        places, what = [TopicPartition(topic, number) for number in numbers], f"the offsets of topic {topic}"
        # Ends after starts, so that a partition that is emptied in between does not end before its start.
        starts = await _asked(self._consumer.beginning_offsets(places), what)
        ends = await _asked(self._consumer.end_offsets(places), what)
        return {place.partition: PartitionView(starts[place], ends[place]) for place in places}

    async def _partitions(self, topic: str) -> list[int] | None:
        """The numbers of partitions with a leader; None without the topic. Notes partitions without one."""
        (described,) = await _asked(self._admin.describe_topics([topic]), f"topic {topic}")
        if described["error_code"] == _UNKNOWN_TOPIC:
            return None
        if described["error_code"]:
            raise read_failure(kafka_errors.for_code(described["error_code"])(), f"topic {topic}")
        led = [partition["partition"] for partition in described["partitions"] if partition["leader"] >= 0]
        self.leaderless.update((topic, one["partition"]) for one in described["partitions"] if one["leader"] < 0)
        return led

    async def _config(self, topic: str) -> dict[str, str] | None:
        """The topic's settings; None without the right DescribeConfigs."""
        answers = await _asked(
            self._admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]), f"topic {topic}"
        )
        for code, _text, _kind, _name, entries in answers[0].resources:
            if code == 0:
                return {entry[0]: entry[1] for entry in entries}
        return None

    async def start_of(self, topic: str, partition: int) -> int:
        """The present first offset of a partition; 0 if its topic is gone."""
        place = TopicPartition(topic, partition)
        try:
            starts = await _asked(self._consumer.beginning_offsets([place]), f"the offsets of {topic}/{partition}")
        except UnreachableError:
            if partition not in (await self._partitions(topic) or ()):
                return 0
            raise
        return int(starts[place])

    async def ledger_horizon_ms(self, topic: str) -> int:
        """The time from which the ledger topic is complete; 0 if nothing has expired."""
        view = await self._ledger_view(topic)
        horizon_ms = 0
        for partition, (start, end) in view.partitions.items():
            if start > 0:
                # Deleted records were written before the existing ones.
                first_ms = await self._first_timestamp(topic, partition, start, end)
                horizon_ms = max(horizon_ms, _emptied_until_ms(view) if first_ms is None else first_ms)
        return horizon_ms

    async def _first_timestamp(self, topic: str, partition: int, start: int, end: int) -> int | None:
        async for messages in self._messages(topic, partition, start, end):
            return int(messages[0].timestamp)
        return None

    # --- records -----------------------------------------------------------------------------------

    async def ledger(self, topic: str, since_ms: int | None) -> AsyncIterator[LedgerRow]:
        """The ledger topic from records written at ``since_ms`` to its present end, one partition after the other.
        Raises TopicMissingError."""
        for partition, (start, end) in sorted((await self._ledger_view(topic)).partitions.items()):
            first = start
            if since_ms is not None:
                place = TopicPartition(topic, partition)
                found = await _asked(self._consumer.offsets_for_times({place: max(0, since_ms)}), f"topic {topic}")
                first = end if found[place] is None else max(start, found[place].offset)
            async for messages in self._messages(topic, partition, first, end):
                for message in messages:
                    yield LedgerRow(partition, message.key or b"", message.value)

    async def records(self, topic: str, partition: int, first: int, end: int) -> AsyncIterator[list[FoundRecord]]:
        """The records from offset ``first`` to below ``end``, in order, in pieces of bounded size."""
        tag = (wire.GATEWAY_ID, self._tag)
        async for messages in self._messages(topic, partition, first, end):
            yield [FoundRecord(m.offset, m.timestamp, tag in m.headers) for m in messages]

    async def _ledger_view(self, topic: str) -> TopicView:
        view = await self.topic(topic)
        if view is None:
            raise TopicMissingError(
                f"Kafka has no ledger topic {topic} (ledger.topic). Did a gateway with these settings ever run?"
            )
        return view

    async def _messages(self, topic: str, partition: int, first: int, end: int) -> AsyncIterator[list[Any]]:
        """Messages from ``first`` to below ``end``, in pieces; fewer if the topic is deleted meanwhile, or the
        partition loses its leader.

        Raises UnreachableError if no more messages come. The position skips transaction markers and compacted
        records."""
        place = TopicPartition(topic, partition)
        consumer = self._consumer
        consumer.assign([place])
        consumer.seek(place, first)
        position, loop = first, asyncio.get_running_loop()
        moved_s = loop.time()
        while position < end:
            try:
                found = await consumer.getmany(place, timeout_ms=500, max_records=_RECORDS)
                position_now = await consumer.position(place)
            except kafka_errors.KafkaError as error:
                raise read_failure(error, f"{topic}/{partition}") from error
            messages = [message for message in found.get(place, ()) if message.offset < end]
            if messages:
                yield messages
            if position_now > position:
                position, moved_s = position_now, loop.time()
            elif loop.time() - moved_s > _LOOK_S and await self._partitions(topic) is None:
                return
            elif loop.time() - moved_s > _STALL_S:
                if partition not in (await self._partitions(topic) or ()):
                    return
                raise UnreachableError(
                    f"Kafka gave nothing of {topic}/{partition} from offset {position} on for {_STALL_S:g} s, though "
                    f"it goes on to {end}. Does the partition's leader answer?"
                )


def _emptied_until_ms(view: TopicView) -> int:
    """The time to which the records of a partition without any may have been: to the end of retention, where that alone
    deletes. A route that is gone leaves such a partition for good."""
    if not view.known or view.by_size or view.retention_ms is None:
        return 1 << 62
    return time.time_ns() // 1_000_000 - view.retention_ms + SLACK_MS


async def _asked(question: Awaitable[T], what: str) -> T:
    try:
        return await question
    except (kafka_errors.KafkaError, OSError, TimeoutError) as error:
        raise read_failure(error, what) from error
