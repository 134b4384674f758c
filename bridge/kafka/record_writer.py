"""Record batches of format v2 (KIP-98), byte for byte as aiokafka's builder writes them, except for zstd's level.

The compiled wheel writes its batches with this; as Python it would take more than twice the CPU of aiokafka's builder,
which is C. Types are checked by the compiler: what is no int and no bytes raises TypeError."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from aiokafka.record.util import calc_crc32c

if TYPE_CHECKING:
    from bridge.ports import Headers

# Offset, length after this field, leader's epoch, magic, checksum; then what the checksum covers: attributes, last
# offset, first and highest timestamp, producer's id, epoch and sequence, number of records.
_HEADER: Final = Struct(">qiibIhiqqqhii")
_CRC: Final = Struct(">I")
_CRC_AT: Final = 17
_CHECKED_FROM: Final = 21
_LENGTH_FROM: Final = 12
_NULL: Final = b"\x01"  # the length -1
_SMALL: Final = 4096
_NAMES_KEPT: Final = 1024  # names of headers may come from devices (user properties) and have up to 64 KiB
_NAME_KEPT: Final = 128  # bytes
_COPIED: Final = 512
_CHUNK: Final = 32
_BYTES: Final[list[bytes]] = [bytes((number,)) for number in range(256)]


def varint(number: int) -> bytes:
    """A signed number as Kafka's varint: zigzag, seven bits a byte, the lowest first."""
    rest = number << 1 if number >= 0 else -number * 2 - 1
    if rest < 128:
        return _BYTES[rest]
    found = bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    found.append(rest)
    return bytes(found)


_VARINTS: Final[list[bytes]] = [varint(number) for number in range(_SMALL)]  # of lengths and of places in a batch
_names: Final[dict[str, bytes]] = {}  # encoded


