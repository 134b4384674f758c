"""MQTT packets as bytes, for tests: a second, plain implementation that shares nothing with the gateway's or paho's.

It builds what a broker sends (valid, and on request invalid) and takes apart what a client sends, MQTT 3.1.1 and 5.0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple


class Type(IntEnum):
    """The control packet types (MQTT 5.0 section 2.1.2)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class Packet(NamedTuple):
    """One whole packet: its first byte, taken apart, and what follows the remaining length."""

    type: Type
    flags: int
    body: bytes


def ids(answers: list[Packet], kind: Type = Type.PUBACK) -> list[int]:
    """The packet ids of the answers of a kind, in their order."""
    return [int.from_bytes(answer.body[:2]) for answer in answers if answer.type is kind]


def varint(number: int) -> bytes:
    """A variable byte integer (section 1.5.5)."""
    out = bytearray()
    while True:
        number, digit = divmod(number, 128)
        out.append(digit | (128 if number else 0))
        if not number:
            return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer at ``at`` and where it ends. Raises IndexError when the data end first."""
    value = 0
    for place in range(4):
        value |= (data[at] & 127) << (7 * place)
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise ValueError("a variable byte integer of more than four bytes")


def text(value: str | bytes) -> bytes:
    """A string or binary field: two bytes of length and the bytes."""
    data = value.encode() if isinstance(value, str) else value
    return len(data).to_bytes(2) + data


def packet(type_: int, flags: int, body: bytes) -> bytes:
    """A control packet with any type, flags and body."""
    return bytes((type_ << 4 | flags,)) + varint(len(body)) + body


def split(buffer: bytearray) -> list[Packet]:
    """Take the whole packets off the front of ``buffer``."""
    packets = []
    while len(buffer) >= 2:
        try:
            length, start = read_varint(bytes(buffer[:5]), 1)
        except IndexError:
            break
        if start + length > len(buffer):
            break
        packets.append(Packet(Type(buffer[0] >> 4), buffer[0] & 15, bytes(buffer[start : start + length])))
        del buffer[: start + length]
    return packets


# --- what a broker sends ---


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool = False,
    dup: bool = False,
    properties: bytes | None = None,
) -> bytes:
    """A PUBLISH; ``properties`` (their bytes without the length) makes it MQTT 5, None 3.1.1."""
    body = text(topic)
    if qos:
        body += packet_id.to_bytes(2)
    if properties is not None:
        body += varint(len(properties)) + properties
    return packet(Type.PUBLISH, dup << 3 | qos << 1 | retain, body + payload)


def pubrel(packet_id: int) -> bytes:
    return packet(Type.PUBREL, 2, packet_id.to_bytes(2))


def connack(reason: int = 0, *, session_present: bool = False, properties: bytes | None = None) -> bytes:
    """A CONNACK; ``properties`` None makes it 3.1.1."""
    tail = b"" if properties is None else varint(len(properties)) + properties
    return packet(Type.CONNACK, 0, bytes((session_present, reason)) + tail)


def suback(packet_id: int, codes: bytes, *, v5: bool) -> bytes:
    return packet(Type.SUBACK, 0, packet_id.to_bytes(2) + (b"\0" if v5 else b"") + codes)


def unsuback(packet_id: int, count: int, *, v5: bool) -> bytes:
    return packet(Type.UNSUBACK, 0, packet_id.to_bytes(2) + (b"\0" + bytes(count) if v5 else b""))


def disconnect(reason: int, properties: bytes = b"") -> bytes:
    """An MQTT 5 DISCONNECT from the broker."""
    return packet(Type.DISCONNECT, 0, bytes((reason,)) + varint(len(properties)) + properties)


def server_reference(value: str | bytes) -> bytes:
    """The property that goes with "use another server" and "server moved"."""
    return b"\x1c" + text(value)


PINGRESP = packet(Type.PINGRESP, 0, b"")


def user_property(name: str, value: str) -> bytes:
    return b"\x26" + text(name) + text(value)


# --- what a client sends ---


@dataclass(frozen=True)
class Connect:
    """A CONNECT, as far as a test's broker needs it."""

    client_id: str
    v5: bool
    clean: bool
    keepalive: int
    receive_maximum: int
    expiry: int
    username: str | None
    password: bytes | None
    will: Message | None


