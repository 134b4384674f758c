"""MQTT packets as bytes, for the load side of the benchmark: written out here so that no client library's cost or
cleverness is in the way.

Only what the harness speaks: CONNECT, SUBSCRIBE, PUBLISH at QoS 0 and 1, and their answers, in MQTT 3.1.1 and 5.0.
"""

from __future__ import annotations

__all__ = [
    "CONNACK",
    "CONNECT",
    "DISCONNECT",
    "PINGREQ",
    "PINGRESP",
    "PUBACK",
    "PUBLISH",
    "SUBACK",
    "SUBSCRIBE",
    "UNSUBACK",
    "UNSUBSCRIBE",
    "Connect",
    "PacketBuffer",
    "Subscribe",
    "WireError",
    "connack",
    "connect",
    "covers",
    "disconnect",
    "parse_connect",
    "parse_subscribe",
    "publish",
    "suback",
    "subscribe",
    "unsuback",
    "variable_int",
]

from dataclasses import dataclass
from typing import Final

CONNECT: Final = 0x10
CONNACK: Final = 0x20
PUBLISH: Final = 0x30
PUBACK: Final = 0x40
SUBSCRIBE: Final = 0x80
SUBACK: Final = 0x90
UNSUBSCRIBE: Final = 0xA0
UNSUBACK: Final = 0xB0
DISCONNECT: Final = 0xE0
PINGREQ: Final = b"\xc0\x00"
PINGRESP: Final = b"\xd0\x00"

_MAX_RECEIVE: Final = 65_535  # MQTT 5.0 section 3.1.2.11.3: the value when the property is absent
_RECEIVE_MAXIMUM: Final = 0x21
# Sizes of CONNECT's fixed-size properties (MQTT 5.0 section 2.2.2.2); the others are strings and are skipped by
# their length.
_FIXED_PROPERTIES: Final = {0x11: 4, 0x17: 1, 0x19: 1, _RECEIVE_MAXIMUM: 2, 0x22: 2, 0x27: 4}


class WireError(Exception):
    """Bytes that are no MQTT packet the harness knows; the sentence says which."""


@dataclass(frozen=True, slots=True)
class Connect:
    """A CONNECT, as far as the replay broker needs it."""

    client_id: str
    version5: bool
    receive_maximum: int


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A SUBSCRIBE: packet id and (filter, requested QoS) pairs in order."""

    packet_id: int
    filters: tuple[tuple[str, int], ...]


def variable_int(number: int) -> bytes:
    """A variable byte integer (MQTT 5.0 section 1.5.5)."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _string(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


def _packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + variable_int(len(body)) + body


def connect(client_id: str, *, clean: bool = True, keepalive_s: int = 0) -> bytes:
    """A 3.1.1 CONNECT without credentials."""
    head = _string(b"MQTT") + b"\x04" + (b"\x02" if clean else b"\x00") + keepalive_s.to_bytes(2, "big")
    return _packet(CONNECT, head + _string(client_id.encode()))


def connack(*, version5: bool) -> bytes:
    """An accepting CONNACK without a session."""
    return _packet(CONNACK, b"\x00\x00\x00" if version5 else b"\x00\x00")


def subscribe(packet_id: int, topic_filter: str, qos: int) -> bytes:
    """A 3.1.1 SUBSCRIBE with one filter."""
    return _packet(SUBSCRIBE | 2, packet_id.to_bytes(2, "big") + _string(topic_filter.encode()) + bytes((qos,)))


def suback(packet_id: int, granted: tuple[int, ...], *, version5: bool) -> bytes:
    """A SUBACK granting these QoS levels."""
    return _packet(SUBACK, packet_id.to_bytes(2, "big") + (b"\x00" if version5 else b"") + bytes(granted))