class RecordWriter:
    """Collects the records of one batch. The interface is that of aiokafka's builder."""

    __slots__ = (
        "_chunks",
        "_codec",
        "_count",
        "_first",
        "_last",
        "_limit",
        "_max",
        "_producer",
        "_records",
        "_size",
        "_stamp",
    )

    def __init__(self, limit: int, codec: int) -> None:
        self._limit = limit  # bytes of a batch, before compression
        self._codec = codec  # Kafka's number; 0: none
        self._count = 0
        self._chunks: list[bytes] = []  # of _CHUNK records each: one object for each record would double small ones
        self._records: list[bytes] = []  # later ones
        self._size = _HEADER.size
        self._stamp = b"\0\0"  # attributes and timestamp of the last record
        self._first = self._max = self._last = -1 << 63  # timestamps: the first, the largest, the last
        self._producer = (-1, -1, -1)  # id, epoch, sequence

    def append(
        self, number: int, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> bool | None:
        """``bridge.ports.Append``. Whatever it raises, nothing was appended."""
        stamp = self._stamp if timestamp == self._last else self._stamp_of(number, timestamp)
        if not isinstance(headers, list):
            raise TypeError(f"headers are {type(headers).__name__}: a list is wanted")
        tail = _encode(headers) if headers else b"\0"
        try:
            if key is None or value is None:
                raise IndexError  # noqa: TRY301 - not in the table either
            place, key_size, value_size = _VARINTS[number], _VARINTS[len(key)], _VARINTS[len(value)]
            size = len(stamp) + len(place) + len(key_size) + len(key) + len(value_size) + len(value) + len(tail)
            # mypyc makes one copy of such a format, half of what a join takes.
            record = b"%b%b%b%b%b%b%b%b" % (_VARINTS[size], stamp, place, key_size, key, value_size, value, tail)
        except IndexError:
            record = _rare(stamp, number, key, value, tail)
        size = self._size + len(record)
        if size >= self._limit and number:
            return None
        self._size = size
        self._count += 1
        self._records.append(record)
        if len(self._records) == _CHUNK:
            self._chunks.append(b"".join(self._records))
            self._records.clear()
        if timestamp != self._last:
            self._last, self._stamp = timestamp, stamp
            if not number:
                self._first = self._max = timestamp
            elif timestamp > self._max:
                self._max = timestamp
        return True

    def _stamp_of(self, number: int, timestamp: int) -> bytes:
        """A record's attributes, of which there are none, and its timestamp, counted from the first record's."""
        if not -1 << 63 <= timestamp < 1 << 63:
            raise OverflowError(f"the timestamp {timestamp} has more than 64 bits")
        delta = timestamp - self._first if number else 0
        # 64 bits, as readers add them up: a timestamp at one end may follow one at the other.
        return b"\0" + varint((delta + (1 << 63)) % (1 << 64) - (1 << 63))

    def size(self) -> int:
        """Bytes of the batch so far, uncompressed, its header included."""
        return self._size

    def set_producer_state(self, producer_id: int, epoch: int, sequence: int) -> None:
        self._producer = (producer_id, epoch, sequence)

    def build(self) -> bytearray:
        """The batch as Kafka gets it, compressed and with its checksum."""
        codec, size, count = self._codec, self._size, self._count
        records = [*self._chunks, *self._records]
        if codec:
            packed = _compress(codec, b"".join(records))
            records, size = [packed], _HEADER.size + len(packed)
        producer_id, epoch, sequence = self._producer
        header = _HEADER.pack(
            0, size - _LENGTH_FROM, -1, 2, 0,
            codec, count - 1, self._first, self._max, producer_id, epoch, sequence, count,
        )  # fmt: skip
        data = bytearray().join([header, *records])
        assert len(data) == size
        _CRC.pack_into(data, _CRC_AT, calc_crc32c(memoryview(data)[_CHECKED_FROM:]))
        return data


def _compress(codec: int, records: bytes) -> bytes:
    """Records compressed by a codec, Kafka's number (1 to 4)."""
    if codec == 1:
        return bytes(gzip_encode(records))
    if codec == 2:
        return bytes(snappy_encode(records))
    if codec == 3:
        return bytes(lz4_encode(records))
    # Of telemetry, level 3 makes no fewer bytes and takes 1.4 times the CPU.
    return bytes(zstd_encode(records, level=1))


def _encode(headers: list[tuple[str, bytes | None]]) -> bytes:
    """The headers of a record, with their number in front."""
    if len(headers) == 1:  # by default the topic is the only one
        name, value = headers[0]
        encoded = _names.get(name)
        if encoded is not None and value is not None and len(value) < _SMALL:
            return b"\x02%b%b%b" % (encoded, _VARINTS[len(value)], value)
    done: list[bytes] = []  # a device may send thousands: what was copied often enough goes here
    found = varint(len(headers))
    for name, value in headers:
        encoded = _names.get(name)
        if encoded is None:
            encoded = _encode_name(name)
        if value is None:
            found = b"%b%b%b" % (found, encoded, _NULL)
        else:
            size = len(value)
            found = b"%b%b%b%b" % (found, encoded, _VARINTS[size] if size < _SMALL else varint(size), value)
        if len(found) > _COPIED:
            done.append(found)
            found = b""
    return b"".join([*done, found]) if done else found


def _encode_name(name: str) -> bytes:
    """A header's name with its length in front. Short ones are remembered."""
    encoded = name.encode()
    found = varint(len(encoded)) + encoded
    if len(found) <= _NAME_KEPT:
        if len(_names) >= _NAMES_KEPT:
            _names.clear()
        _names[name] = found
    return found


def _rare(stamp: bytes, number: int, key: bytes | None, value: bytes | None, tail: bytes) -> bytes:
    """A record without key or value, or with a length or a number that is not in the table."""
    parts = [stamp, varint(number)]
    for part in (key, value):
        if part is None:
            parts.append(_NULL)
        else:
            parts.append(varint(len(part)))
            parts.append(part)
    parts.append(tail)
    body = b"".join(parts)
    return varint(len(body)) + body
