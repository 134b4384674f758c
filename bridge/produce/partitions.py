"""The queues of a worker: one for each Kafka partition, shared by all session groups."""

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, Protocol

from bridge.produce.batch import Batch, BatchSlot


class OpenSlot(BatchSlot, Protocol):
    """A slot with an open batch, as the queue of its partition sees it."""

    batch: Batch | None
    count: int

    def seal(self) -> None:
        """Close the open batch and queue it behind the partition's others."""


class BacklogState(Enum):
    """Where new batches go of a partition with batches in the spool: to disk (SPOOLS), or into memory (DRAINS).

        no backlog ──▶ SPOOLS ◀──▶ DRAINS ──▶ no backlog

    | from | to | when |
    |---|---|---|
    | no backlog | SPOOLS | Kafka has acknowledged nothing for ``spool.after``; the spool held something at the start |
    | no backlog | DRAINS | the spool held something at the start, and takes nothing new (``spool.enabled``) |
    | SPOOLS | DRAINS | the last row is under way; or Kafka takes batches, and the disk takes longer for them |
    | DRAINS | DRAINS | the last row is under way: new batches wait for it in memory, and their time starts again |
    | DRAINS | SPOOLS | Kafka did not take a batch within ``spool.after``; or memory waits longer than a write takes |
    | DRAINS | no backlog | the last row is in Kafka, and nothing is being written |

    Without the change from SPOOLS to DRAINS, a partition on a slow disk would spool for ever: new batches come while it
    writes, and reading waits behind each write. With many batches in the spool, the change from DRAINS to SPOOLS makes
    writes and reads alternate. No message then waits much longer than two writes. After a write of a slow disk, only
    draining partitions use it, for as long as the write took. Otherwise other partitions' writes would keep it busy."""

    SPOOLS = "new batches go to the disk"
    DRAINS = "new batches wait in memory behind what the disk has"


BACKLOG_NEXT: Final = {
    BacklogState.SPOOLS: {BacklogState.DRAINS},
    BacklogState.DRAINS: {BacklogState.DRAINS, BacklogState.SPOOLS},
}


class Backlog:
    """The batches of a partition that are in the spool, being written or read back.

    They are older than batches that are only in memory, and are sent before them."""

    __slots__ = (
        "behind",
        "behind_messages",
        "from_earlier_run",
        "is_loading",
        "loaded",
        "memory_first",
        "read_id",
        "since_ns",
        "state",
        "waited_read_ns",
        "writing",
    )

    def __init__(self, state: BacklogState, now_ns: int) -> None:
        self.state = state
        self.since_ns = now_ns  # start of the state
        self.writing: list[Batch] = []  # being written; the first may be in flight too
        self.behind = 0  # batches on disk that have not been read back
        self.behind_messages = 0
        self.from_earlier_run = 0  # the most of ``behind`` that an earlier run wrote: their QoS is unknown
        self.read_id = 0  # the newest row in memory; reads go on behind it
        self.waited_read_ns = 0  # end of the last read that sending had to wait for
        self.loaded: deque[Batch] = deque()  # read back, not sent yet
        self.is_loading = False  # a read is under way or requested
        self.memory_first = False  # the next batch comes from memory, if that one must not be spooled

    def enter(self, state: BacklogState, now_ns: int) -> None:
        assert state in BACKLOG_NEXT[self.state], f"{self.state} to {state}"
        self.state, self.since_ns = state, now_ns

    @property
    def is_spooling(self) -> bool:
        """Whether new batches go to the disk."""
        return self.state is BacklogState.SPOOLS

    @property
    def has_ordered(self) -> bool:
        """Whether a batch on disk may have records of QoS 1 or 2, which a newer one must not overtake."""
        return self.from_earlier_run > 0 or any(batch.slot.qos for batch in self.loaded)

    @property
    def has_batches(self) -> bool:
        """Whether batches are on disk, being written or read back. An empty backlog reserves the order for later
        ones."""
        return bool(self.behind or self.loaded or self.writing)


