"""Batches of records for one Kafka partition, and spans, which say when messages may be acknowledged.

A batch refers to its slot, and the slot to its accumulator. The Protocols here are their public face."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from bridge.errors import BridgeError
    from bridge.ports import BatchBuilder, StoredRecord
    from bridge.wire import DeadLetterReason


class Owner(Protocol):
    """An MQTT connection that waits to send acknowledgements."""

    def release(self, ids: list[bytes], ids2: list[bytes]) -> None:
        """Acknowledge packet ids of QoS 1 and QoS 2, if the connection still exists. Must not raise."""


class Span:
    """Messages received between two flushes, with their packet ids; or batches read from the spool at once.

    Spans of received messages complete in order, and their ``settled`` is None. A span of the spool has no packet ids:
    its messages were acknowledged when the disk had them. Its ``settled`` is called as soon as nothing is pending, in
    any order."""

    __slots__ = (
        "copies",
        "dead",
        "filtered",
        "is_sealed",
        "opened_ns",
        "owed",
        "pending",
        "returned",
        "settled",
        "spooled",
        "stored",
    )

    def __init__(self, settled: Callable[[Any], None] | None = None) -> None:
        self.settled = settled
        self.pending = 0  # batches with its records that are not durable yet
        self.is_sealed = False  # a flush ended it
        self.stored = 0  # messages Kafka has acknowledged in their own topic
        self.dead = 0  # messages Kafka has acknowledged in the dead-letter topic
        self.filtered = 0  # messages dropped on purpose
        self.copies = 0  # repeated deliveries of QoS 2 messages, which are dropped
        self.spooled = 0  # messages that the spool has taken over
        self.returned = 0  # messages of an ended connection: the broker delivers them again
        self.opened_ns = 0  # receive time of the first message; 0 while empty
        self.owed: list[tuple[Owner, list[bytes], list[bytes]]] = []  # connection, packet ids of QoS 1, of QoS 2

    @property
    def placed(self) -> int:
        """Messages that are durable or dropped, and only have to be acknowledged."""
        return self.stored + self.dead + self.filtered + self.copies


class BatchDeadLetters(Protocol):
    """Takes records that Kafka refuses (``bridge.produce.dead_letter``)."""

    def withholds(self, route: str, /) -> bool:
        """Whether a refused record of the route waits instead of becoming a dead letter."""

    def take(self, batch: Batch, record: StoredRecord, reason: DeadLetterReason, error: BridgeError) -> None:
        """Write a dead letter in place of the batch's only record."""


class BatchAccumulator(Protocol):
    """The accumulator of a batch, as the sender and the spooler see it."""

    buffered_bytes: int

    @property
    def dead_letters(self) -> BatchDeadLetters: ...

    def stored(self, batch: Batch) -> None:
        """Note that Kafka has the batch."""

    def spooled(self, batch: Batch, to: Span | None = None) -> None:
        """Note that the spool has the batch. With ``to`` it stays in memory and belongs to that span."""

    def discard(self, batch: Batch) -> None:
        """Note that the records of the batch were moved into other batches."""


class BatchSlot(Protocol):
    """The slot of a batch: what all its batches have in common."""

    @property
    def accumulator(self) -> BatchAccumulator: ...

    @property
    def route(self) -> str: ...

    @property
    def qos(self) -> int: ...

    @property
    def topic(self) -> str: ...

    @property
    def dead_letter(self) -> bool: ...


class OnDisk(Enum):
    """Whether the spool has a batch that is in memory.

        NO ──▶ WRITING ──▶ YES
        ▲         │
        └─────────┘

    | from | to | when |
    |---|---|---|
    | NO | WRITING | the spooler has taken the batch into a write |
    | WRITING | NO | the write failed, or Kafka stored the batch meanwhile and the row is removed |
    | WRITING | YES | the row is written |

    A batch that is read back begins with YES. A batch that is written and not under way to Kafka leaves memory."""

    NO = "only memory has it"
    WRITING = "the spool is writing it"
    YES = "the spool has it too, until Kafka has it"


ON_DISK_NEXT: Final = {
    OnDisk.NO: {OnDisk.WRITING},
    OnDisk.WRITING: {OnDisk.NO, OnDisk.YES},
    OnDisk.YES: set[OnDisk](),
}


class Batch:
    """Records of one slot on their way to Kafka.

    ``parts`` lists spans with their number of messages, in the order of the records. So a batch can be split, and each
    half has its own spans. Every part counts once in the ``pending`` of its span."""

    __slots__ = (
        "attempts",
        "builder",
        "count",
        "counted",
        "disk",
        "first_failed_ns",
        "is_restamped",
        "is_stored",
        "opened_ns",
        "parts",
        "sent_ns",
        "size",
        "slot",
        "unfinished",
    )

    def __init__(self, slot: BatchSlot, builder: BatchBuilder, opened_ns: int) -> None:
        self.slot = slot
        self.builder = builder
        self.opened_ns = opened_ns
        self.parts: list[tuple[Span, int]] = []  # each span with its number of messages
        self.count = 0  # records; the slot counts them while the batch is open
        self.counted = 0  # messages already attributed to a span in parts
        self.unfinished: list[int] = []  # numbers of records that are not the last of their message
        self.size = 0  # bytes the accumulator has counted for it
        self.sent_ns = 0  # last given to the producer; 0 before
        self.attempts = 0  # times given to the producer
        self.first_failed_ns = 0  # 0: never
        self.is_restamped = False  # Kafka refused timestamps of it, and they were replaced
        self.is_stored = False  # Kafka has it
        self.disk = OnDisk.NO

    def enter(self, disk: OnDisk) -> None:
        assert disk in ON_DISK_NEXT[self.disk], f"{self}: {self.disk} to {disk}"
        self.disk = disk

    @property
    def is_on_disk(self) -> bool:
        return self.disk is OnDisk.YES

    @property
    def is_being_written(self) -> bool:
        """Whether the spool is writing it. A failed batch then does not return to its queue."""
        return self.disk is OnDisk.WRITING

    @property
    def messages(self) -> int:
        return self.count - len(self.unfinished)

    def messages_from_spool(self) -> int:
        """Number of its messages that are also in the spool."""
        return sum(count for span, count in self.parts if span.settled is not None)

    def __repr__(self) -> str:
        return f"<Batch {self.slot.topic} {self.count} records, {self.size} bytes>"
