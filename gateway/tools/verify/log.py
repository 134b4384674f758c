"""What a verification asks of Kafka. ``gateway.tools.verify.reader`` is the one on aiokafka; tests have one in
memory."""

from __future__ import annotations

__all__ = ["FoundRecord", "KafkaLog", "LedgerRow", "PartitionView", "TopicView"]

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class FoundRecord(NamedTuple):
    """A record as far as it matters here. ``ours``: it has the header ``gateway.id`` with our name."""

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
    """The offsets a partition has: from ``start`` on, and less than ``end``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic, its partitions that have a leader, and what its settings do to old records.

    ``retention_ms`` None: kept for ever, as far as time goes. ``by_size``: records may also go because the topic is
    full. ``known`` False: Kafka does not show us the settings."""

    partitions: dict[int, PartitionView]
    compacted: bool = False
    deletes: bool = True
    retention_ms: int | None = None
    by_size: bool = False
    known: bool = True

    def may_have_expired(self, from_ms: int, now_ms: int, slack_ms: int) -> bool:
        """Whether retention accounts for the absence of records written from ``from_ms`` on."""
        if not self.known:
            return True
        if not self.deletes:
            return False
        aged = self.retention_ms is not None and from_ms + self.retention_ms <= now_ms + slack_ms
        return aged or self.by_size


class KafkaLog(Protocol):
    """Reads, and nothing else. Every method may raise BridgeError.

    ``leaderless``: topics and partitions that could not be read, or not to the end, since they have no leader."""

    leaderless: set[tuple[str, int]]

    def ledger(self, topic: str, since_ms: int | None) -> AsyncIterator[LedgerRow]:
        """The ledger topic up to where it ends now, a partition after the other; from records written at ``since_ms``
        on. Raises TopicMissingError."""

    async def ledger_horizon_ms(self, topic: str) -> int:
        """The ledger topic is complete for what was written from this time on; 0 while nothing has expired."""

    async def topic(self, name: str) -> TopicView | None:
        """A topic as it is now; None when there is none of that name."""

    async def start_of(self, topic: str, partition: int) -> int:
        """The first offset that a partition has now; 0 when its topic is gone."""

    def records(self, topic: str, partition: int, first: int, end: int) -> AsyncIterator[list[FoundRecord]]:
        """Its records from offset ``first`` and less than ``end``, in order, in pieces of bounded size."""
