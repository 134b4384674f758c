"""The hot path: one pass over what a read brought, PUBLISH packets straight into Kafka batches.

What a message costs here is a slice for each of topic, packet id and payload, one dictionary look-up by the raw topic
bytes, and the append; everything else (UTF-8, filters, templates, the partition) was settled when the topic was first
seen. No object is built per message.

What a hostile or broken broker can send is checked on the way: lengths against the packet's end, packet id 0,
reserved bits, QoS 3; a topic's bytes at first sight."""

from __future__ import annotations

__all__ = ["Ingest"]

import time
from typing import TYPE_CHECKING

from gateway.mqtt.errors import MalformedPacketError

if TYPE_CHECKING:
    from bridge.accumulator import Accumulator
    from bridge.dispatch import Dispatcher

PUBLISH, PUBREL, PUBCOMP, PINGRESP = 0x30, 0x62, 0x70, 0xD0


class Ingest:
    """Decodes one session's packets. Belongs to the event loop's thread.

    ``ids`` and ``ids2`` collect packet ids of QoS 1 and 2 in arrival order until the session hands them to a span.
    ``control`` collects whole packets that are paho's business, ``answers`` what must go out at once (PUBCOMP)."""

    __slots__ = (
        "_accumulator", "_dispatcher", "_max_packet", "_max_record", "_v5",
        "answers", "control", "ids", "ids2", "missing", "pinged", "qos2", "redelivered",
    )  # fmt: skip

    def __init__(
        self, dispatcher: Dispatcher, accumulator: Accumulator, *, v5: bool, max_packet: int, max_record: int
    ) -> None:
        self._dispatcher = dispatcher
        self._accumulator = accumulator
        self._v5 = v5
        self._max_packet = max_packet
        self._max_record = max_record
        self.ids: list[bytes] = []
        self.ids2: list[bytes] = []
        self.qos2: set[bytes] = set()  # ids between PUBLISH and PUBREL: they outlive the connection, with the session
        self.control = bytearray()
        self.answers = bytearray()
        self.missing = 0  # bytes until the packet at the end is whole, as far as is known
        self.redelivered = 0
        self.pinged = False  # a PINGRESP came

    def feed(self, data: bytes) -> tuple[int, int]:
        """Take in what was read. Returns how many bytes were used up and how many messages they held.

        The rest is the beginning of a packet: call again with it in front of what comes next, once ``missing`` more
        bytes are there. Raises MalformedPacketError; messages before the bad packet have been taken."""
        accumulator = self._accumulator
        accumulator.now_ns = time.monotonic_ns()
        if not accumulator.current.opened_ns:
            accumulator.current.opened_ns = accumulator.now_ns
        mark = len(self.ids)
        try:
            used, count = self._decode(data)
        except IndexError:
            raise MalformedPacketError("The broker sent a packet that ends before its fields do.") from None
        if b"\0\0" in self.ids[mark:]:
            raise MalformedPacketError("The broker sent a PUBLISH with packet id 0 [MQTT-2.2.1-2].")
        return used, count

    def _decode(self, data: bytes) -> tuple[int, int]:
        v5 = self._v5
        max_record = self._max_record
        dispatcher = self._dispatcher
        caches = dispatcher.caches
        add_id = self.ids.append
        timestamp = time.time_ns() // 1_000_000
        dispatcher.received_ms = timestamp
        position = count = 0
        end = len(data)
        last = kind = -1  # of the PUBLISH before: in a run of equal flags what follows from them is worked out once
        cache = caches[0]
        self.missing = 0
        while end - position >= 2:
            flags = data[position]
            length = data[position + 1]
            start = position + 2
            if length > 127:
                if end - position < 5:  # more of it is to come: so long a packet has at least five bytes
                    break
                byte = data[start]
                start += 1
                length = length & 127 | (byte & 127) << 7
                if byte > 127:
                    byte = data[start]
                    start += 1
                    length |= (byte & 127) << 14
                    if byte > 127:
                        byte = data[start]
                        start += 1
                        length |= byte << 21
                        if byte > 127:
                            raise MalformedPacketError("The broker sent a remaining length of more than four bytes.")
            stop = start + length
            if stop > end:
                if length > self._max_packet:
                    raise MalformedPacketError(
                        f"The broker sent a packet of {length} bytes; mqtt.max_packet_bytes allows {self._max_packet}.",
                        0x95,
                    )
                self.missing = stop - end
                break
            if flags != last:
                if flags & 0xF0 != PUBLISH:
                    self._take_other(flags, data, position, start, stop)
                    position = stop
                    continue
                last = flags
                kind = flags & 14
                cache = caches[flags & 15]
            body = start + 2 + (data[start] << 8 | data[start + 1])
            topic = data[start + 2 : body]
            if kind:
                packet_id = data[body : body + 2]
                body += 2
                if kind == 2:  # QoS 1, first delivery
                    add_id(packet_id)
                elif not self._take_unusual(kind, packet_id):
                    position = stop
                    count += 1
                    continue
            try:
                slot, key, headers, extras = cache[topic]
            except KeyError:
                if body > stop or not topic:
                    raise MalformedPacketError(
                        "The broker sent a PUBLISH without a topic, or one longer than its packet."
                    ) from None
                slot, key, headers, extras = dispatcher.entry(flags & 15, topic)
            properties = b""
            if v5:
                size = data[body]
                body += 1
                if size:
                    if size > 127:
                        size, body = _varint(data, body - 1)
                    properties = data[body : body + size]
                    body += size
                    if extras is not None:
                        try:
                            headers = headers + extras[properties]
                        except KeyError:
                            headers = headers + dispatcher.property_headers(extras, properties)
            if body > stop:
                raise MalformedPacketError("The broker sent a PUBLISH whose fields are longer than its packet.")
            value = data[body:stop]
            if slot is None or length > max_record:
                dispatcher.slow(flags & 15, topic, properties, value)
            elif slot.append(slot.count, timestamp, key, value, headers) is None:
                slot.roll(timestamp, key, value, headers)
            else:
                slot.count += 1
            count += 1
            position = stop
        if end - position and not self.missing:
            self.missing = 1
        return position, count

    def _take_unusual(self, kind: int, packet_id: bytes) -> bool:
        """QoS 2, and redelivery. False when the message is a copy of one that is held already."""
        quality = kind & 6
        if quality in {0, 6}:
            raise MalformedPacketError("The broker sent a PUBLISH with QoS 3, or DUP with QoS 0 [MQTT-3.3.1-2, -4].")
        if kind & 8:
            self.redelivered += 1
        if quality == 2:
            self.ids.append(packet_id)
            return True
        if packet_id == b"\0\0":
            raise MalformedPacketError("The broker sent a PUBLISH with packet id 0 [MQTT-2.2.1-2].")
        self.ids2.append(packet_id)
        if packet_id in self.qos2:
            # Forwarded before, on this connection or an earlier one: only its PUBREC is wanted, after the first copy's.
            self._dispatcher.note_copy()
            return False
        self.qos2.add(packet_id)
        return True

    def _take_other(self, flags: int, data: bytes, position: int, start: int, stop: int) -> None:
        if flags == PUBREL:
            packet_id = data[start : start + 2]
            if stop - start < 2:
                raise MalformedPacketError("The broker sent a PUBREL without packet id.")
            self.qos2.discard(packet_id)
            # Also for an id we do not know, as after a restart: PUBCOMP ends the exchange [MQTT-4.3.3-13].
            self.answers += b"\x70\x02" + packet_id
        elif flags == PINGRESP:
            self.pinged = True
        else:
            self.control += data[position:stop]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A variable byte integer (MQTT 5.0 section 1.5.5) and where it ends."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > 21:
            raise MalformedPacketError("The broker sent a property length of more than four bytes.")
