"""The sending side of one MQTT connection, as decisions without I/O: which bytes of a stream may go now, and what
the acknowledgements say.

Cheap on purpose: on a machine of two cores a replay that costs as much as the gateway would measure the replay.
"""

from bisect import bisect_left, bisect_right
from typing import Final

from tests.bench import wire
from tests.bench.payloads import Stream

_CHUNK: Final = 256 * 1024  # bytes offered to one send()


class Outflow:
    """``cycles`` times a stream over one connection, never more than ``window`` messages unacknowledged.

    With ``ordered`` acknowledgements out of order are an error [MQTT-4.6.0-2]; otherwise they are counted, and a
    packet id is used again only when every id before it is free.
    """

    def __init__(self, stream: Stream, cycles: int, *, window: int, ordered: bool = True) -> None:
        self.total: Final = stream.count * cycles
        self.acknowledged = 0  # all before this message are acknowledged
        self.out_of_order = 0
        self._stream = stream
        self._data = memoryview(stream.data)
        self._window = min(window, stream.period) if stream.qos else self.total
        self._ordered = ordered
        self._sent_bytes = 0
        self._end_bytes = len(stream.data) * cycles
        # What the peer has to answer if it answers in order, to compare whole reads with.
        self._expected = b"".join(b"\x40\x02%b" % (k + 1).to_bytes(2, "big") for k in range(stream.period))
        self._ahead: set[int] = set()  # ids acknowledged before their turn
        self._tail = b""  # an incomplete packet

    @property
    def sent_all(self) -> bool:
        return self._sent_bytes == self._end_bytes

    @property
    def done(self) -> bool:
        """Everything sent and, at QoS 1, acknowledged."""
        return self.sent_all and (not self._stream.qos or self.acknowledged == self.total)

    def sendable(self) -> memoryview:
        """The next bytes the window allows, at most one chunk; empty when it is closed or all is sent."""
        allowed = min(self.total, self.acknowledged + self._window)
        cycle, message = divmod(allowed, self._stream.count)
        limit = cycle * len(self._data) + self._stream.offsets[message]
        at = self._sent_bytes % len(self._data)
        size = max(0, min(limit - self._sent_bytes, _CHUNK))
        return self._data[at : at + size]

    def rest_of_packet(self) -> memoryview:
        """What is missing of a packet that has left in part; empty between packets, where another packet may be put
        in.
        """
        at = self._sent_bytes % len(self._data)
        return self._data[at : self._stream.offsets[bisect_left(self._stream.offsets, at)]]

    def sent(self, count: int) -> None:
        """``count`` bytes of ``sendable()`` or ``rest_of_packet()`` have left."""
        self._sent_bytes += count

    def received(self, data: bytes) -> list[tuple[int, bytes]]:
        """Takes bytes from the peer; the packets that are no PUBACK come back. Raises WireError for a PUBACK that
        must not be.
        """
        if self._tail:
            data = self._tail + data
        others: list[tuple[int, bytes]] = []
        at = 0
        if not self._ahead:
            at = self._take_expected(data)
        if at < len(data):
            at = self._take_packets(data, at, others)
        self._tail = data[at:]
        return others

    def _take_expected(self, data: bytes) -> int:
        """How much of the data is exactly the acknowledgements that are due. All or nothing for each round of ids."""
        at = 0
        end = len(data) & ~3
        while at < end and self.acknowledged < self.total:
            due = 4 * (self.acknowledged % self._stream.period)
            size = min(end - at, len(self._expected) - due, 4 * (self.total - self.acknowledged))
            if self._expected[due : due + size] != data[at : at + size]:
                break
            self.acknowledged += size >> 2
            at += size
        self._check_not_ahead()
        return at

    def _take_packets(self, data: bytes, at: int, others: list[tuple[int, bytes]]) -> int:
        packets = wire.PacketBuffer()
        for first, body in packets.feed(data[at:]):
            if first == wire.PUBACK:
                self._puback(body)
            else:
                others.append((first, body))
        return len(data) - packets.pending

    def _puback(self, body: bytes) -> None:
        packet_id = int.from_bytes(body[:2], "big")
        if len(body) > 2 and body[2] >= 0x80:
            raise wire.WireError(f"PUBACK for packet id {packet_id} with reason code 0x{body[2]:02x}: refused")
        period = self._stream.period
        place = (packet_id - 1 - self.acknowledged) % period  # how far after the one that is due
        message = self.acknowledged + place
        if packet_id > period or message in self._ahead or message >= self.sent_messages:
            raise wire.WireError(
                f"PUBACK for packet id {packet_id}, which is not in flight: acknowledged twice or never sent"
            )
        if place:
            if self._ordered:
                due = self.acknowledged % period + 1
                raise wire.WireError(
                    f"PUBACK for packet id {packet_id} while {due} was due: out of order [MQTT-4.6.0-2]"
                )
            self.out_of_order += 1
            self._ahead.add(message)
            return
        self.acknowledged += 1
        while self.acknowledged in self._ahead:
            self._ahead.remove(self.acknowledged)
            self.acknowledged += 1

    @property
    def sent_messages(self) -> int:
        """Messages that have left whole."""
        cycle, within = divmod(self._sent_bytes, len(self._data))
        return cycle * self._stream.count + bisect_right(self._stream.offsets, within) - 1

    def _check_not_ahead(self) -> None:
        if self.acknowledged > self.sent_messages:
            raise wire.WireError(f"{self.acknowledged} messages acknowledged, but only {self.sent_messages} sent")
