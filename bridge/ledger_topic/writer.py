"""Writes the ledger topic through the same producer, without delaying the data path.

At the end of an interval its counts are closed and queued. A task writes them in order, until Kafka takes them. No
acknowledgement and no batch of a route waits for it. Without Kafka the intervals wait in memory, bounded
(``bridge.ledger_topic.intervals``).

An interval's ``partition`` and ``session`` records are written before its ``worker`` record, and that before the next
interval. Records may be written again after a lost answer. They then have the same ``life`` and ``number`` and follow
directly; readers skip them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from bridge.errors import BridgeError, IncarnationError, PoisonedError, RefusedError
from bridge.ledger_topic.records import Author, KeyValue, State, partition_records, session_records, worker_record
from bridge.produce.partitioner import partition_for
from bridge.topic_writer import TopicWriter
from bridge.waiting import end_tasks, report_failure

if TYPE_CHECKING:
    from bridge.ledger import Ledger
    from bridge.ledger_topic.intervals import LedgerIntervals
    from bridge.ports import Producer

log = structlog.get_logger("ledger")


@dataclass(frozen=True, slots=True)
class LedgerPlan:
    """Where to write, and how often. ``tagged`` are the routes whose records have the header ``gateway.id``."""

    topic: str
    interval_ms: int
    tagged: frozenset[str]


class LedgerWriter:
    """Writes one life's account. Belongs to the event loop's thread.

    Args:
        producer: returns the present producer, or None before the first. It must know the ledger topic.
        renew: asks for another producer, when this one cannot write to the ledger's partition any more.
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
        self._topic: TopicWriter[KeyValue] = TopicWriter(
            plan.topic,
            encode=lambda record: (*record, []),
            stored=lambda _record, _offset: None,
            refused=self._refused,
            failed=self._failed,
            producer=producer,
            renew=renew,
            now_ms=now_ms,
        )
        self._now_ms = now_ms
        self._number = 0  # of the next interval
        self._state: State = "started"
        self._last = False  # the pending interval is the last
        self._writing = False  # an interval is taken and not written
        self._unwritten = 0  # records that Kafka refused
        self._due = asyncio.Event()  # set when an interval was closed
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Intervals that are not written yet."""
        return len(self._intervals.pending) + self._writing

    def start(self) -> None:
        """Write a first record at once, then one interval after another. Does not block."""
        self._intervals.begin(self._now_ms())
        self._cut()
        self._task = asyncio.create_task(self._run(), name="ledger")
        self._task.add_done_callback(report_failure(_broken))
        self._arm()

    async def stop(self, deadline_ns: int) -> bool:
        """Write the open interval, until ``deadline_ns`` (monotonic). Returns whether everything is written.

        Call it when no record is sent any more, and before the producer closes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task, self._task = self._task, None
        if task is None:
            return False
        self._last = True
        self._cut()
        left_s = (deadline_ns - time.monotonic_ns()) / 1e9
        try:
            await asyncio.wait([task], timeout=max(0.0, left_s))
            if not task.done():
                log.warning("ledger_unwritten", intervals=self.waiting, consequence="they are unaccounted for")
                return False
        finally:
            await end_tasks(task)  # also when this call is cut short
        task.result()
        return True

    def adopt(self, tagged: frozenset[str]) -> None:
        """Use other tagged routes, also for intervals that are not written yet."""
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
        """Write each closed interval: its details first, the worker's summary behind them. Ends with the last."""
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
        while records:
            count = await self._topic.partitions()
            by_partition: dict[int, deque[KeyValue]] = {}
            for record in records:
                by_partition.setdefault(partition_for(record[0], count), deque()).append(record)
            async with asyncio.TaskGroup() as group:
                for partition, theirs in by_partition.items():
                    group.create_task(self._topic.write(partition, theirs))
            records = [record for theirs in by_partition.values() for record in theirs]

    def _refused(self, _record: KeyValue, error: PoisonedError) -> None:
        self._unwritten += 1
        log.error("ledger_record_refused", topic=self._plan.topic, error=str(error))

    def _failed(self, error: BridgeError) -> None:
        if isinstance(error, RefusedError | IncarnationError):
            log.warning("ledger_write_failed", topic=self._plan.topic, error=str(error), repeat_key=self._plan.topic)


def _broken(error: BaseException) -> None:
    log.error("ledger_broken", consequence="no interval is written until the next start", exc_info=error)
