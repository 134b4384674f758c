"""Writes the ledger topic beside the data path: through the same producer, and never in its way.

At each end of an interval the counts are cut off and queued; a task writes them, in order, and tries for as long as it
takes. Nothing waits for it: not an acknowledgement, not a batch of a route. While Kafka is away the intervals wait in
memory, bounded (``bridge.ledger_topic.intervals``).

An interval's ``partition`` and ``session`` records are written before its ``worker`` record, and that before the next
interval. What is written again after an answer was lost has the same ``life`` and ``number`` and follows directly
behind: readers leave it out.
"""

from __future__ import annotations

__all__ = ["LedgerPlan", "LedgerWriter"]

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from bridge.backoff import Backoff
from bridge.errors import BridgeError, IncarnationError, LeaderMissingError, PoisonedError, RefusedError
from bridge.ledger_topic.records import partition_records, session_records, worker_record
from bridge.produce.partitioner import partition_for
from config.errors import forget_frames

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.ledger import Ledger
    from bridge.ledger_topic.intervals import LedgerIntervals
    from bridge.ledger_topic.records import Author, KeyValue, State
    from bridge.ports import Producer

log = structlog.get_logger("ledger")

_LOOK_S: Final = 0.5  # how often it is looked whether the producer a batch was given to has been replaced
_BATCH_RECORDS: Final = 500
_PATIENCE_S: Final = 300.0  # for an answer; twice what the routes' batches have by default
_RENEW_AFTER_S: Final = 600.0  # a producer is replaced on the ledger's account at most so often


@dataclass(frozen=True, slots=True)
class LedgerPlan:
    """Where to write, and how often. ``tagged`` are the routes whose records have the header ``gateway.id``."""

    topic: str
    interval_ms: int
    tagged: frozenset[str]


