"""Replaces timestamps of records that Kafka refuses.

A timestamp is the receive time by this machine's clock, or a time that an interceptor set. Kafka refuses timestamps
that are too far from its own clock: ``message.timestamp.after.max.ms`` (an hour by default) and
``message.timestamp.before.max.ms``. A wrong clock makes no dead letters: the record gets another timestamp, and a
header keeps the first one. ``gateway/mqtt/ingest.py`` takes the receive time; ``dispatch.py``
replaces what an interceptor set too far ahead, and ``sender.py`` what Kafka has refused."""

from typing import Final

from bridge import wire
from bridge.ports import Headers, StoredRecord

AHEAD_MS: Final = 3_600_000  # Kafka's default of message.timestamp.after.max.ms


def restamped(record: StoredRecord, now_ms: int) -> StoredRecord:
    """The record with the present as its timestamp. Receive time and message id stay."""
    return StoredRecord(now_ms, record.key, record.value, noting(record.headers, record.timestamp_ms))


def noting(headers: Headers, timestamp_ms: int) -> Headers:
    """Headers plus the record's first timestamp."""
    if any(name == wire.GATEWAY_TIMESTAMP_MS for name, _ in headers):
        return headers
    return [*headers, (wire.GATEWAY_TIMESTAMP_MS, b"%d" % timestamp_ms)]
