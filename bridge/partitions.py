"""What waits for each Kafka partition: shared by everything in a worker that writes to Kafka."""

from __future__ import annotations

__all__ = ["PartitionQueue", "Partitions"]

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridge.accumulator import Slot
    from bridge.batch import Batch


class PartitionQueue:
    """What waits for one Kafka partition. ``in_flight`` is written by the sender alone."""

    __slots__ = ("in_flight", "last_acknowledged_ns", "not_before_ns", "open", "partition", "sealed", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.sealed: deque[Batch] = deque()
        self.open: list[Slot] = []  # slots with an open batch, oldest first
        self.in_flight: Batch | None = None
        self.not_before_ns = 0  # the sender leaves the partition alone until then
        self.last_acknowledged_ns = 0

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
        """How many messages wait here or are under way, counted from the batches themselves."""
        count = self.in_flight.messages if self.in_flight is not None else 0
        for batch in self.sealed:
            count += batch.messages
        for slot in self.open:
            if slot.batch is not None:
                count += slot.count - len(slot.batch.unfinished)
        return count

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.topic}/{self.partition} {self.messages()} messages>"


class Partitions:
    """All partition queues of a worker. ``due`` lists those with something to send since the sender looked last."""

    __slots__ = ("due", "queues")

    def __init__(self) -> None:
        self.due: list[PartitionQueue] = []
        self.queues: dict[tuple[str, int], PartitionQueue] = {}

    def queue(self, topic: str, partition: int) -> PartitionQueue:
        """The queue of a partition; made at first use."""
        queue = self.queues.get((topic, partition))
        if queue is None:
            queue = self.queues[topic, partition] = PartitionQueue(topic, partition)
        return queue

    def messages(self) -> int:
        """Messages in batches, waiting or under way."""
        return sum(queue.messages() for queue in self.queues.values())
