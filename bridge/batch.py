"""What travels: batches of records on their way to one Kafka partition, and the spans that say when their messages may
be acknowledged."""

from __future__ import annotations

__all__ = ["Batch", "Owner", "Span"]

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bridge.accumulator import Slot
    from bridge.ports import BatchBuilder


class Owner(Protocol):
    """Who is owed acknowledgements: an MQTT connection."""

    def release(self, ids: list[bytes], ids2: list[bytes]) -> None:
        """Acknowledge packet ids of QoS 1 and QoS 2, if the connection still stands. May not raise."""


class Span:
    """What was received between two flushes, and what is owed for it."""

    __slots__ = ("dead", "filtered", "opened_ns", "owed", "pending", "returned", "sealed", "stored")

    def __init__(self) -> None:
        self.pending = 0  # batches with records of ours that are not durable yet
        self.sealed = False
        self.stored = 0  # messages Kafka has acknowledged in their own topic
        self.dead = 0  # messages Kafka has acknowledged in the dead-letter topic
        self.filtered = 0  # messages dropped on purpose
        self.returned = 0  # messages whose connection ended first: the broker will send them again
        self.opened_ns = 0  # receive time of the first message; 0 while empty
        self.owed: list[tuple[Owner, list[bytes], list[bytes]]] = []


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
        "opened_ns",
        "parts",
        "sent_ns",
        "size",
        "slot",
        "unfinished",
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

    @property
    def messages(self) -> int:
        return self.count - len(self.unfinished)

    def __repr__(self) -> str:
        queue = self.slot.queue
        return f"<Batch {queue.topic}/{queue.partition} {self.count} records, {self.size} bytes>"