class LedgerWriter:
    """Writes one life's account. Belongs to the event loop's thread.

    Args:
        producer: the producer of the moment, None while there has been none; it must know the ledger topic.
        renew: asks for another producer, when this one can write no more to the ledger's partition.
        now_ms: the wall clock.
    """

    def __init__(
        self,
        plan: LedgerPlan,
        author: Author,
        intervals: LedgerIntervals,
        ledger: Ledger,
        *,
        producer: Callable[[], Producer | None],
        renew: Callable[[str], None],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._plan = plan
        self._author = author
        self._intervals = intervals
        self._ledger = ledger
        self._producer = producer
        self._renew = renew
        self._now_ms = now_ms
        self._number = 0
        self._state: State = "started"
        self._last = False
        self._writing = False
        self._unwritten = 0
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._renewed_s = float("-inf")

    @property
    def waiting(self) -> int:
        """Intervals that are not written yet."""
        return len(self._intervals.pending) + self._writing

    def start(self) -> None:
        """Begin: says at once that the life has started, and then an interval at a time. Does not block."""
        self._intervals.begin(self._now_ms())
        self._cut()
        self._task = asyncio.create_task(self._run(), name="ledger")
        self._arm()

    async def stop(self, deadline_ns: int) -> bool:
        """Write what is open, until ``deadline_ns`` (monotonic); whether everything is written.

        Call it when nothing is sent any more and the producer still stands."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task, self._task = self._task, None
        if task is None:
            return False
        self._last = True
        self._cut()
        left_s = (deadline_ns - time.monotonic_ns()) / 1e9
        await asyncio.wait([task], timeout=max(0.0, left_s))
        if not task.done():
            log.warning("ledger_unwritten", intervals=self.waiting, consequence="they are unaccounted for")
            task.cancel()
            await asyncio.wait([task])
            return False
        task.result()
        return True

    def adopt(self, tagged: frozenset[str]) -> None:
        """Other routes are tagged, also in what is not written yet."""
        self._plan = replace(self._plan, tagged=tagged)

    # --- cutting -----------------------------------------------------------------------------------

    def _arm(self) -> None:
        now_ms, interval_ms = self._now_ms(), self._plan.interval_ms
        left_ms = interval_ms - now_ms % interval_ms
        self._timer = asyncio.get_running_loop().call_later(left_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._cut()
        self._arm()

    def _cut(self) -> None:
        self._intervals.close(self._now_ms(), self._ledger.snapshot())
        self._due.set()

    # --- writing -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        pending = self._intervals.pending
        while True:
            await self._due.wait()
            self._due.clear()
            while pending:
                interval, self._writing = pending.popleft(), True
                if self._last and not pending:
                    self._state = "stopped"
                entries = partition_records(self._author, self._number, interval, self._plan.tagged)
                await self._write([*entries, *session_records(self._author, self._number, interval)])
                summary = worker_record(self._author, self._number, interval, self._state, self._unwritten)
                await self._write([summary])
                self._writing = False
                if self._state == "stopped":
                    return
                self._number += 1
                self._state = "running"

    async def _write(self, records: list[KeyValue]) -> None:
        """Return when Kafka has them all."""
        if not records:
            return
        count = await self._partitions()
        by_partition: dict[int, list[KeyValue]] = {}
        for record in records:
            by_partition.setdefault(partition_for(record[0], count), []).append(record)
        async with asyncio.TaskGroup() as group:
            for partition, theirs in by_partition.items():
                group.create_task(self._write_partition(partition, theirs))

    async def _partitions(self) -> int:
        topic = self._plan.topic
        while True:
            producer = self._producer()
            if producer is not None:
                if (count := producer.partition_count(topic)) is not None:
                    return count
                producer.watch_topic(topic)
            await asyncio.sleep(_LOOK_S)

    async def _write_partition(self, partition: int, records: list[KeyValue]) -> None:
        backoff = Backoff(100_000_000, 10_000_000_000)
        at, limit = 0, _BATCH_RECORDS
        while at < len(records):
            error, taken = await self._send(partition, records[at : at + limit])
            match error:
                case None:
                    at, limit = at + taken, _BATCH_RECORDS
                case PoisonedError() if taken == 1:
                    # Nothing is gained by trying again, and what follows must not wait for it.
                    self._unwritten += 1
                    log.error("ledger_record_refused", topic=self._plan.topic, error=str(error))
                    at += 1
                case PoisonedError():
                    limit = taken // 2
                case _:
                    await self._wait(error, backoff)

    async def _send(self, partition: int, records: list[KeyValue]) -> tuple[BridgeError | None, int]:
        """Hand over as many records as a batch takes, and wait for what becomes of them."""
        producer = self._producer()
        assert producer is not None, "its partitions were known, so there was one"
        builder, taken = producer.create_batch(compressed=True), 0
        now_ms = self._now_ms()
        while taken < len(records) and builder.append(taken, now_ms, *records[taken], []) is not None:
            taken += 1
        builder.close(taken)
        try:
            answer = producer.send(self._plan.topic, partition, builder)
        except BridgeError as error:
            forget_frames(error)  # they have the producer, which may be on its way out
            return error, taken
        # A producer that has been replaced never answers. Until then no other batch may go to the partition.
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        while not answer.done() and producer is self._producer():
            held_s = producer.held_until_ns(self._plan.topic, partition) / 1e9
            if loop.time() - max(sent_s, held_s) > _PATIENCE_S:
                self._ask_for_another("no answer")
            await asyncio.wait([answer], timeout=_LOOK_S)
        if not answer.done():
            return LeaderMissingError("The producer was replaced before Kafka answered."), taken
        return producer.failure(answer), taken

    def _ask_for_another(self, why: str) -> None:
        """The producer is of no more use for the ledger's partition; for the routes' it may be, so not too often."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._renewed_s > _RENEW_AFTER_S:
            self._renewed_s = now_s
            self._renew(f"The ledger topic {self._plan.topic} cannot be written: {why}")

    async def _wait(self, error: BridgeError, backoff: Backoff) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(error, IncarnationError):
            self._ask_for_another(str(error))
        if isinstance(error, RefusedError | IncarnationError):
            log.warning("ledger_write_failed", topic=self._plan.topic, error=str(error), repeat_key=self._plan.topic)
        if (producer := self._producer()) is not None:
            producer.watch_topic(self._plan.topic)
        loop_ns = round(loop.time() * 1e9)
        await asyncio.sleep(backoff.next_ns(loop_ns) / 1e9)