@dataclass(frozen=True)
class Message:
    """An application message. ``properties`` are their bytes without the length."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: bytes = b""
    publisher: str = field(default="", compare=False)


class Subscribe(NamedTuple):
    """A SUBSCRIBE: (filter, options byte) in order."""

    packet_id: int
    filters: list[tuple[str, int]]


class _Reader:
    """Reads fields off a packet's body."""

    def __init__(self, body: bytes, v5: bool = False) -> None:
        self.body = body
        self.at = 0
        self.v5 = v5

    def integer(self, size: int) -> int:
        self.at += size
        assert self.at <= len(self.body), "a client's packet ends before its fields do"
        return int.from_bytes(self.body[self.at - size : self.at])

    def raw(self) -> bytes:
        length = self.integer(2)
        self.at += length
        assert self.at <= len(self.body), "a client's packet ends before its fields do"
        return self.body[self.at - length : self.at]

    def text(self) -> str:
        return self.raw().decode()

    def properties(self) -> bytes:
        if not self.v5:
            return b""
        length, self.at = read_varint(self.body, self.at)
        self.at += length
        return self.body[self.at - length : self.at]

    @property
    def more(self) -> bool:
        return self.at < len(self.body)

    def rest(self) -> bytes:
        return self.body[self.at :]


_FIXED_SIZES = {0x01: 1, 0x02: 4, 0x11: 4, 0x17: 1, 0x18: 4, 0x19: 1, 0x21: 2, 0x22: 2, 0x27: 4}


def integer_properties(raw: bytes) -> dict[int, int]:
    """The properties of fixed size in ``raw``, by identifier; strings are passed over."""
    reader = _Reader(raw)
    found = {}
    while reader.more:
        identifier = reader.integer(1)
        if identifier in _FIXED_SIZES:
            found[identifier] = reader.integer(_FIXED_SIZES[identifier])
        else:
            reader.raw()
            if identifier == 0x26:
                reader.raw()
    return found


def parse_connect(body: bytes) -> Connect:
    reader = _Reader(body)
    assert reader.text() == "MQTT"
    v5 = reader.v5 = reader.integer(1) == 5
    flags, keepalive = reader.integer(1), reader.integer(2)
    properties = integer_properties(reader.properties())
    client_id = reader.text()
    will = None
    if flags & 4:
        will_properties = reader.properties()
        topic, payload = reader.text(), reader.raw()
        will = Message(topic, payload, flags >> 3 & 3, bool(flags & 32), will_properties, client_id)
    clean = bool(flags & 2)
    return Connect(
        client_id, v5, clean, keepalive, properties.get(0x21, 65535),
        # Without the property an MQTT 5 session ends with its connection; a 3.1.1 one stays unless it is clean.
        properties.get(0x11, 0) if v5 else (0 if clean else 7200),
        reader.text() if flags & 128 else None, reader.raw() if flags & 64 else None, will,
    )  # fmt: skip


def parse_subscribe(body: bytes, *, v5: bool) -> Subscribe:
    reader = _Reader(body, v5)
    packet_id = reader.integer(2)
    reader.properties()
    filters = []
    while reader.more:
        filters.append((reader.text(), reader.integer(1)))
    return Subscribe(packet_id, filters)


def parse_unsubscribe(body: bytes, *, v5: bool) -> tuple[int, list[str]]:
    reader = _Reader(body, v5)
    packet_id = reader.integer(2)
    reader.properties()
    filters = []
    while reader.more:
        filters.append(reader.text())
    return packet_id, filters


def parse_publish(flags: int, body: bytes, *, v5: bool, publisher: str = "") -> tuple[Message, int]:
    """The message and its packet id (0 at QoS 0)."""
    reader = _Reader(body, v5)
    topic = reader.text()
    qos = flags >> 1 & 3
    packet_id = reader.integer(2) if qos else 0
    properties = reader.properties()
    return Message(topic, reader.rest(), qos, bool(flags & 1), properties, publisher), packet_id


def disconnect_expiry(body: bytes) -> int | None:
    """The session expiry that a client's MQTT 5 DISCONNECT sets, if it does."""
    if len(body) < 2:
        return None
    reader = _Reader(body, True)
    reader.integer(1)
    return integer_properties(reader.properties()).get(0x11)


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a filter (without its share group) matches a topic name (section 4.7)."""
    levels, names = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and levels[0] in ("#", "+"):
        return False
    for place, level in enumerate(levels):
        if level == "#":
            return True
        if place >= len(names) or level not in ("+", names[place]):
            return False
    return len(levels) == len(names)
