"""The timestamp of a record: what Kafka refuses, and what is written in its place.

It is the moment of reception by our clock, or what an interceptor set. Kafka refuses what is too far from its own clock
(``message.timestamp.after.max.ms``, an hour unless the topic says otherwise, and ``message.timestamp.before.max.ms``).
No record is at fault for a clock, so it is written with another timestamp, and a header keeps the one it had."""

from __future__ import annotations

__all__ = ["AHEAD_MS", "noting", "restamped"]

from typing import TYPE_CHECKING, Final

from bridge import wire
from bridge.ports import StoredRecord

if TYPE_CHECKING:
    from bridge.ports import Headers

AHEAD_MS: Final = 3_600_000  # Kafka's default of message.timestamp.after.max.ms


def restamped(record: StoredRecord, now_ms: int) -> StoredRecord:
    """The record with the present as its timestamp. All else stays, the receive time and message id among it."""
    return StoredRecord(now_ms, record.key, record.value, noting(record.headers, record.timestamp_ms))


def noting(headers: Headers, timestamp_ms: int) -> Headers:
    """Headers that say which timestamp the record had at first."""
    if any(name == wire.GATEWAY_TIMESTAMP_MS for name, _ in headers):
        return headers
    return [*headers, (wire.GATEWAY_TIMESTAMP_MS, b"%d" % timestamp_ms)]
