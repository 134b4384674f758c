"""What waits for each Kafka partition: shared by everything in a worker that writes to Kafka."""

from __future__ import annotations

__all__ = ["Backlog", "BacklogState", "PartitionQueue", "Partitions"]

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bridge.produce.accumulator import Slot
    from bridge.produce.batch import Batch


class BacklogState(Enum):
    """What becomes of new batches of a partition that has something in the spool.

    | from | to | when |
    |---|---|---|
    | no backlog | SPOOLS | Kafka has acknowledged nothing for ``spool.after``; the spool held something at the start |
    | SPOOLS | DRAINS | the last row is under way; or Kafka takes batches, and the disk takes longer for them |
    | DRAINS | SPOOLS | Kafka took nothing it could for ``spool.after``; or memory waits longer than a write takes |
    | DRAINS | no backlog | the last row is in Kafka, and nothing is being written |

    A disk that is slow for the time of one outage would otherwise never be left: while it takes one batch, the next
    ones come, and reading back waits behind each write. Where a lot is in the spool, the last but one line makes both
    take turns, so that no message waits much longer than two writes take. After a write of a slow disk, partitions that
    drain have it alone for as long as the write took. Those that Kafka does not take would keep it busy otherwise."""

    SPOOLS = "new batches go to the disk"
    DRAINS = "new batches wait in memory behind what the disk has"


class Backlog:
    """What of a partition is in the spool, or on its way there or back. All of it is older than what waits in memory
    alone, and goes before it."""

    __slots__ = (
        "behind",
        "behind_messages",
        "loaded",
        "loading",
        "read_id",
        "read_ns",
        "since_ns",
        "state",
        "turn",
        "writing",
    )

    def __init__(self) -> None:
        self.state = BacklogState.DRAINS
        self.since_ns = 0  # of the state
        self.writing: list[Batch] = []  # being written; the first may be under way to Kafka at the same time
        self.behind = 0  # batches on disk that have not been read back
        self.behind_messages = 0
        self.read_id = 0  # the last one read back, or known from before it was written
        self.read_ns = 0  # the last read that Kafka had to wait for
        self.loaded: deque[Batch] = deque()  # read back
        self.loading = False
        self.turn = False  # what memory alone has, and the disk is not to have, goes next

    @property
    def spooling(self) -> bool:
        """Whether new batches go to the disk."""
        return self.state is BacklogState.SPOOLS

    @property
    def holds(self) -> bool:
        """Whether there is anything: it may be a place that is kept for what comes."""
        return bool(self.behind or self.loaded or self.writing)


