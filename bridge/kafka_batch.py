"""Batches as Kafka's bytes, and on their way: what one partition's batch is, and which travel in one request."""

from __future__ import annotations

__all__ = ["Handover", "KafkaBatch", "Request", "requests"]

from typing import TYPE_CHECKING

from aiokafka.record.default_records import DefaultRecordBatchBuilder

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Iterator

    from bridge.ports import Append, Headers

REQUEST_BYTES = 1 << 20  # encoding and writing a request holds some five copies of it


class KafkaBatch:
    """Records for one partition, in the compiled builder (``bridge.ports.BatchBuilder``).

    ``append`` is that builder's own: 0.21 µs a record, where aiokafka's Python wrapper takes 0.46, a fifth of what a
    message costs here in all.
    """

    __slots__ = ("_builder", "_count", "_data", "append", "size")

    def __init__(self, batch_bytes: int, codec: int) -> None:
        builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, batch_bytes)
        self._builder: DefaultRecordBatchBuilder | None = builder
        self._data: bytearray | None = None
        self._count = 0
        self.append: Append = builder.append
        self.size: Callable[[], int] = builder.size

    def close(self, count: int) -> None:
        self._count = count

    @property
    def built(self) -> bool:
        return self._data is not None

    def build(self, producer_id: int, epoch: int, sequence: int) -> bytearray:
        """The batch's bytes as this producer sends them. A batch is built once: its builder is of no use afterwards,
        and let go, for it holds the records uncompressed."""
        if self._data is None:
            builder, self._builder = self._builder, None
            assert builder is not None
            builder.set_producer_state(producer_id, epoch, sequence)
            self._data = builder.build()
            self.append, self.size = _full, self._data.__len__
        return self._data

    def record_count(self) -> int:
        # The batch's header counts its records (KIP-98: RecordCount, after 57 bytes); before that we know only ours.
        return self._count if self._data is None else int.from_bytes(self._data[57:61])


def _full(_number: int, _timestamp: int, _key: bytes | None, _value: bytes | None, _headers: Headers) -> None:
    """What a batch answers once it has been built."""


class Handover:
    """A built batch on its way: its sequence number stays the same however often it is sent."""

    __slots__ = ("attempts", "data", "future", "leader", "partition", "sequence", "topic", "waits")

    def __init__(
        self,
        topic: str,
        partition: int,
        data: bytearray,
        sequence: int,
        future: Future[int],
        leader: int | None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.data = data
        self.sequence = sequence
        self.future = future
        self.leader = leader  # at the moment; None: wait for one
        self.attempts = 0  # requests it was in
        self.waits = 0  # pauses it has had before another


def requests(handovers: list[Handover]) -> Iterator[list[Handover]]:
    """Batches for one broker, as many to a request as its size allows: one at least, and all of a quiet moment."""
    together: list[Handover] = []
    size = 0
    for handover in handovers:
        if together and size + len(handover.data) > REQUEST_BYTES:
            yield together
            together, size = [], 0
        together.append(handover)
        size += len(handover.data)
    yield together


class Request:
    """Batches on their way to one broker, in one request."""

    __slots__ = ("abandoned", "handovers", "leader", "sent_s")

    def __init__(self, leader: int, handovers: list[Handover], sent_s: float) -> None:
        self.leader = leader
        self.handovers = handovers
        self.sent_s = sent_s
        self.abandoned = False
