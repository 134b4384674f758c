"""What the devices send: 200-byte JSON telemetry with its number and its moment at fixed places.

The number (``seq``) and the moment (``sent_ns``) have a constant count of digits, so a reader takes them from a
record by slicing. Both therefore carry an offset: JSON allows no leading zeros.
"""

from __future__ import annotations

import random
import time
from array import array
from dataclasses import dataclass
from typing import Final

from tests.brokers.packets import publish

PAYLOAD_BYTES: Final = 200
DEVICES: Final = 1_000
_SEQ_OFFSET: Final = 10**8  # nine digits: room for 900 million messages
_CLOCK_OFFSET: Final = 10**18  # nineteen digits whatever the machine's uptime
_SEQ_AT: Final = slice(7, 16)
_SENT_AT: Final = slice(27, 46)

# MQTT 5 properties of the `saturated-mqtt5` row: content type, one user property, message expiry of an hour.
PROPERTIES: Final = b"\x03\x00\x10application/json\x26\x00\x04site\x00\x05north\x02\x00\x00\x0e\x10"


def template(device: int) -> bytes:
    """A payload's part after seq and sent_ns: plausible readings of one device, as long as the size asks for."""
    draw = random.Random(device)
    size = PAYLOAD_BYTES - _SENT_AT.stop
    body = (
        f',"device":"sensor-{device:06d}","temperature":{draw.uniform(10, 40):.3f}'
        f',"humidity":{draw.uniform(20, 90):.3f},"voltage":{draw.uniform(3, 4.2):.4f}'
        f',"rssi":{draw.randint(-110, -40)},"fw":"1.{draw.randint(0, 9)}","tag":"'
    )
    filling = f"{draw.getrandbits(512):0128x}"
    return (body + filling[: size - len(body) - 2] + '"}').encode()


def payload(seq: int, rest: bytes, *, sent_ns: int | None = None) -> bytes:
    """One message: its number, its moment (monotonic; now when None) and a ``template``."""
    moment = time.monotonic_ns() if sent_ns is None else sent_ns
    return b'{"seq":%d,"sent_ns":%d%b' % (_SEQ_OFFSET + seq, _CLOCK_OFFSET + moment, rest)


def seq_of(value: bytes) -> int:
    """A payload's number. Raises ValueError when it is no payload of ours."""
    return int(value[_SEQ_AT]) - _SEQ_OFFSET


def sent_ns_of(value: bytes) -> int:
    """The monotonic moment a payload was made; comparable between processes of one machine."""
    return int(value[_SENT_AT]) - _CLOCK_OFFSET


def device_topic(device: int) -> bytes:
    """The topic of a device."""
    return b"devices/%d/telemetry" % device


@dataclass(frozen=True, slots=True)
class Stream:
    """Ready PUBLISH packets. Message k is sent with packet id k % period + 1; ``count`` is a multiple of ``period``
    so that the stream can repeat.

    data: the packets; offsets: where packet k begins, with the end as the last entry; qos: of all of them.
    """

    data: bytes
    offsets: array[int]
    period: int
    qos: int

    @property
    def count(self) -> int:
        return len(self.offsets) - 1


def build_stream(
    count: int, *, qos: int, period: int, topics: int = DEVICES, properties: bytes | None = None
) -> Stream:
    """``count`` packets with seq 0 … count - 1, going round ``topics`` device topics. ``period`` ≤ 65,535 divides
    ``count``.
    """
    if not 0 < period <= 65_535 or count % period:
        raise ValueError(f"{count} packets cannot go round {period} packet ids; take a divisor of at most 65,535")
    rests = [template(device) for device in range(DEVICES)]
    now = time.monotonic_ns()
    packets = []
    offsets = array("Q", (0,))
    end = 0
    for seq in range(count):
        packet = publish(
            device_topic(seq % topics),
            payload(seq, rests[seq % DEVICES], sent_ns=now + seq * 1000),
            qos=qos,
            packet_id=seq % period + 1,
            properties=properties,
        )
        packets.append(packet)
        end += len(packet)
        offsets.append(end)
    return Stream(b"".join(packets), offsets, period, qos)
