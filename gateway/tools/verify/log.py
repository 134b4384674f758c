"""What a verification reads in Kafka: topics and their records, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

SLACK_MS: Final = 60_000  # between the gateway's clock and the broker's


class FoundRecord(NamedTuple):
    """A record. ``ours``: its header ``gateway.id`` is this gateway's."""

    offset: int
    timestamp_ms: int
    ours: bool


class LedgerRow(NamedTuple):
    partition: int
    key: bytes
    value: bytes | None


class PartitionView(NamedTuple):
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
