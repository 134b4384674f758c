"""Records of the ledger topic: JSON as ``bridge.wire`` names it, made from intervals, and read back."""

from __future__ import annotations

__all__ = [
    "Author",
    "LedgerRecordError",
    "LostSessionRecord",
    "PartitionRecord",
    "WorkerRecord",
    "decode",
    "partition_records",
    "session_records",
    "worker_record",
]

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from bridge import wire
from config.error_words import words

if TYPE_CHECKING:
    from collections.abc import Collection

    from bridge.ledger_topic.intervals import Entry, EntryKey, Interval

State = Literal["started", "running", "stopped"]
KeyValue = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Author:
    """Whose account it is: one run of one worker, and what it knows of the run before."""

    gateway: str
    worker: int
    life: str
    started_ms: int
    previous_life: str | None = None
    previous_clean: bool | None = None


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """What Kafka acknowledged of one route in one partition and interval; the fields are those of the wire.

    ``runs`` are first offset and count."""

    gateway: str
    worker: int
    life: str
    number: int
    from_ms: int
    to_ms: int
    route: str
    topic: str
    partition: int
    dead_letter: bool
    tagged: bool
    records: int
    messages: int
    bytes: int
    first_offset: int | None
    last_offset: int | None
    runs: list[tuple[int, int]] | None
    unlocated: int


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """The account of one worker at the end of an interval; ``terms`` by the names of ``wire.LEDGER_TERMS``."""

    gateway: str
    worker: int
    life: str
    number: int
    from_ms: int
    to_ms: int
    state: State
    started_ms: int
    entries: int
    unwritten: int
    previous_life: str | None
    previous_clean: bool | None
    terms: dict[str, int]
    imbalance: int
    acknowledged: int


@dataclass(frozen=True, slots=True)
class LostSessionRecord:
    """An MQTT session that the broker had lost between ``from_ms`` and ``to_ms``; what it held is unknown."""

    gateway: str
    worker: int
    life: str
    number: int
    from_ms: int
    to_ms: int
    session: str
    client_id: str
    away_known: bool


LedgerRecord = PartitionRecord | WorkerRecord | LostSessionRecord

_PARTITION_FIELDS = tuple(field.name for field in fields(PartitionRecord))
_WORKER_FIELDS = tuple(field.name for field in fields(WorkerRecord))
_SESSION_FIELDS = tuple(field.name for field in fields(LostSessionRecord))


class LedgerRecordError(ValueError):
    """A record of the ledger topic that this version cannot read."""


def partition_records(author: Author, number: int, interval: Interval, tagged: Collection[str]) -> list[KeyValue]:
    """Key and value of an interval's ``partition`` records; ``tagged`` are the routes with header ``gateway.id``."""
    return [
        (
            f"{author.gateway}/{author.worker}/{key.route}/{key.topic}/{key.partition}".encode(),
            _json(
                {
                    **_common(wire.LEDGER_PARTITION, author, number, interval),
                    **_partition(key, entry, tagged=key.dead_letter or key.route in tagged),
                }
            ),
        )
        for key, entry in interval.entries.items()
    ]


def session_records(author: Author, number: int, interval: Interval) -> list[KeyValue]:
    """Key and value of an interval's ``session`` records."""
    return [
        (
            f"{author.gateway}/{author.worker}/session/{loss.session}".encode(),
            _json(
                {
                    **_common(wire.LEDGER_SESSION, author, number, interval),
                    "from_ms": loss.at_ms if loss.left_ms is None else loss.left_ms,
                    "to_ms": loss.at_ms,
                    "session": loss.session,
                    "client_id": loss.client_id,
                    "away_known": loss.left_ms is not None,
                }
            ),
        )
        for loss in interval.losses
    ]


def worker_record(author: Author, number: int, interval: Interval, state: State, unwritten: int) -> KeyValue:
    """Key and value of an interval's ``worker`` record."""
    terms = interval.terms
    document: dict[str, Any] = {
        **_common(wire.LEDGER_WORKER, author, number, interval),
        "state": state,
        "started_ms": author.started_ms,
        "entries": len(interval.entries),
        "unwritten": unwritten,
        "previous_life": author.previous_life if state == "started" else None,
        "previous_clean": author.previous_clean if state == "started" else None,
    }
    document |= {term: getattr(terms, term) for term in wire.LEDGER_TERMS}
    document["imbalance"], document["acknowledged"] = terms.imbalance, interval.acknowledged
    return f"{author.gateway}/{author.worker}".encode(), _json(document)


def decode(value: bytes | None) -> LedgerRecord:
    """A ledger record. Raises LedgerRecordError for what is none, or of a newer version."""
    try:
        document = json.loads(value or b"")
        version = int(document["v"])
        if version <= wire.LEDGER_VERSION:
            return _decode(document)
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerRecordError(f"no record of a ledger: {words(error)}") from error
    raise LedgerRecordError(f"of version {version}, where this gateway knows {wire.LEDGER_VERSION}")


def _decode(document: dict[str, Any]) -> LedgerRecord:
    if document["kind"] == wire.LEDGER_PARTITION:
        runs = document["runs"]
        document["runs"] = None if runs is None else [(int(first), int(count)) for first, count in runs]
        return PartitionRecord(**{name: document[name] for name in _PARTITION_FIELDS})
    # A term that an older version did not have yet: it counted none.
    if document["kind"] == wire.LEDGER_SESSION:
        return LostSessionRecord(**{name: document[name] for name in _SESSION_FIELDS})
    document["terms"] = {term: int(document.get(term, 0)) for term in wire.LEDGER_TERMS}
    return WorkerRecord(**{name: document[name] for name in _WORKER_FIELDS})


def _common(kind: str, author: Author, number: int, interval: Interval) -> dict[str, Any]:
    return {
        "v": wire.LEDGER_VERSION, "kind": kind, "gateway": author.gateway, "worker": author.worker,
        "life": author.life, "number": number, "from_ms": interval.from_ms, "to_ms": interval.to_ms,
    }  # fmt: skip


def _partition(key: EntryKey, entry: Entry, *, tagged: bool) -> dict[str, Any]:
    bounds = entry.bounds()
    runs = [[first, end - first] for first, end in entry.all_runs()] if entry.exact else None
    return {
        "route": key.route, "topic": key.topic, "partition": key.partition, "dead_letter": key.dead_letter,
        "tagged": tagged, "records": entry.records, "messages": entry.messages, "bytes": entry.size,
        "first_offset": bounds and bounds[0], "last_offset": bounds and bounds[1], "runs": runs,
        "unlocated": entry.unlocated,
    }  # fmt: skip


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