def unsuback(body: bytes, *, version5: bool) -> bytes:
    """The UNSUBACK for an UNSUBSCRIBE's body: every filter removed."""
    if not version5:
        return _packet(UNSUBACK, body[:2])
    _properties, at = _read_variable_int(body, 2)
    at += _properties
    count = 0
    while at < len(body):
        at += 2 + int.from_bytes(body[at : at + 2], "big")
        count += 1
    return _packet(UNSUBACK, body[:2] + b"\x00" + bytes(count))


def disconnect() -> bytes:
    """A 3.1.1 DISCONNECT."""
    return _packet(DISCONNECT, b"")


def publish(topic: bytes, payload: bytes, *, qos: int, packet_id: int = 0, properties: bytes | None = None) -> bytes:
    """A PUBLISH; ``properties`` (without their length) makes it MQTT 5, None MQTT 3.1.1."""
    head = _string(topic)
    if qos:
        head += packet_id.to_bytes(2, "big")
    if properties is not None:
        head += variable_int(len(properties)) + properties
    return _packet(PUBLISH | qos << 1, head + payload)


def _read_variable_int(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 28:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise WireError("a variable byte integer of more than four bytes")


def _read_string(data: bytes, at: int) -> tuple[bytes, int]:
    end = at + 2 + int.from_bytes(data[at : at + 2], "big")
    return data[at + 2 : end], end


def parse_connect(body: bytes) -> Connect:
    """What a CONNECT's body asks for. Raises WireError for another protocol than MQTT 3.1.1 or 5.0."""
    name, at = _read_string(body, 0)
    level = body[at]
    if name != b"MQTT" or level not in (4, 5):
        raise WireError(f"CONNECT with protocol {name!r} level {level}; the replay broker speaks MQTT 3.1.1 and 5.0")
    at += 4  # level, flags, keepalive
    receive_maximum = _MAX_RECEIVE
    if level == 5:
        length, at = _read_variable_int(body, at)
        end = at + length
        while at < end:
            kind = body[at]
            at += 1
            if kind == _RECEIVE_MAXIMUM:
                receive_maximum = int.from_bytes(body[at : at + 2], "big")
            if size := _FIXED_PROPERTIES.get(kind):
                at += size
            else:
                _text, at = _read_string(body, at)
                if kind == 0x26:  # a user property is two strings
                    _text, at = _read_string(body, at)
    client_id, _at = _read_string(body, at)
    return Connect(client_id.decode(), level == 5, receive_maximum)


def parse_subscribe(body: bytes, *, version5: bool) -> Subscribe:
    """Packet id, filters and the QoS asked for each."""
    at = 2
    if version5:
        length, at = _read_variable_int(body, at)
        at += length
    filters = []
    while at < len(body):
        topic_filter, at = _read_string(body, at)
        filters.append((topic_filter.decode(), body[at] & 3))
        at += 1
    return Subscribe(int.from_bytes(body[:2], "big"), tuple(filters))


def covers(topic_filter: str, topic: str) -> bool:
    """Whether a subscription (shared or not) to this filter receives this topic (MQTT 5.0 section 4.7)."""
    levels = topic_filter.split("/")
    if levels[0] == "$share":
        levels = levels[2:]
    names = topic.split("/")
    for index, level in enumerate(levels):
        if level == "#":
            return True
        if index >= len(names) or level not in ("+", names[index]):
            return False
    return len(levels) == len(names)


class PacketBuffer:
    """Bytes in, whole packets out. ``feed`` keeps what is incomplete for the next call."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The (first byte, body) pairs that are complete now. Raises WireError for an impossible length."""
        data = self._pending + data
        packets = []
        at = 0
        while len(data) - at >= 2:
            try:
                length, start = _read_variable_int(data, at + 1)
            except IndexError:
                break
            if start + length > len(data):
                break
            packets.append((data[at], data[start : start + length]))
            at = start + length
        self._pending = data[at:]
        return packets

    @property
    def pending(self) -> int:
        """Bytes kept of an incomplete packet."""
        return len(self._pending)
