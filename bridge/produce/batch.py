"""What travels: batches of records on their way to one Kafka partition, and the spans that say when their messages may
be acknowledged."""

from __future__ import annotations

__all__ = ["Batch", "Owner", "Span"]

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.ports import BatchBuilder
    from bridge.produce.accumulator import Slot


class Owner(Protocol):
    """Who is owed acknowledgements: an MQTT connection."""

    def release(self, ids: list[bytes], ids2: list[bytes]) -> None:
        """Acknowledge packet ids of QoS 1 and QoS 2, if the connection still stands. May not raise."""


class Span:
    """What was received between two flushes, and what is owed for it; or what was read from the spool at once, which
    is owed nothing.

    ``settled`` is None for the former, which complete in order. For the latter it is called with the span as soon as
    nothing is pending: what the spool holds has been acknowledged already, so no order is to be kept."""

    __slots__ = (
        "copies",
        "dead",
        "filtered",
        "opened_ns",
        "owed",
        "pending",
        "returned",
        "sealed",
        "settled",
        "spooled",
        "stored",
    )

    def __init__(self, settled: Callable[[Any], None] | None = None) -> None:
        self.settled = settled
        self.pending = 0  # batches with records of ours that are not durable yet
        self.sealed = False
        self.stored = 0  # messages Kafka has acknowledged in their own topic
        self.dead = 0  # messages Kafka has acknowledged in the dead-letter topic
        self.filtered = 0  # messages dropped on purpose
        self.copies = 0  # copies of QoS 2 messages taken before, which go nowhere
        self.spooled = 0  # messages that the spool has, and goes on with
        self.returned = 0  # messages whose connection ended first: the broker will send them again
        self.opened_ns = 0  # receive time of the first message; 0 while empty
        self.owed: list[tuple[Owner, list[bytes], list[bytes]]] = []

    @property
    def placed(self) -> int:
        """Messages in no batch any more, and not in the spool: they wait for their acknowledgement alone."""
        return self.stored + self.dead + self.filtered + self.copies


class Batch:
    """Records of one slot on their way.

    ``parts`` says how many messages of which span are inside, in the order of the records: a batch can be split, and
    each half knows its own. Every part counts once in its span's ``pending``."""

    __slots__ = (
        "attempts",
        "builder",
        "count",
        "counted",
        "first_failed_ns",
        "on_disk",
        "opened_ns",
        "parts",
        "restamped",
        "sent_ns",
        "size",
        "slot",
        "stored",
        "unfinished",
        "writing",
    )

    def __init__(self, slot: Slot, builder: BatchBuilder, opened_ns: int) -> None:
        self.slot = slot
        self.builder = builder
        self.opened_ns = opened_ns
        self.parts: list[tuple[Span, int]] = []
        self.count = 0  # records; while the batch is open its slot counts them
        self.counted = 0  # messages already attributed to a span in parts
        self.unfinished: list[int] = []  # numbers of records that are not the last of their message
        self.size = 0  # bytes the accumulator has counted for it
        self.sent_ns = 0
        self.attempts = 0
        self.first_failed_ns = 0
        self.restamped = False  # Kafka has refused timestamps of it, which are those of a later moment now
        self.stored = False  # Kafka has it
        self.writing = False  # the spool is writing it: whatever fails meanwhile, its place is there
        self.on_disk = False  # the spool has it too, and keeps it until Kafka has it

    @property
    def messages(self) -> int:
        return self.count - len(self.unfinished)

    def messages_from_spool(self) -> int:
        """How many of its messages the spool still has."""
        return sum(count for span, count in self.parts if span.settled is not None)

    def __repr__(self) -> str:
        queue = self.slot.queue
        return f"<Batch {queue.topic}/{queue.partition} {self.count} records, {self.size} bytes>"
