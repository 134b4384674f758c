"""Recordings replayed as devices, with what goes wrong in the field mixed in; and what must come out of it, by pandas.

The expectation is computed from the recordings and from what is in Kafka, never by Spark.
"""

import csv
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

RECORDINGS = Path(__file__).resolve().parent.parent / "recordings"
LATE_SITE = "seattle"
CLOCK_DEVICE = "clock-2036"
SITES = {
    "flow-1": "plant",
    "office-1": "campus",
    "weather-sf": "san-francisco",
    "weather-sea": LATE_SITE,
    CLOCK_DEVICE: "campus",
}
"""Where each device stands: the registry. ``stranger-1`` is in no registry."""

_SOURCES = {
    "flow-1": ("flow-meter", "water-flow", {"flow": "flow_l_per_s"}),
    "office-1": (
        "room",
        "office",
        {"temperature": "temperature_c", "humidity": "humidity_percent", "light": "light_lux", "co2": "co2_ppm"},
    ),
    "weather-sf": ("weather", "san-francisco", {"temperature": "temperature_f"}),
    "weather-sea": ("weather", "seattle", {"temperature": "temperature_f"}),
}
_CORRUPT = {
    "not_json": [b'{"device":"office-1","type":"room","seq":1,', b"\x00\x01\x02"],
    "not_utf8": [b'{"device":"\xff\xfe"}'],
    "not_an_object": [b"[1,2]", b"42"],
    "missing_field": [b'{"type":"room","seq":1,"ts":1}'],
    "wrong_type": [b'{"device":"office-1","type":"room","seq":"one","ts":1}'],
    "out_of_range": [b'{"device":"office-1","type":"room","seq":1,"ts":9223372036854775807}'],
}
_REORDER = 12
_COPIES = 0.05


@dataclass(frozen=True, slots=True)
class Sent:
    """One reading as a device sent it. ``measured``: as recorded, in the device's own units."""

    device: str
    type: str
    seq: int | None
    ts_ms: int
    measured: dict[str, float]

    def payload(self) -> bytes:
        fields: dict[str, Any] = {"device": self.device, "type": self.type, "ts": self.ts_ms, **self.measured}
        if self.seq is not None:
            fields["seq"] = self.seq
        return json.dumps(fields, separators=(",", ":")).encode()


@dataclass
class Traffic:
    """What is published, in order: ``now`` first, ``late`` days afterwards. ``readings`` has each reading once."""

    readings: list[Sent] = field(default_factory=list)
    now: list[tuple[str, bytes]] = field(default_factory=list)
    late: list[tuple[str, bytes]] = field(default_factory=list)
    corrupt: dict[str, int] = field(default_factory=dict)


def recording(name: str) -> list[dict[str, str]]:
    """The rows of a file of ``tests/recordings``, values as text."""
    with (RECORDINGS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def make_traffic(end: datetime, *, span: timedelta | None = None, seed: int = 7) -> Traffic:
    """Recordings moved so that each ends at ``end``, the last ``span`` of each (or all); the same for the same seed."""
    rng = random.Random(seed)
    traffic = Traffic()
    since = _ms(end - span) if span else 0
    for device in _SOURCES:
        sent = [one for one in _readings(device, end) if one.ts_ms >= since]
        traffic.readings += sent
        messages = _disturbed(sent, rng)
        (traffic.late if SITES[device] == LATE_SITE else traffic.now).extend(messages)
    traffic.now = _mixed(traffic.now, rng)
    # Late copies of readings that came days ago, beside the site that was away.
    again = rng.sample(traffic.now, 40)
    twins = Sent("stranger-1", "room", None, int(end.timestamp() * 1000) - 60_000, {"temperature": 21.5})
    wrong = [
        Sent(CLOCK_DEVICE, "room", seq, int(datetime(2036, 1, 1, tzinfo=UTC).timestamp() * 1000) + seq, {"co2": 400.0})
        for seq in range(20)
    ]
    traffic.readings += [twins, twins, *wrong]
    for one in (twins, twins, *wrong):
        traffic.now.insert(rng.randrange(len(traffic.now)), (_topic(one), one.payload()))
    for reason, payloads in _CORRUPT.items():
        for payload in payloads * 3:
            traffic.now.insert(rng.randrange(len(traffic.now)), ("devices/office-1/telemetry", payload))
            traffic.corrupt[reason] = traffic.corrupt.get(reason, 0) + 1
    traffic.late = _mixed(traffic.late + again, rng)
    return traffic


def _readings(device: str, end: datetime) -> Iterator[Sent]:
    kind, name, columns = _SOURCES[device]
    rows = recording(name)
    times = [datetime.fromisoformat(row["time"]) for row in rows]
    shift = end - times[-1].replace(tzinfo=times[-1].tzinfo or UTC)
    for seq, (row, at) in enumerate(zip(rows, times, strict=True)):
        moved = at.replace(tzinfo=at.tzinfo or UTC) + shift
        values = {signal: float(row[column]) for signal, column in columns.items()}
        yield Sent(device, kind, seq, _ms(moved), values)


def _ms(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _topic(sent: Sent) -> str:
    return f"devices/{sent.device}/telemetry"


def _disturbed(sent: list[Sent], rng: random.Random) -> list[tuple[str, bytes]]:
    """In nearly their order, some twice: what a device does that lost an acknowledgement."""
    order = sorted(range(len(sent)), key=lambda index: index + rng.randrange(_REORDER))
    messages = []
    for index in order:
        message = (_topic(sent[index]), sent[index].payload())
        messages.append(message)
        if rng.random() < _COPIES:
            messages.append(message)
    return messages


def _mixed(messages: list[tuple[str, bytes]], rng: random.Random) -> list[tuple[str, bytes]]:
    """Devices side by side, each in its own order."""
    queues: dict[str, list[tuple[str, bytes]]] = {}
    for message in messages:
        queues.setdefault(message[0], []).append(message)
    places = [topic for topic, queue in queues.items() for _ in queue]
    rng.shuffle(places)
    heads = {topic: iter(queue) for topic, queue in queues.items()}
    return [next(heads[topic]) for topic in places]
