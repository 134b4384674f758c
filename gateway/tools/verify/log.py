"""The Protocol of a verification's questions to Kafka. ``gateway.tools.verify.reader`` implements it on aiokafka, tests
in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class FoundRecord(NamedTuple):
    """A record. ``ours``: its header ``gateway.id`` is this gateway's."""

    offset: int
    timestamp_ms: int
    ours: bool


class LedgerRow(NamedTuple):
    """A record of the ledger topic."""

    partition: int
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class PartitionView:
    """The offsets of a partition, from ``start`` to below ``end``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic, its partitions with a leader, and its settings for old records.

    ``retention_ms`` None: no limit by time. ``by_size``: records are also deleted by size. ``known`` False: Kafka hides
    the settings."""

    partitions: dict[int, PartitionView]
    compacted: bool = False
    deletes: bool = True
    retention_ms: int | None = None
    by_size: bool = False
    known: bool = True

    def may_have_expired(self, from_ms: int, now_ms: int, slack_ms: int) -> bool:
        """Whether retention may have deleted records written since ``from_ms``."""
        if not self.known:
            return True
        if not self.deletes:
            return False
        aged = self.retention_ms is not None and from_ms + self.retention_ms <= now_ms + slack_ms
        return aged or self.by_size


class KafkaLog(Protocol):
    """Reads only. Every method may raise BridgeError.

    ``leaderless``: topics and partitions that could not be read to the end for lack of a leader."""

    leaderless: set[tuple[str, int]]

    def ledger(self, topic: str, since_ms: int | None) -> AsyncIterator[LedgerRow]:
        """The ledger topic from records written at ``since_ms`` to its present end, one partition after the other.
        Raises TopicMissingError."""

    async def ledger_horizon_ms(self, topic: str) -> int:
        """The time from which the ledger topic is complete; 0 if nothing has expired."""

    async def topic(self, name: str) -> TopicView | None:
        """The present topic, or None."""

    async def start_of(self, topic: str, partition: int) -> int:
        """The present first offset of a partition; 0 if its topic is gone."""

    def records(self, topic: str, partition: int, first: int, end: int) -> AsyncIterator[list[FoundRecord]]:
        """The records from offset ``first`` to below ``end``, in order, in pieces of bounded size."""
