"""The hot path: one pass over the bytes of a read puts PUBLISH packets straight into Kafka batches.

One message costs three slices (topic, packet id, payload), one dictionary look-up by the raw topic bytes, and the
append. UTF-8, filters, templates and partition were settled with the topic's first message. No object is built per
message.

Input of a hostile or broken broker is checked on the way: lengths against the packet's end, packet id 0, reserved bits,
QoS 3. Such a connection ends. A topic name that MQTT forbids becomes a dead letter instead. EMQX passes on names that
devices made up (``mqtt.strict_mode`` is off by default), and would send them again after every reconnect.
"""

from __future__ import annotations

import os
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from bridge.produce.dead_letter import DeadLetterDraft, DeadLetters
from bridge.produce.dispatch import SLOW, THE_TOPIC, Dispatcher, Entry, TopicNameError
from bridge.wire import MQTT_TOPIC, DeadLetterReason
from gateway.mqtt.errors import MalformedPacketError
from gateway.mqtt.properties import without_expiry
from gateway.mqtt.reasons import packet_name

if TYPE_CHECKING:
    from bridge.produce.accumulator import Accumulator

PUBLISH, PUBREL, PUBCOMP, PINGRESP = 0x30, 0x62, 0x70, 0xD0
# First bytes of a broker's other packets: CONNACK, PUBACK, PUBREC, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH, each
# with its four low bits 0 (MQTT 5.0 section 2.1.3).
_CONTROL = frozenset({0x20, 0x40, 0x50, 0x70, 0x90, 0xB0, 0xE0, 0xF0})
# The content of a QoS 2 message is kept as a hash with a random key, so no device can make two messages of one hash.
_HASH_KEY, _HASH_BYTES = os.urandom(32), 16


