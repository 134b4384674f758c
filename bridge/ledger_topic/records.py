"""Records of the ledger topic: JSON as ``bridge.wire`` names it, made from intervals, and read back."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from bridge import wire
from config.error_words import words

if TYPE_CHECKING:
    from bridge.ledger_topic.intervals import Interval

State = Literal["started", "running", "stopped"]
KeyValue = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Author:
    """One run of one worker, with what it knows of the run before."""

    gateway: str
    worker: int
    life: str
    started_ms: int
    previous_life: str | None = None
    previous_clean: bool | None = None


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """Acknowledged records of one route in one partition and interval. The fields are those of the wire.

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
    """The ledger of one worker at the end of an interval. ``terms`` have the names of ``wire.LEDGER_TERMS``."""

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

_KINDS: dict[str, type[LedgerRecord]] = {
    wire.LEDGER_PARTITION: PartitionRecord,
    wire.LEDGER_WORKER: WorkerRecord,
    wire.LEDGER_SESSION: LostSessionRecord,
}
_FIELDS = {kind: tuple(field.name for field in fields(record)) for kind, record in _KINDS.items()}


class LedgerRecordError(ValueError):
    """A record of the ledger topic that this version cannot read."""


def partition_records(author: Author, number: int, interval: Interval, tagged: Collection[str]) -> list[KeyValue]:
    """Key and value of an interval's ``partition`` records; ``tagged`` are the routes with header ``gateway.id``."""
    common = _common(author, number, interval)
    records = []
    for key, entry in interval.entries.items():
        bounds = entry.bounds()
        record = PartitionRecord(
            *common,
            *key,
            key.dead_letter or key.route in tagged,
            entry.records,
            entry.messages,
            entry.size,
            bounds and bounds[0],
            bounds and bounds[1],
            [(first, end - first) for first, end in entry.all_runs()] if entry.exact else None,
            entry.unlocated,
        )
        name = f"{author.gateway}/{author.worker}/{key.route}/{key.topic}/{key.partition}"
        records.append((name.encode(), _encode(wire.LEDGER_PARTITION, record)))
    return records


def session_records(author: Author, number: int, interval: Interval) -> list[KeyValue]:
    """Key and value of a record for each MQTT session lost in the interval, which has this number."""
    records = []
    for session, client_id, left_ms, at_ms in interval.losses:
        common = (author.gateway, author.worker, author.life, number, at_ms if left_ms is None else left_ms, at_ms)
        record = LostSessionRecord(*common, session, client_id, left_ms is not None)
        name = f"{author.gateway}/{author.worker}/session/{session}"
        records.append((name.encode(), _encode(wire.LEDGER_SESSION, record)))
    return records


def worker_record(author: Author, number: int, interval: Interval, state: State, unwritten: int) -> KeyValue:
    """Key and value of an interval's ``worker`` record. ``unwritten``: records that Kafka refused."""
    before = (author.previous_life, author.previous_clean) if state == "started" else (None, None)
    record = WorkerRecord(
        *_common(author, number, interval),
        state,
        author.started_ms,
        len(interval.entries),
        unwritten,
        *before,
        {term: getattr(interval.terms, term) for term in wire.LEDGER_TERMS},
        interval.terms.imbalance,
        interval.acknowledged,
    )
    return f"{author.gateway}/{author.worker}".encode(), _encode(wire.LEDGER_WORKER, record)


def _common(author: Author, number: int, interval: Interval) -> tuple[str, int, str, int, int, int]:
    return author.gateway, author.worker, author.life, number, interval.from_ms, interval.to_ms


def _encode(kind: str, record: LedgerRecord) -> bytes:
    """A record as its JSON object; the terms of the ledger are fields of it."""
    document: dict[str, Any] = {"v": wire.LEDGER_VERSION, "kind": kind}
    for name in _FIELDS[kind]:
        value = getattr(record, name)
        document |= value if name == "terms" else {name: value}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def decode(value: bytes | None) -> LedgerRecord:
    """Decode a ledger record. Raises LedgerRecordError for anything else, or a newer version."""
    try:
        document = json.loads(value or b"")
        version = int(document["v"])
        if version <= wire.LEDGER_VERSION:
            return _decode(document)
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerRecordError(f"no record of a ledger: {words(error)}") from error
    raise LedgerRecordError(f"of version {version}, where this gateway knows {wire.LEDGER_VERSION}")


def _decode(document: dict[str, Any]) -> LedgerRecord:
    """A record from its JSON object. An unknown kind is read as ``worker``. Raises KeyError, TypeError, ValueError."""
    kind = document["kind"] if document["kind"] in _KINDS else wire.LEDGER_WORKER
    if kind == wire.LEDGER_PARTITION and document["runs"] is not None:
        document["runs"] = [(int(first), int(count)) for first, count in document["runs"]]
    if kind == wire.LEDGER_WORKER:  # a term that an older version did not have yet counted none
        document["terms"] = {term: int(document.get(term, 0)) for term in wire.LEDGER_TERMS}
    return _KINDS[kind](**{name: document[name] for name in _FIELDS[kind]})
