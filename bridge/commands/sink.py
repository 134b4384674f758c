"""Writes the status topic."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from bridge.commands.model import ANSWER_LIMIT
from bridge.errors import BridgeError, IncarnationError, PoisonedError, RefusedError, TimestampError
from bridge.topic_writer import TopicWriter
from bridge.waiting import end_tasks, report_failure

if TYPE_CHECKING:
    from bridge.commands.model import StatusRecord
    from bridge.commands.ports import Partition
    from bridge.ports import Producer

log = structlog.get_logger("commands")

SHORT_ANSWER: Final = 256  # bytes of an answer's payload in a status that is too large with more


class _Queued(NamedTuple):
    record: StatusRecord
    stored: Callable[[int], None]
    owner: int
    answer_limit: int = ANSWER_LIMIT


@dataclass(slots=True)
class _Lane:
    """The records for a partition of the status topic, without the batch under way, and the task that writes them."""

    queue: deque[_Queued] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class StatusWriter:
    """Writes statuses through the present producer (``bridge.commands.ports.StatusSink``). Belongs to the event loop's
    thread.

    ``producer`` and ``renew`` are as ``TopicWriter`` has them. ``refused`` counts the statuses that Kafka will never
    take: they are logged, and pass for stored without a known offset, for a command must not wait for ever. ``broken``
    gets a defect: the batch that was under way is not written.
    """

    def __init__(
        self,
        topic: str,
        *,
        producer: Callable[[], Producer | None],  # the present one; None before the first
        renew: Callable[[str], None],  # asks for another producer; gets the reason
        broken: Callable[[BaseException], None],  # gets a defect
    ) -> None:
        self._topic = topic
        self._broken = broken
        self._lanes: dict[int, _Lane] = {}  # by partition of the status topic
        self._owners: dict[Partition, int] = {}  # of the commands' partitions: how often one was dropped
        self._held: Counter[Partition] = Counter()  # of the commands' partitions: statuses that are not in Kafka
        self.waiting = 0  # statuses that are not in Kafka
        self.refused = 0  # statuses that Kafka will never take
        self._writer: TopicWriter[_Queued] = TopicWriter(
            topic,
            encode=lambda queued: (queued.record.key(), queued.record.value(queued.answer_limit), []),
            stored=self._stored,
            wanted=self._wanted,
            refused=self._refused,
            failed=self._failed,
            producer=producer,
            renew=renew,
        )

    def write(self, partition: int, record: StatusRecord, stored: Callable[[int], None]) -> None:
        """Queue a status for a partition of its topic. ``stored`` gets its offset, -1 if that is unknown."""
        lane = self._lanes.setdefault(partition, _Lane())
        lane.queue.append(_Queued(record, stored, self._owners.get(record.place[:2], 0)))
        self._count(record, 1)
        if lane.task is None:
            lane.task = asyncio.create_task(self._write(partition, lane), name=f"statuses-{partition}")
            lane.task.add_done_callback(report_failure(self._broken))

    async def _write(self, partition: int, lane: _Lane) -> None:
        """Write a lane until it is empty, which ends its task."""
        try:
            while lane.queue:  # also while the topic lacks the partition
                await self._writer.write(partition, lane.queue)
        finally:
            lane.task = None

    def drop(self, partition: Partition) -> None:
        """Forget queued statuses of a partition of commands, which is another member's now."""
        self._owners[partition] = self._owners.get(partition, 0) + 1
        if (lane := self._lanes.get(partition[1])) is not None:  # statuses have their command's partition
            left = [queued for queued in lane.queue if self._wanted(queued)]
            lane.queue.clear()
            lane.queue.extend(left)

    def holds(self, partition: Partition) -> bool:
        """Whether there are statuses of a partition of commands that Kafka has not, or may yet get. Of one that was
        dropped these are the ones that were under way."""
        return self._held[partition] > 0

    async def close(self) -> None:
        """End without what waits."""
        await end_tasks(*(lane.task for lane in self._lanes.values()))

    def _wanted(self, queued: _Queued) -> bool:
        if queued.owner == self._owners.get(queued.record.place[:2], 0):
            return True
        self._count(queued.record, -1)
        return False

    def _count(self, record: StatusRecord, by: int) -> None:
        self.waiting += by
        self._held[record.place[:2]] += by

    def _stored(self, queued: _Queued, offset: int) -> None:
        """Report that Kafka has a status, or will never have it (offset -1). Logs what ``stored`` raises."""
        self._count(queued.record, -1)
        try:
            queued.stored(offset)
        except Exception:
            log.exception("status_defect", topic=self._topic, command=queued.record.id)

    def _refused(self, queued: _Queued, error: PoisonedError) -> _Queued | None:
        """What to write for a status that Kafka refused: one with a shorter answer, or None: it is given up."""
        if queued.record.answer is not None and queued.answer_limit > SHORT_ANSWER:
            return queued._replace(answer_limit=SHORT_ANSWER)
        self.refused += 1
        log.error("status_refused", topic=self._topic, command=queued.record.id, error=str(error))
        self._stored(queued, -1)
        return None

    def _failed(self, error: BridgeError) -> None:
        if isinstance(error, RefusedError | IncarnationError | TimestampError):
            log.warning("status_write_failed", topic=self._topic, error=str(error), repeat_key=self._topic)
