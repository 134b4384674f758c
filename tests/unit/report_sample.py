"""A report as a site of a few hundred devices would have it, with everything in it that can be."""

import math
from random import Random

from streaming.report.lake import LATENESS
from streaming.report.page import Figure, Finding, Report, Table
from streaming.report.plots import Bars, Histogram, Lines, Signal

BEGIN_S = 1_763_683_200.0  # 2025-11-21 00:00 UTC
HOUR_S = 3600.0


def full_report() -> Report:
    random = Random(1)
    signals = {
        f"signals.{number}": Figure(f"oslo-thermostat-0001: {name}", "A single mark is a wrong reading.", plot)
        for number, (name, plot) in enumerate(
            (label.split(" (")[0], _signal(random, label)) for label in ("temperature (°C)", "rssi (dBm)", "flow")
        )
    }
    return Report(
        made_at_s=BEGIN_S + 25 * HOUR_S,
        about="Readings received from 2025-11-21 00:00 to 2025-11-22 00:00 UTC (24 hours). Read from the lake s3a://b/l",
        findings=[
            Finding("readings", "17,280,123"), Finding("devices", "412"), Finding("offline", "17", bad=True),
            Finding("alerts", "1,204", bad=True), Finding("in quarantine", "3,310", bad=True),
            Finding("missing numbers", "88", bad=True), Finding("late by more than 5 min", "2.1 %"),
            Finding("ledger differences", "0"),
        ],
        parts={
            "devices.states": "412 devices: 391 online, 17 offline, 4 unknown.",
            "devices.events": Figure("Events of devices over time", "Many offline at one moment point to a site.",
                                     _bars(random, ("offline", "online", "gap", "flapping"), 30, "events")),
            "devices.offenders": Figure("Devices to look at first", "Worst at the top.", Table(
                ("device", "type", "site", "state", "last seen", "alerts", "missing", "transitions"),
                [
                    ("oslo-thermostat-0001", "thermostat", "oslo", "offline", "2025-11-21 22:14:07", 212, 44, 12),
                    ("<script>alert(1)</script>", "pump", None, "online", "2025-11-21 23:59:58", 97, 0, 61),
                    ("izmir-meter-0412-with-a-name-that-is-far-too-long", "meter", "izmir", "unknown", None, 3, 0, 0),
                ],
                total=133,
            )),
            **signals,
            "signals.anomalies": Figure("Alerts by device and signal", "One fault.", Table(
                ("device", "signal", "kind", "alerts", "highest score", "last"),
                [("oslo-thermostat-0001", "temperature", "outlier", 212, 75.16, "2025-11-21 22:14:07")],
            )),
            "late.lateness": Figure("From the device's clock to the gateway", "Long bars were offline.", Histogram(
                dict(zip(LATENESS, (12, 16_000_432, 1_100_000, 120_000, 33_000, 1_200, 25_000, 0), strict=True)),
                "readings", "received after",
            )),
            "lost.quarantine": Figure(
                "Records in quarantine by reason", "A new reason is a change of firmware.",
                _bars(random, ("not_json", "missing_field", "wrong_type", "schema"), 60, "records"),
            ),
            "lost.numbers": Figure("Sequence numbers that never came", "Numbers a device has counted past.",
                                   Table(("device", "missing", "ranges"),
                                         [("oslo-thermostat-0001", 44, "120 to 163")])),
            "lost.audit": Figure("The gateway's ledger against Kafka", "A difference is to be explained.", Table(
                ("gateway", "route", "partition", "minute", "in Kafka", "ledger", "difference"),
                [("gw-1", "telemetry", 3, "2025-11-21 13:37", 12_000, 12_003, -3)],
            )),
            "throughput.readings": Figure("Readings received", "A gap in all lines is an outage.", Lines(
                {
                    kind: [
                        (BEGIN_S + step * 300, 0.0 if 150 <= step < 156 else level * (1.2 + math.sin(step / 40)))
                        for step in range(288)
                    ]
                    for kind, level in (("thermostat", 96.0), ("meter", 70.0), ("pump", 33.0))
                },
                "readings/s",
            )),
        },
        bounds=["12 of 1,604 signals are drawn, those with most alerts first."],
    )  # fmt: skip


def _bars(random: Random, names: tuple[str, ...], most: int, unit: str) -> Bars:
    stacks = {name: [(BEGIN_S + hour * HOUR_S, float(random.randint(0, most))) for hour in range(24)] for name in names}
    return Bars(HOUR_S, stacks, unit)


def _signal(random: Random, label: str) -> Signal:
    points = []
    for step in range(400):
        mean = 20 + 3 * math.sin(step / 50) + random.gauss(0, 0.1)
        points.append((BEGIN_S + step * 216, mean - 0.4, mean, mean + 0.4))
    marks = [(points[at][0], points[at][2] + 8, "outlier") for at in (60, 200, 201, 202)]
    marks.append((points[300][0], points[300][2], "stuck"))
    return Signal(label, points, marks)