class Ingest:
    """Decodes one session's packets. Belongs to the event loop's thread.

    ``ids`` and ``ids2`` collect packet ids of QoS 1 and 2 in arrival order until the session hands them to a span.
    ``control`` collects whole packets for paho, ``answers`` packets that must leave at once (PUBCOMP).

    ``qos2`` has the packet ids between PUBLISH and PUBREL, each with the hash of its message: at most 65,535. They
    belong to the session and outlive the connection. A message is a copy when its id is among them, its DUP flag is set
    and its content is the same.

    Any other message with such an id is new and is delivered: a broker restored from an older snapshot uses ids again.
    MQTT would leave it out [MQTT-4.3.3-10], but then it would be lost.

    A packet above ``max_packet`` bytes ends the connection; a message above ``max_record`` is a dead letter.
    """

    __slots__ = (
        "_accumulator", "_dead_letters", "_dispatcher", "_max_packet", "_max_record", "_v5",
        "answers", "control", "handed2", "ids", "ids2", "missing", "newest", "pongs", "qos2", "redelivered", "retained",
        "reused", "taken",
    )  # fmt: skip

    def __init__(
        self,
        dispatcher: Dispatcher,
        accumulator: Accumulator,
        dead_letters: DeadLetters,
        *,
        v5: bool,
        max_packet: int,
        max_record: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._accumulator = accumulator
        self._dead_letters = dead_letters
        self._v5 = v5
        self._max_packet = max_packet
        self._max_record = max_record
        self.ids: list[bytes] = []  # QoS 1 packet ids that no span has yet
        self.ids2: list[bytes] = []  # the same of QoS 2
        self.qos2: dict[bytes, bytes] = {}  # by packet id a digest of its message, until PUBREL
        # By packet id the number, in the order of QoS 2 messages, of the newest message with it on this connection.
        # Only its PUBREC is sent: the broker would take an earlier message's PUBREC for it.
        self.newest: dict[bytes, int] = {}
        self.handed2 = 0  # QoS 2 ids handed to spans on this connection
        self.reused = 0  # new messages with an id in use, on this connection
        self.control = bytearray()  # whole packets for paho
        self.answers = bytearray()  # PUBCOMP packets, to be written
        self.taken = 0  # messages of the last feed before it raised
        self.missing = 0  # known number of bytes missing from the last packet
        self.redelivered = 0
        self.retained = 0
        self.pongs = 0  # PINGRESP on this connection

    def feed(self, data: bytes) -> tuple[int, int]:
        """Decode the bytes of a read. Returns the numbers of used bytes and of messages.

        The rest is the beginning of a packet: call again with it in front of the next bytes, once ``missing`` more
        bytes are there. Raises MalformedPacketError, or the error of a defect of ours. Then ``taken`` counts the
        messages before the bad packet, whose packet ids are in the lists.
        """
        self.taken = 0
        accumulator = self._accumulator
        accumulator.now_ns = time.monotonic_ns()
        span = accumulator.current
        fresh = not span.opened_ns
        if fresh:
            span.opened_ns = accumulator.now_ns
        mark = len(self.ids)
        used, count = self._decode(data)
        if b"\0\0" in self.ids[mark:]:
            self.taken = count
            raise MalformedPacketError("The broker sent a PUBLISH with packet id 0 [MQTT-2.2.1-2].")
        if fresh and not count:
            span.opened_ns = 0  # a PINGRESP does not wait; later messages would seem as old as it
        return used, count

    def _decode(self, data: bytes) -> tuple[int, int]:
        v5 = self._v5
        max_packet = self._max_packet
        unusual = min(self._max_record, max_packet - 5)  # larger packets, in bytes after the header, need more checks
        dispatcher = self._dispatcher
        caches = dispatcher.caches
        the_topic, topic_header = THE_TOPIC, MQTT_TOPIC  # compiled code looks names of other modules up at each use
        ids = self.ids
        timestamp = time.time_ns() // 1_000_000
        stamp: Any = timestamp  # as an int, compiled code would make an object of it for each record
        dispatcher.received_ms = timestamp
        position = count = body = run = 0
        packet_id = b""
        end = len(data)
        last = kind = -1  # of the last PUBLISH; in a run of equal flags their meaning is computed once
        cache = caches[0]
        self.missing = 0
        raised = True
        try:
            while end - position >= 2:
                flags = data[position]
                length = data[position + 1]
                start = position + 2
                if length > 127:
                    if end - position < 5:  # incomplete: a packet of this size has at least five bytes of header
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
                                raise _length_error("remaining length")
                stop = start + length
                if stop > end:
                    if stop - position > max_packet:
                        raise self._too_large(stop - position)
                    self.missing = stop - end
                    break
                if flags != last:
                    if flags & 0xF0 != PUBLISH:
                        self._take_other(flags, data, position, start, stop)
                        position = stop
                        continue
                    if last & 1:
                        self.retained += count - run
                    run = count  # messages before this run of equal flags
                    last = flags
                    kind = flags & 14
                    cache = caches[flags & 15]
                body = start + 2 + (data[start] << 8 | data[start + 1])
                topic = data[start + 2 : body]
                if kind:
                    packet_id = data[body : body + 2]
                    body += 2
                    if kind == 2:  # QoS 1, first delivery
                        ids.append(packet_id)
                    elif not self._take_unusual(kind, packet_id, data, start, body, stop):
                        position = stop
                        count += 1
                        continue
                try:
                    slot, key, headers, named, extras = cache[topic]
                except KeyError:
                    if body > stop or not topic:
                        raise self._without_topic(data, body, stop) from None
                    slot, key, headers, named, extras = self._entry(flags & 15, topic)
                if key is the_topic:
                    key = topic
                if named:
                    headers[0] = (topic_header, topic)
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
                    raise _fields_error()
                value = data[body:stop]
                if slot is None or length > unusual:
                    if stop - position > max_packet:
                        raise self._too_large(stop - position)
                    self._slow(flags & 15, topic, properties, value)
                elif slot.append(number := slot.count, stamp, key, value, headers) is None:
                    slot.roll(timestamp, key, value, headers)
                else:
                    slot.count = number + 1
                count += 1
                position = stop
            raised = False
        except IndexError:
            # Checked here, where it costs good packets nothing. Other errors are defects of the gateway or a plug-in.
            if flags == last and _ends_early(data, start, stop, with_id=bool(kind), v5=v5):
                raise _fields_error() from None
            raise
        finally:
            if last & 1:
                self.retained += count - run
            if raised:  # the messages before this one were taken
                self.taken = count
                if kind and body > position:
                    self._disown(kind, packet_id)
        if end - position and not self.missing:
            self.missing = 1
        return position, count

    def _entry(self, flags: int, topic: bytes) -> Entry:
        try:
            return self._dispatcher.entry(flags, topic)
        except TopicNameError:
            return SLOW  # each message is logged and dead-lettered

    def _slow(self, flags: int, topic: bytes, properties: bytes, payload: bytes) -> None:
        """Dispatch a message that the fast lane cannot take; a bad topic name makes it a dead letter."""
        try:
            self._dispatcher.slow(flags, topic, properties, payload)
        except TopicNameError as error:
            headers = [(MQTT_TOPIC, topic.decode(errors="backslashreplace").encode())]
            letter = DeadLetterDraft(
                "", flags >> 1 & 3, topic, payload, headers, DeadLetterReason.INVALID_TOPIC, error,
                first_seen_ms=self._dispatcher.received_ms,
            )  # fmt: skip
            self._dead_letters.bury(letter)

    def _disown(self, kind: int, packet_id: bytes) -> None:
        """Remove the packet id of a bad PUBLISH, because its message was not taken and may not be acknowledged."""
        ids = self.ids if kind & 6 == 2 else self.ids2
        if ids and ids[-1] is packet_id:
            ids.pop()
            if ids is self.ids2:
                # Otherwise the same message, sent again, would count as a copy of a message that was never taken.
                self.qos2.pop(packet_id, None)

    def _too_large(self, size: int) -> MalformedPacketError:
        return MalformedPacketError(
            f"The broker sent a packet of {size} bytes; mqtt.max_packet_bytes allows {self._max_packet}.", 0x95
        )

    def _without_topic(self, data: bytes, body: int, stop: int) -> MalformedPacketError:
        """The error for a PUBLISH with an empty or truncated topic, most likely a topic alias."""
        if body <= stop and self._v5 and b"\x23" in data[body:stop]:
            return MalformedPacketError("The broker sent a topic alias, although we announced none.", 0x94)
        return MalformedPacketError("The broker sent a PUBLISH without a topic, or one longer than its packet.")

    def _take_unusual(self, kind: int, packet_id: bytes, data: bytes, start: int, body: int, stop: int) -> bool:
        """Take a message of QoS 2 or a redelivery. False when it is a copy of a held message.

        In ``data`` the topic's length is at ``start``, what follows the packet id at ``body``, the end at ``stop``.
        """
        quality = kind & 6
        if quality in {0, 6}:
            raise MalformedPacketError("The broker sent a PUBLISH with QoS 3, or DUP with QoS 0 [MQTT-3.3.1-2, -4].")
        if body > stop:
            raise _fields_error()
        if kind & 8:
            self.redelivered += 1
        if quality == 2:
            self.ids.append(packet_id)
            return True
        if packet_id == b"\0\0":
            raise MalformedPacketError("The broker sent a PUBLISH with packet id 0 [MQTT-2.2.1-2].")
        content = data[body:stop]
        if self._v5:
            content = without_expiry(content)
        digest = blake2b(data[start : body - 2] + content, digest_size=_HASH_BYTES, key=_HASH_KEY).digest()
        known = self.qos2.get(packet_id)
        self.ids2.append(packet_id)
        if known is not None:
            if known == digest and kind & 8:
                # Already forwarded. It only needs a PUBREC, after that of the first delivery.
                self._dispatcher.note_copy()
                return False
            self.reused += 1
            self.newest[packet_id] = self.handed2 + len(self.ids2) - 1
        self.qos2[packet_id] = digest
        return True

    def _take_other(self, flags: int, data: bytes, position: int, start: int, stop: int) -> None:
        """Take a packet other than PUBLISH: from ``position`` to ``stop``; its fixed header ends at ``start``."""
        if flags == PUBREL:
            packet_id = data[start : start + 2]
            if stop - start < 2 or packet_id == b"\0\0":
                raise MalformedPacketError("The broker sent a PUBREL without a packet id, or with packet id 0.")
            self.qos2.pop(packet_id, None)
            # Also for an unknown id, as after a restart: PUBCOMP ends the exchange [MQTT-4.3.3-13].
            self.answers += b"\x70\x02" + packet_id
        elif flags == PINGRESP:
            self.pongs += 1
        elif flags in _CONTROL:
            self.control += data[position:stop]
        else:
            raise MalformedPacketError(
                f"The broker sent a {packet_name(flags >> 4)} with flags {flags & 15:04b}, which no broker may send "
                "(MQTT 5.0 section 2.1)."
            )


def until_publish(data: bytes) -> int:
    """How many bytes stand before the first PUBLISH; all, without one."""
    position = 0
    try:
        while data[position] & 0xF0 != PUBLISH:
            length, body = _varint(data, position + 1)
            position = body + length
    except (IndexError, MalformedPacketError):
        return len(data)
    return position


def _ends_early(data: bytes, start: int, stop: int, *, with_id: bool, v5: bool) -> bool:
    """Whether a PUBLISH, from behind its fixed header (``start``) to ``stop``, ends within its topic's or properties'
    length."""
    if stop - start < 2:
        return True
    lengths = data[start + 2 + int.from_bytes(data[start : start + 2]) + 2 * with_id : stop]
    return v5 and all(byte > 127 for byte in lengths[:4])


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A variable byte integer (MQTT 5.0 section 1.5.5) and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > 21:
            raise _length_error("property length")


def _length_error(what: str) -> MalformedPacketError:
    return MalformedPacketError(f"The broker sent a {what} of more than four bytes.")


def _fields_error() -> MalformedPacketError:
    return MalformedPacketError("The broker sent a PUBLISH whose fields are longer than its packet.")
