"""The records of the spool's log. Each describes its batch, so it can be read whatever else is damaged.

A record is a header of fixed size, the names, and the Kafka batch as it will be sent; all integers little-endian:

    4s  magic "MKGB"             I  CRC-32 of the header from byte 8 on, and of the names
    I   CRC-32 of the batch      I  bytes of header and names        I  bytes of the batch
    I   records of the same append that follow       Q  id           q  received, ms since 1970
    I   MQTT messages            i  partition        H  bytes of the topic's name    H  bytes of the route's name
    B   QoS                      B  1 for dead letters               2x unused, 0
    then topic, route (UTF-8), and a 32-bit number for each record that is not the last of its message.

An append writes all its records at once. After a crash ``following`` tells whether the last append is complete.
"""

import struct
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

MAGIC: Final = b"MKGB"
ID_BITS: Final = 40  # of a batch's number within its partition; the partition's own number stands above them
LARGEST_HEAD: Final = 64 << 20  # a longer head is damage: the records of a batch of 100 MiB need less
_FIXED: Final = struct.Struct("<4sIIIIIQqIiHHBB2x")
_CHECKED_FROM: Final = 8
FIXED_BYTES: Final = _FIXED.size


@dataclass(frozen=True, slots=True)
class SpoolBatch:
    """A Kafka record batch (format v2, its own CRC inside) that waits for one partition."""

    topic: str
    partition: int
    route: str
    qos: int
    dead_letter: bool
    messages: int  # MQTT messages whose last record is inside
    unfinished: tuple[int, ...]  # numbers of records that are not the last of their message
    opened_ms: int  # wall clock when its first record was received
    data: bytes

    @property
    def stored_bytes(self) -> int:
        names = len(self.topic.encode()) + len(self.route.encode())
        return FIXED_BYTES + names + 4 * len(self.unfinished) + len(self.data)

    def __repr__(self) -> str:
        return f"<SpoolBatch {self.topic}/{self.partition} {self.messages} messages, {len(self.data)} bytes>"


@dataclass(frozen=True, slots=True)
class Head:
    """A record without the data of its batch."""

    id: int
    batch: SpoolBatch  # its ``data`` are empty
    following: int
    head_bytes: int
    data_bytes: int
    data_crc: int

    @property
    def size(self) -> int:
        return self.head_bytes + self.data_bytes

    def with_data(self, data: bytes) -> SpoolBatch | None:
        """The batch as it was stored; None if the data have not their checksum."""
        return replace(self.batch, data=data) if self.is_of(data) else None

    def is_of(self, data: bytes) -> bool:
        """Whether the data have their checksum."""
        return len(data) == self.data_bytes and crc32(data) == self.data_crc


def encode(batch: SpoolBatch, id_: int, following: int) -> bytes:
    """Header and names of a batch, which its data follow. ``following``: how many later records its append has."""
    topic, route = batch.topic.encode(), batch.route.encode()
    names = topic + route + struct.pack(f"<{len(batch.unfinished)}I", *batch.unfinished)
    header = _FIXED.pack(
        MAGIC,
        0,
        crc32(batch.data),
        FIXED_BYTES + len(names),
        len(batch.data),
        following,
        id_,
        batch.opened_ms,
        batch.messages,
        batch.partition,
        len(topic),
        len(route),
        batch.qos,
        batch.dead_letter,
    )
    checked = header[_CHECKED_FROM:] + names
    return MAGIC + crc32(checked).to_bytes(4, "little") + checked


def head_bytes(start: bytes) -> int:
    """Length of header and names by the first bytes of a record; 0 when these are no record."""
    if len(start) < FIXED_BYTES or not start.startswith(MAGIC):
        return 0
    size = int.from_bytes(start[12:16], "little")
    return size if FIXED_BYTES <= size <= LARGEST_HEAD else 0


def decode(head: bytes) -> Head | None:
    """Parse header and names; None when their checksum is wrong."""
    if crc32(head[_CHECKED_FROM:]) != int.from_bytes(head[4:8], "little"):
        return None
    fields = _FIXED.unpack_from(head)
    (_, _, data_crc, size, data_bytes, following, id_, opened_ms, messages, partition, topics, routes, qos, dead) = (
        fields
    )
    at = FIXED_BYTES + topics
    numbers = size - at - routes
    if size != len(head) or numbers < 0 or numbers % 4:
        return None
    try:
        topic, route = head[FIXED_BYTES:at].decode(), head[at : at + routes].decode()
    except UnicodeDecodeError:
        return None
    unfinished = struct.unpack_from(f"<{numbers // 4}I", head, at + routes)
    batch = SpoolBatch(topic, partition, route, qos, bool(dead), messages, unfinished, opened_ms, b"")
    return Head(id_, batch, following, size, data_bytes, data_crc)
