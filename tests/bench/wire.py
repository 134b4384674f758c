"""MQTT on the load side of the benchmark, on ``tests.brokers.packets``.

No client library's cost or cleverness is in the way. CONNECT, SUBSCRIBE, PUBLISH at QoS 0 and 1, and their answers.
"""

from typing import Final

from tests.brokers.packets import Type, matches, packet, read_varint, text

CONNECT: Final = Type.CONNECT << 4
CONNACK: Final = Type.CONNACK << 4
PUBLISH: Final = Type.PUBLISH << 4
PUBACK: Final = Type.PUBACK << 4
SUBSCRIBE: Final = Type.SUBSCRIBE << 4
SUBACK: Final = Type.SUBACK << 4
UNSUBSCRIBE: Final = Type.UNSUBSCRIBE << 4
DISCONNECT: Final = Type.DISCONNECT << 4
PINGREQ: Final = packet(Type.PINGREQ, 0, b"")
PINGRESP: Final = packet(Type.PINGRESP, 0, b"")


class WireError(Exception):
    """Bytes that are no MQTT packet the harness knows; the sentence says which."""


def connect(client_id: str) -> bytes:
    """A 3.1.1 CONNECT without credentials and keepalive, for a clean session."""
    return packet(Type.CONNECT, 0, text("MQTT") + b"\4\2\0\0" + text(client_id))


def subscribe(packet_id: int, topic_filter: str, qos: int) -> bytes:
    """A 3.1.1 SUBSCRIBE with one filter."""
    return packet(Type.SUBSCRIBE, 2, packet_id.to_bytes(2) + text(topic_filter) + bytes((qos,)))


def disconnect() -> bytes:
    """A 3.1.1 DISCONNECT."""
    return packet(Type.DISCONNECT, 0, b"")


def covers(topic_filter: str, topic: str) -> bool:
    """Whether a subscription (shared or not) to this filter receives this topic."""
    return matches(topic_filter.split("/", 2)[2] if topic_filter.startswith("$share/") else topic_filter, topic)


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
                length, start = read_varint(data, at + 1)
            except IndexError:
                break
            except ValueError as error:
                raise WireError(str(error)) from error
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
