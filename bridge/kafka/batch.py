"""Batches as Kafka's bytes, and the requests that carry them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from bridge.kafka import record_writer
from bridge.kafka.record_writer import RecordWriter

if TYPE_CHECKING:
    from bridge.ports import Answered, Append, Headers, StoredRecord

# Record batch format v2: where the checksum stands, what it covers, where codec and the producer's fields are.
_CRC, _CRC_AT, _CHECKED_FROM = Struct(">I"), 17, 21
_PRODUCER, _PRODUCER_AT = Struct(">qhi"), 43
_CODEC_AT, _CODEC_BITS = 22, 7
COMPILED = not record_writer.__file__.endswith(".py")
_LARGEST = (1 << 31) - 1
REQUEST_BYTES = 1 << 20  # encoding and writing a request holds some five copies of it


class KafkaBatch:
    """Records for one partition, in a compiled builder (``bridge.ports.BatchBuilder``): aiokafka's, or ``ours``.

    ``append`` is the builder's own. With one header it takes 0.25 µs in aiokafka's and 0.19 in ours, where that is
    compiled; aiokafka's Python wrapper takes 0.46.
    """

    __slots__ = ("_builder", "_count", "_data", "append", "size")

    def __init__(self, batch_bytes: int, codec: int, *, ours: bool = COMPILED) -> None:
        """``ours``: built by ``RecordWriter``, otherwise by aiokafka. ``codec``: Kafka's number, 0 for none."""
        builder = (
            RecordWriter(batch_bytes, codec)
            if ours
            else DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, batch_bytes)
        )
        self._builder: RecordWriter | DefaultRecordBatchBuilder | None = builder
        self._data: bytearray | None = None  # the built batch
        self._count = 0  # records, from ``close`` on
        self.append: Append = builder.append
        self.size: Callable[[], int] = builder.size

    @classmethod
    def restored(cls, data: bytes) -> KafkaBatch:
        """A closed batch from the bytes that ``encode`` gave."""
        batch = cls.__new__(cls)
        batch._take(bytearray(data))
        batch._count = batch.record_count()
        return batch

    @classmethod
    def of(cls, records: Sequence[StoredRecord], codec: int) -> KafkaBatch:
        """A built batch of these records, whatever its size."""
        batch = cls(_LARGEST, codec)
        for number, record in enumerate(records):
            batch.append(number, record.timestamp_ms, record.key, record.value, record.headers)
        batch.close(len(records))
        batch.encode()
        return batch

    def _take(self, data: bytearray) -> None:
        """Keep only these bytes. The builder is released: it has the records uncompressed."""
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

    def codec(self) -> int:
        """Kafka's number of the codec of a built batch."""
        assert self._data is not None
        return self._data[_CODEC_AT] & _CODEC_BITS

    def record_count(self) -> int:
        # The header of a built batch counts its records (KIP-98: RecordCount, after 57 bytes).
        return self._count if self._data is None else int.from_bytes(self._data[57:61])


def _full(_number: int, _timestamp: int, _key: bytes | None, _value: bytes | None, _headers: Headers) -> None:
    """The append of a built batch: always full."""


class Handover:
    """A built batch that was handed over. Its sequence number stays at every attempt, except after ``renumber``."""

    __slots__ = ("answered", "attempts", "batch", "data", "leader", "partition", "pauses", "sequence", "topic")

    def __init__(
        self,
        topic: str,
        partition: int,
        batch: KafkaBatch,
        data: bytearray,
        sequence: int,
        answered: Answered,  # gets the offset, or the error
        leader: int | None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.batch = batch
        self.data = data
        self.sequence = sequence  # of its first record, in the partition
        self.answered = answered
        self.leader = leader  # at present; None: there is none
        self.attempts = 0  # requests it was in
        self.pauses = 0  # before it was sent again

    def renumber(self, producer_id: int, epoch: int) -> None:
        """Make it the first batch of an epoch. Kafka refuses its earlier attempts from then on."""
        self.data = self.batch.stamp(producer_id, epoch, 0)
        self.sequence = self.attempts = 0


def requests(handovers: list[Handover]) -> Iterator[list[Handover]]:
    """Split batches for one broker into requests of at most REQUEST_BYTES, or of one larger batch."""
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
    """One request to one broker, with its batches."""

    __slots__ = ("handovers", "leader", "sent_s")

    def __init__(self, leader: int, handovers: list[Handover], sent_s: float) -> None:
        self.leader = leader
        self.handovers = handovers
        self.sent_s = sent_s
