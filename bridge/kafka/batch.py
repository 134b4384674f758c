"""Batches as Kafka's bytes, and on their way: what one partition's batch is, and which travel in one request."""

from __future__ import annotations

__all__ = ["Handover", "KafkaBatch", "Request", "requests"]

from struct import Struct
from typing import TYPE_CHECKING

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Iterator

    from bridge.ports import Append, Headers

# Record batch format v2: where the checksum stands, what it covers, and where the producer's fields are.
_CRC, _CRC_AT, _CHECKED_FROM = Struct(">I"), 17, 21
_PRODUCER, _PRODUCER_AT = Struct(">qhi"), 43
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

    @classmethod
    def restored(cls, data: bytes) -> KafkaBatch:
        """A closed batch from the bytes that ``encode`` gave."""
        batch = cls.__new__(cls)
        batch._take(bytearray(data))
        batch._count = batch.record_count()
        return batch

    def _take(self, data: bytearray) -> None:
        """The batch is these bytes from now on. Its builder is of no use any more, and let go, for it holds the
        records uncompressed."""
        self._builder = None
        self._data = data
        self.append, self.size = _full, data.__len__

    def close(self, count: int) -> None:
        self._count = count

    def stamp(self, producer_id: int, epoch: int, sequence: int) -> bytearray:
        """The batch's bytes as this producer sends them."""
        if self._data is None:
            assert self._builder is not None
            self._builder.set_producer_state(producer_id, epoch, sequence)
            self._take(self._builder.build())
        else:
            # Built for another producer, or for the spool: the producer's fields are of fixed size (KIP-98), so they
            # are exchanged, in a copy, for the other producer may not have let go of its bytes yet.
            data = bytearray(self._data)
            _PRODUCER.pack_into(data, _PRODUCER_AT, producer_id, epoch, sequence)
            _CRC.pack_into(data, _CRC_AT, calc_crc32c(memoryview(data)[_CHECKED_FROM:]))
            self._take(data)
        assert self._data is not None
        return self._data

    def encode(self) -> bytes:
        return bytes(self.stamp(-1, -1, -1) if self._data is None else self._data)

    def record_count(self) -> int:
        # The batch's header counts its records (KIP-98: RecordCount, after 57 bytes); before that we know only ours.
        return self._count if self._data is None else int.from_bytes(self._data[57:61])


def _full(_number: int, _timestamp: int, _key: bytes | None, _value: bytes | None, _headers: Headers) -> None:
    """What a batch answers once it has been built."""


class Handover:
    """A built batch on its way: its sequence number stays the same however often it is sent, but for ``renumber``."""

    __slots__ = ("attempts", "batch", "data", "future", "leader", "partition", "sequence", "topic", "waits")

    def __init__(
        self,
        topic: str,
        partition: int,
        batch: KafkaBatch,
        data: bytearray,
        sequence: int,
        future: Future[int],
        leader: int | None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.batch = batch
        self.data = data
        self.sequence = sequence
        self.future = future
        self.leader = leader  # at the moment; None: wait for one
        self.attempts = 0  # requests it was in
        self.waits = 0  # pauses it has had before another

    def renumber(self, producer_id: int, epoch: int) -> None:
        """Make it the first batch of an epoch. Whatever was sent of it before counts for nothing any more."""
        self.data = self.batch.stamp(producer_id, epoch, 0)
        self.sequence = self.attempts = 0


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