class PartitionQueue:
    """The queue of one Kafka partition. The sender alone writes ``in_flight``."""

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
        self.sealed: deque[Batch] = deque()  # closed, not sent, oldest first
        self.open: list[OpenSlot] = []  # slots with an open batch, oldest first
        self.in_flight: Batch | None = None  # given to the producer, not answered
        self.not_before_ns = 0  # nothing is sent before
        self.last_acknowledged_ns = 0
        self.dead_letters_refused = ""  # Kafka's reason, empty without one; the sender writes it
        self.answered_in_ns = 0  # Kafka's time for the last batch
        self.clock_refused = False  # Kafka refuses the present time of this machine; the sender writes it
        self.waiting_since_ns = 0  # every look since then found records that wait; ``Partitions.look`` writes it
        self.backlog: Backlog | None = None  # the spooler alone writes it

    @property
    def has_unsent(self) -> bool:
        """Whether batches wait behind the one in flight."""
        return bool(self.sealed or self.open or self.backlog is not None)

    @property
    def has_records(self) -> bool:
        """Whether there are records: in memory, in flight or in the spool."""
        backlog = self.backlog
        return bool(self.in_flight or self.sealed or self.open or (backlog is not None and backlog.has_batches))

    @property
    def waits_for_kafka(self) -> bool:
        """Whether records wait for Kafka. Records that still have to be read from the disk do not count."""
        backlog = self.backlog
        reading = backlog is not None and backlog.is_loading and not backlog.loaded and self.in_flight is None
        return self.has_records and not reading

    def unanswered_since_ns(self) -> int:
        """Since when records have waited without an acknowledgement, as of the last look; 0 while none wait."""
        since_ns = self.waiting_since_ns
        return max(since_ns, self.last_acknowledged_ns) if since_ns and self.waits_for_kafka else 0

    def bytes(self) -> int:
        """Bytes of the records in memory."""
        size = sum(batch.size for batch in self.batches())
        return size + sum(slot.batch.builder.size() for slot in self.open if slot.batch is not None)

    def spooled(self) -> int:
        """Messages of this partition in the spool, including those that were read back."""
        if self.backlog is None:
            return 0
        return self.backlog.behind_messages + sum(batch.messages_from_spool() for batch in self.batches())

    def in_front(self, batch: Batch) -> deque[Batch]:
        """The queue to whose front a failed batch returns."""
        if batch.is_on_disk:
            assert self.backlog is not None
            return self.backlog.loaded
        return self.sealed

    def next_batch(self) -> Batch | None:
        """Take the batch to send next, or None. An open batch may be taken after a flush."""
        if self.sealed:
            return self.sealed.popleft()
        for slot in list(self.open):
            batch = slot.batch
            if batch is not None and batch.parts[0][0].is_sealed:
                slot.seal()
        return self.sealed.popleft() if self.sealed else None

    def messages(self) -> int:
        """Messages that wait or are in flight, counted from the batches, without those in the spool."""
        count = 0
        for batch in self.batches():
            count += batch.messages - batch.messages_from_spool()
        for slot in self.open:
            if slot.batch is not None:
                count += slot.count - len(slot.batch.unfinished) - slot.batch.messages_from_spool()
        return count

    def batches(self) -> Iterator[Batch]:
        """Every closed batch in memory."""
        if self.in_flight is not None:
            yield self.in_flight
        if self.backlog is not None:
            yield from (batch for batch in self.backlog.writing if batch is not self.in_flight and not batch.is_stored)
            yield from self.backlog.loaded
        yield from self.sealed

    def oldest_ns(self) -> int:
        """Receive time of the oldest record that is only in memory, or 0."""
        if self.in_flight is not None and not self.in_flight.is_on_disk:
            return self.in_flight.opened_ns
        if self.sealed:
            return self.sealed[0].opened_ns
        return min((slot.batch.opened_ns for slot in self.open if slot.batch is not None), default=0)

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.topic}/{self.partition} {self.messages()} messages>"


class Partitions:
    """All partition queues of a worker. ``due`` lists queues with new batches to send since the last pump. ``made`` is
    called with each new queue. ``pump`` sends the batches of due queues; the sender sets it."""

    __slots__ = ("due", "made", "pump", "queues")

    def __init__(self) -> None:
        self.made: Callable[[PartitionQueue], None] | None = None
        self.pump: Callable[[], None] = _send_nothing
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
        """Close every open batch, the oldest first, before routes change.

        A device's records may change to another route, which may have an older open batch. Unsealed, that batch could
        be sent before the device's last record of the old route."""
        for queue in self.queues.values():
            if queue.open:
                for slot in tuple(queue.open):
                    slot.seal()
                self.due.append(queue)

    def look(self, now_ns: int) -> None:
        """Note which partitions wait for Kafka. Called about once a second, so silence is measured to a second and
        costs nothing per message."""
        for queue in self.queues.values():
            if not queue.waits_for_kafka:
                queue.waiting_since_ns = 0
            elif not queue.waiting_since_ns:
                queue.waiting_since_ns = now_ns

    def messages(self) -> int:
        """Messages in batches that wait or are in flight."""
        return sum(queue.messages() for queue in self.queues.values())


def _send_nothing() -> None:
    """Does nothing: there is no sender yet."""
