"""Verifies the ledger: reads its topic, then every partition in it, and compares.

Memory holds the acknowledged offsets as runs, the workers' last records, and one piece of records at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bridge.ledger_topic.records import (
    LedgerRecord,
    LedgerRecordError,
    LostSessionRecord,
    PartitionRecord,
    WorkerRecord,
    decode,
)
from config.errors import ExitStatus, GatewayError
from gateway.base.moments import moment
from gateway.tools.verify.lives import Life, Lives
from gateway.tools.verify.place import Place, PlaceResult

if TYPE_CHECKING:
    from gateway.tools.verify.log import LedgerRow, TopicView
    from gateway.tools.verify.reader import KafkaReader

MAX_RUNS: Final = 1_000_000  # over all partitions, at most some 100 MB


class TooMuchError(GatewayError):
    """The verification would take too much memory."""

    exit_status = ExitStatus.UNJUDGED


@dataclass(frozen=True, slots=True)
class Span:
    """The intervals to verify: those that end after ``since_ms`` and not after ``until_ms`` (ms since 1970)."""

    since_ms: int | None = None
    until_ms: int | None = None

    def holds(self, record: LedgerRecord) -> bool:
        if self.since_ms is not None and record.to_ms <= self.since_ms:
            return False
        return self.until_ms is None or record.to_ms <= self.until_ms


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a verification. ``now_ms`` is the end of its span. ``missing`` and ``unjudged`` are sentences.
    ``losses`` are MQTT sessions that the broker lost, each once."""

    gateway: str
    from_ms: int | None
    to_ms: int | None
    now_ms: int
    places: list[PlaceResult]
    lives: list[Life]
    missing: list[str]
    unjudged: list[str]
    losses: list[LostSessionRecord] = field(default_factory=list)

    @property
    def exit_status(self) -> ExitStatus:
        if self.missing:
            return ExitStatus.MISSING_MESSAGES
        return ExitStatus.UNJUDGED if self.unjudged else ExitStatus.OK


class _Reading:
    def __init__(self, gateway: str, span: Span, lives: Lives, now_ms: int) -> None:
        self.lives = lives
        self.topics: dict[str, TopicView | None] = {}
        self.places: dict[tuple[str, int], Place] = {}
        self.from_ms: int | None = None
        self.to_ms: int | None = None
        self.unreadable: dict[str, int] = {}
        self.runs = 0  # of acknowledged offsets, over all places
        self.losses: dict[tuple[int, str, int], LostSessionRecord] = {}
        self._gateway = gateway
        self._span = span
        self._now_ms = now_ms
        self._last: dict[tuple[int, bytes, str, bool], int] = {}  # numbers of the last records, to know copies

    def read(self, row: LedgerRow) -> LedgerRecord | None:
        """The record, if it is this gateway's, in the span, and no copy of an earlier one.

        A lost session may have several records in an interval, and more from the life after a crash."""
        if not row.key.startswith(f"{self._gateway}/".encode()):
            return None  # another gateway's
        try:
            record = decode(row.value)
        except LedgerRecordError as error:
            self.unreadable[str(error)] = self.unreadable.get(str(error), 0) + 1
            return None
        if not self._span.holds(record):
            if isinstance(record, WorkerRecord):
                self.lives.pass_over(record)
            return None
        if isinstance(record, LostSessionRecord):
            return record
        # A copy follows the first record in the same partition, where a key's numbers only rise within a life. After
        # partitions were added, a key's later numbers may be in a partition that is read first.
        dead = isinstance(record, PartitionRecord) and record.dead_letter  # not in the key, but a count of its own
        last = (row.partition, row.key, record.life, dead)
        if record.number <= self._last.get(last, -1):
            return None
        self._last[last] = record.number
        self.from_ms = record.from_ms if self.from_ms is None else min(self.from_ms, record.from_ms)
        self.to_ms = record.to_ms if self.to_ms is None else max(self.to_ms, record.to_ms)
        return record

    async def add(self, log: KafkaReader, record: PartitionRecord) -> None:
        """Add a partition's record. For a new topic, Kafka is asked for its offsets."""
        if record.topic not in self.topics:
            self.topics[record.topic] = await log.topic(record.topic)
        place = self.places.get((record.topic, record.partition))
        if place is None:
            place = Place(record.topic, record.partition, self.topics[record.topic], self._now_ms)
            self.places[record.topic, record.partition] = place
        before = place.run_count
        place.add(record)
        self.runs += place.run_count - before


