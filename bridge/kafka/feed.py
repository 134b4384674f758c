"""Readers of commands' other topics: new records for every worker, and the statuses of a partition's earlier owners."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from bridge.kafka.login import KafkaLogin
from bridge.kafka.reader import TopicReader

if TYPE_CHECKING:
    from bridge.commands.ports import Partition
    from bridge.dead_letters.reading import LoggedRecord
    from config.settings import KafkaSettings


class TopicFeed:
    """All new records of some topics, read without a group by every worker: answers, acknowledgements, presence.

    ``positions`` are the offsets of the next records. ``leaderless`` are partitions that had no leader at the start:
    they are not read, and once ``can_read_more`` another feed is needed. ``rewind`` and ``read`` are one task's."""

    def __init__(
        self, settings: KafkaSettings, client_id: str, topics: Sequence[str], login: KafkaLogin | None = None
    ) -> None:
        self._reader = TopicReader(settings, client_id, topics, login)
        self._open = contextlib.AsyncExitStack()
        self.positions: dict[Partition, int] = {}  # the next offsets
        self.leaderless: list[Partition] = []  # not read
        self._records: AsyncIterator[list[LoggedRecord]] | None = None

    async def start(self) -> None:
        """Begin behind the last records. Raises UnreachableError, RefusedError or TopicMissingError."""
        reader = await self._open.enter_async_context(self._reader)
        self.leaderless = [(at.topic, at.partition) for at in reader.leaderless]
        reader.partitions = [at for at in reader.partitions if at not in reader.leaderless]
        try:
            self.positions = await reader.ends()
        except BaseException:
            await self.stop()
            raise

    def can_read_more(self) -> bool:
        """Whether a partition that is not read has a leader now."""
        return any(map(self._reader.has_leader, self._reader.leaderless))

    async def stop(self) -> None:
        """Never raises."""
        await self._open.aclose()

    async def read(self) -> Sequence[LoggedRecord]:
        """The next records; waits up to 200 ms, and may be empty, also while Kafka is away. Raises UnreachableError,
        RefusedError or TopicMissingError, and then another feed is needed."""
        if self._records is None:
            self._records = self._reader.follow(self.positions)
        found = await anext(self._records)
        for record in found:
            self.positions[record.place[:2]] = record.place.offset + 1
        return found

    async def rewind(self, moment_ms: int) -> None:
        """Go back, never forward, to the records of that time (ms since 1970)."""
        for partition, offset in (await self._reader.offsets_at(moment_ms)).items():
            self.positions[partition] = min(offset, self.positions.get(partition, offset))
        self._records = None


class StatusTail:
    """Reads what earlier owners of a partition wrote about it. Connects for each question: only a rebalance asks."""

    def __init__(self, settings: KafkaSettings, client_id: str, topic: str, login: KafkaLogin | None = None) -> None:
        self._settings, self._client_id, self._topic = settings, client_id, topic
        self._login = login or KafkaLogin(settings)

    async def read(
        self, starts: Mapping[int, int], take: Callable[[LoggedRecord], object]
    ) -> tuple[int, AbstractSet[int]]:
        """Call ``take`` with the records of each of these partitions of the status topic, from an offset (or the first
        that Kafka still has) to its present end. An offset beyond that is of an earlier topic of this name: all are
        read. Returns the number of the topic's partitions, and those that have no leader, which were not read. Raises
        UnreachableError, RefusedError or TopicMissingError."""
        async with TopicReader(self._settings, self._client_id, [self._topic], self._login) as reader:
            leaderless = {at.partition for at in reader.leaderless}
            reader.partitions = [at for at in reader.partitions if at.partition in starts.keys() - leaderless]
            ends = await reader.ends()
            wanted = {
                at: first if starts[at[1]] > ends[at] else max(first, starts[at[1]])
                for at, first in (await reader.beginnings()).items()
            }
            async for record in reader.read(wanted, ends):
                take(record)
            return reader.facts[0].partitions, leaderless