class PartitionQueue:
    """What waits for one Kafka partition. ``in_flight`` is written by the sender alone."""

    __slots__ = (
        "answered_in_ns",
        "backlog",
        "clock_refused",
        "dead_letters_refused",
        "in_flight",
        "last_acknowledged_ns",
        "not_before_ns",
        "open",
        "partition",
        "sealed",
        "topic",
        "waiting_since_ns",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.sealed: deque[Batch] = deque()
        self.open: list[Slot] = []  # slots with an open batch, oldest first
        self.in_flight: Batch | None = None
        self.not_before_ns = 0  # the sender leaves the partition alone until then
        self.last_acknowledged_ns = 0
        self.dead_letters_refused = ""  # why Kafka does not take one; written by the sender
        self.answered_in_ns = 0  # how long Kafka took for the last batch
        self.clock_refused = False  # Kafka refuses even the present, as our clock has it; written by the sender
        self.waiting_since_ns = 0  # something has waited at every look since; written by ``Partitions.look``
        self.backlog: Backlog | None = None  # what of it is in the spool; written by the spooler alone

    @property
    def waiting(self) -> bool:
        """Whether there is something to send, behind what is under way."""
        return bool(self.sealed or self.open or self.backlog is not None)

    @property
    def holds(self) -> bool:
        """Whether records wait for Kafka here: in memory, under way, or in the spool."""
        backlog = self.backlog
        return bool(self.in_flight or self.sealed or self.open or (backlog is not None and backlog.holds))

    @property
    def waits(self) -> bool:
        """Whether it is Kafka that records wait for: not their turn to be read from the disk, which may be slow."""
        backlog = self.backlog
        reading = backlog is not None and backlog.loading and not backlog.loaded and self.in_flight is None
        return self.holds and not reading

    def unanswered_since_ns(self) -> int:
        """Since when records wait and Kafka has acknowledged none; 0 while none wait. As of the last look."""
        since_ns = self.waiting_since_ns
        return max(since_ns, self.last_acknowledged_ns) if since_ns and self.waits else 0

    def bytes(self) -> int:
        """Bytes of the records that are held in memory."""
        size = sum(batch.size for batch in self.batches())
        return size + sum(slot.batch.builder.size() for slot in self.open if slot.batch is not None)

    def spooled(self) -> int:
        """How many messages the spool has for this partition, those among them that are on their way back."""
        if self.backlog is None:
            return 0
        return self.backlog.behind_messages + sum(batch.messages_from_spool() for batch in self.batches())

    def in_front(self, batch: Batch) -> deque[Batch]:
        """Where a batch belongs that has to be sent again."""
        if batch.on_disk:
            assert self.backlog is not None
            return self.backlog.loaded
        return self.sealed

    def next_batch(self) -> Batch | None:
        """Take the batch to send next, or None. An open batch is taken once a flush has passed over it."""
        if self.sealed:
            return self.sealed.popleft()
        for slot in list(self.open):
            batch = slot.batch
            if batch is not None and batch.parts[0][0].sealed:
                slot.seal()
        return self.sealed.popleft() if self.sealed else None

    def messages(self) -> int:
        """How many messages wait here or are under way, counted from the batches themselves; without those that the
        spool has."""
        count = 0
        for batch in self.batches():
            count += batch.messages - batch.messages_from_spool()
        for slot in self.open:
            if slot.batch is not None:
                count += slot.count - len(slot.batch.unfinished) - slot.batch.messages_from_spool()
        return count

    def batches(self) -> Iterator[Batch]:
        """Every closed batch that is held in memory."""
        if self.in_flight is not None:
            yield self.in_flight
        if self.backlog is not None:
            yield from (batch for batch in self.backlog.writing if batch is not self.in_flight and not batch.stored)
            yield from self.backlog.loaded
        yield from self.sealed

    def oldest_ns(self) -> int:
        """When the first record was received that only memory has, or 0."""
        if self.in_flight is not None and not self.in_flight.on_disk:
            return self.in_flight.opened_ns
        if self.sealed:
            return self.sealed[0].opened_ns
        return min((slot.batch.opened_ns for slot in self.open if slot.batch is not None), default=0)

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.topic}/{self.partition} {self.messages()} messages>"


class Partitions:
    """All partition queues of a worker. ``due`` lists those with something to send since the sender looked last;
    ``made`` is told of each queue when it is made."""

    __slots__ = ("due", "made", "queues")

    def __init__(self) -> None:
        self.made: Callable[[PartitionQueue], None] | None = None
        self.due: list[PartitionQueue] = []
        self.queues: dict[tuple[str, int], PartitionQueue] = {}

    def queue(self, topic: str, partition: int) -> PartitionQueue:
        """The queue of a partition; made at first use."""
        queue = self.queues.get((topic, partition))
        if queue is None:
            queue = self.queues[topic, partition] = PartitionQueue(topic, partition)
            if self.made is not None:
                self.made(queue)
        return queue

    def seal_open(self) -> None:
        """Close every open batch, the oldest first. To be called when routes change: records of one device that enter
        a partition under another route's name must not join a batch that was opened before the last of them."""
        for queue in self.queues.values():
            if queue.open:
                for slot in tuple(queue.open):
                    slot.seal()
                self.due.append(queue)

    def look(self, now_ns: int) -> None:
        """Note which partitions have something waiting. Called once a second or so: that is how exact silence is,
        and no message pays for it."""
        for queue in self.queues.values():
            if not queue.waits:
                queue.waiting_since_ns = 0
            elif not queue.waiting_since_ns:
                queue.waiting_since_ns = now_ns

    def messages(self) -> int:
        """Messages in batches, waiting or under way."""
        return sum(queue.messages() for queue in self.queues.values())