async def verify(
    log: KafkaReader,
    *,
    gateway: str,
    ledger_topic: str,
    span: Span,
    interval_ms: int,
    now_ms: int,
    progress: Callable[[str], None] = lambda _text: None,
) -> Verdict:
    """Compare the ledger with Kafka. Raises the errors of ``log``, and TooMuchError."""
    horizon_ms = await log.ledger_horizon_ms(ledger_topic)
    reading = _Reading(gateway, span, Lives(interval_ms, horizon_ms, span.since_ms or 0), now_ms)
    progress(f"reading the ledger topic {ledger_topic}")
    async for row in log.ledger(ledger_topic, span.since_ms):
        record = reading.read(row)
        if isinstance(record, PartitionRecord):
            reading.lives.add_partition(record)
            await reading.add(log, record)
            if reading.runs > MAX_RUNS:
                raise TooMuchError(
                    f"The span has more than {MAX_RUNS:,} separate runs of offsets, because others write to the same "
                    "partitions between our batches. Verify a shorter span: --last, or --since and --until."
                )
        elif isinstance(record, LostSessionRecord):
            reading.losses[record.worker, record.client_id, record.to_ms] = record
        elif record is not None:
            reading.lives.add_worker(record)
    windows = reading.lives.windows(now_ms)
    results = []
    for (topic, partition), place in sorted(reading.places.items()):
        progress(f"reading {topic}/{partition}")
        comparison = place.compare(windows)
        start = 0
        if (offsets := place.span(to_end=span.until_ms is None)) is not None:
            async for records in log.records(topic, partition, *offsets):
                comparison.show(records)
            start = await log.start_of(topic, partition)
        read = (topic, partition) not in log.leaderless
        results.append(place.settle(comparison, start) if read else place.not_read())
    unread = sorted(partition for topic, partition in log.leaderless if topic == ledger_topic)
    told_ms = now_ms if span.until_ms is None else min(now_ms, span.until_ms)  # a later word is not of the span
    return _verdict(gateway, reading, results, told_ms, unread)


def _verdict(gateway: str, reading: _Reading, results: list[PlaceResult], now_ms: int, unread: list[int]) -> Verdict:
    """``now_ms``: when the span ends. ``unread``: partitions of the ledger topic."""
    lives = reading.lives.sorted()
    missing = [
        f"{result.topic}/{result.partition}: {result.missing} of {result.acknowledged} acknowledged records are missing"
        for result in results
        if result.missing
    ]
    unjudged = [
        f"{result.topic}/{result.partition}: {result.unjudged} records cannot be judged"
        for result in results
        if result.unjudged
    ]
    for life in lives:
        if life.worst_imbalance:
            what = "are missing inside the gateway" if life.worst_imbalance > 0 else "were counted twice"
            missing.append(f"worker {life.worker}, life {life.name}: {abs(life.worst_imbalance)} messages {what}")
        if life.last is not None and life.last.terms["lost"]:
            missing.append(f"worker {life.worker}, life {life.name}: a disk lost {life.last.terms['lost']} messages")
        if life.last is not None and life.ending(now_ms) == "silent":
            unjudged.append(
                f"worker {life.worker}, life {life.name}: no word since {moment(life.last.to_ms / 1000)}: it crashed, "
                "or cannot write to the ledger topic"
            )
        if life.last is not None and life.last.unwritten:
            unjudged.append(
                f"worker {life.worker}, life {life.name}: Kafka refused {life.last.unwritten} ledger records"
            )
    if unread:
        numbers = ", ".join(map(str, unread))
        unjudged.append(f"partition {numbers} of the ledger topic has no leader, so the account there cannot be read")
    if not lives:
        unjudged.append(f"the ledger topic has no record of gateway {gateway!r} in the span")
    elif results and not any(result.found or result.missing for result in results):
        unjudged.append("nothing that was acknowledged in the span is still retained")
    losses = [reading.losses[key] for key in sorted(reading.losses, key=lambda key: key[2])]
    unjudged += [_lost(loss) for loss in losses]
    if (incomplete := reading.lives.incomplete()) and not unread:
        unjudged.append(f"the ledger itself is incomplete: records of {incomplete} intervals are not there")
    unjudged += [f"{count} ledger records cannot be read: {what}" for what, count in reading.unreadable.items()]
    return Verdict(gateway, reading.from_ms, reading.to_ms, now_ms, results, lives, missing, unjudged, losses)


def _lost(loss: LostSessionRecord) -> str:
    where = f"worker {loss.worker}, session {loss.session} ({loss.client_id})"
    away = f"away since {moment(loss.from_ms / 1000)}" if loss.away_known else "away for an unknown time"
    return f"{where}: a session was lost, its contents are unknown: {away}, missed at {moment(loss.to_ms / 1000)}"
