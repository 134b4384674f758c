"""A report from silver, its quarantine and the alerts of the job ``anomalies``, read without Spark.

For tables that fit into memory, such as the demo's: at most :data:`MOST_ROWS` readings are drawn, the newest.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import pandas as pd  # type: ignore[import-untyped]

from streaming.decoding.device_schemas import RESERVED
from streaming.lake.delta_files import read_rows
from streaming.report.data import (
    LATE_S,
    MOST_MARKS,
    MOST_POINTS,
    MOST_SIGNALS,
    NOT_JUDGED,
    Bars,
    Finding,
    Mark,
    Report,
    Signal,
    Table,
    bucket_s,
    lateness_counts,
    moment,
    ranges,
    rates,
    stacked,
    worst_of,
    worst_rows,
)

MOST_ROWS: Final = 500_000
_UNITS: Final = {"temperature": "°C", "humidity": "%", "voltage": "V", "rssi": "dBm"}


class _Alert(NamedTuple):
    """Columns of the table anomalies. A silence has neither signal nor reading."""

    device: str
    signal: str | None
    kind: str
    score: float
    event_time: datetime
    value: float


def read_silver(lake: Path, source: str) -> Report:
    """Reads the tables, each of which may be missing. Blocks, a second or two for 100,000 readings."""
    rows = _newest(lake / "silver", "received_at")
    bad = _newest(lake / "silver_quarantine", "kafka_time", "reason")
    found = _alerts(lake / "anomalies")
    absent = {
        "devices.state": "The job silver keeps no state of devices: gateway stream devices does.",
        "lost.audit": "The gateway's ledger was not compared with Kafka: gateway stream audit does that.",
    }
    report = Report(source, time.time(), absent=absent)
    if bad is None:
        absent["lost.quarantine"] = "No record is in quarantine."
    else:
        report.quarantine = _counted(bad, "reason", "kafka_time", 60)
    if rows is None:
        absent |= dict.fromkeys(("signals", "late", "throughput"), f"There are no readings in {lake}.")
        return report
    report.begin_s, report.end_s = rows.received_at.min(), rows.received_at.max()
    delays = rows.received_at - rows.device_time
    lost = _missing(rows)
    missing = sum(map(len, lost.values()))
    if found is None:
        absent["signals.alerts"] = "The readings were not judged: gateway stream anomalies does that."
    alerts = found or []
    report.signals = _signals(rows, alerts)
    report.findings = [
        Finding("readings", f"{len(rows):,}"),
        Finding("devices", f"{rows.device.nunique():,}"),
        Finding("alerts", NOT_JUDGED if found is None else f"{len(alerts):,}", bool(alerts)),
        Finding("in quarantine", f"{0 if bad is None else len(bad):,}", bad is not None),
        Finding("missing numbers", f"{missing:,}", missing > 0),
        Finding("sent twice", f"{rows.duplicated(['device', 'seq']).sum():,}"),
        Finding("late by more than 5 min", f"{(delays > LATE_S).mean():.1%}"),
    ]
    report.offenders = _offenders(rows, lost, alerts)
    report.anomalies = _alert_table(alerts)
    report.lateness = lateness_counts(delays)
    report.lost = worst_rows(
        ("device", "missing numbers", "which"),
        [
            (device, len(numbers), ranges(numbers))
            for device, numbers in sorted(lost.items(), key=lambda item: (-len(item[1]), item[0]))
        ],
    )
    report.throughput = rates(_counted(rows, "type", "received_at", MOST_POINTS // 2), report.begin_s, report.end_s)
    report.bounds = [
        (
            f"{len(report.signals):,} signals are drawn, those with most alerts first; at most {MOST_SIGNALS} of"
            f" {MOST_POINTS} points each."
        ),
        "Alerts are those that Spark's job had found when it was stopped.",
        *([f"Older readings than the newest {MOST_ROWS:,}."] if len(rows) == MOST_ROWS else ()),
    ]
    return report


def _newest(folder: Path, received: str, *more: str) -> pd.DataFrame | None:
    """The newest rows, times as seconds since 1970; None if there are none. ``received``: the column of the receive
    time. ``more``: the others to read; none: all."""
    table = read_rows(str(folder), [received, *more] if more else None)
    if table is None or table.num_rows == 0:
        return None
    rows: pd.DataFrame = table.sort_by([(received, "descending")])[:MOST_ROWS].to_pandas()
    for name in rows.select_dtypes("datetimetz"):
        rows[name] = rows[name].dt.as_unit("us").astype("int64") / 1e6
    return rows


def _alerts(folder: Path) -> list[_Alert] | None:
    """None if there is no table."""
    table = read_rows(str(folder), [*_Alert._fields])
    return None if table is None else [_Alert(**row) for row in table.to_pylist()]


def _missing(rows: pd.DataFrame) -> dict[str, list[int]]:
    """Missing numbers of each device between its lowest and its highest."""
    numbers = {device: {*seqs.tolist()} for device, seqs in rows.groupby("device").seq}
    lost = {device: sorted({*range(min(seen), max(seen))} - seen) for device, seen in numbers.items()}
    return {device: gaps for device, gaps in lost.items() if gaps}


def _signals(rows: pd.DataFrame, alerts: Sequence[_Alert]) -> list[Signal]:
    """The signals to draw, worst first; without alerts one signal of two devices."""
    of: defaultdict[tuple[str, str], list[_Alert]] = defaultdict(list)
    for alert in alerts:
        if alert.signal is not None and alert.signal in rows:
            of[alert.device, alert.signal].append(alert)
    numbers = rows.drop(columns=[*RESERVED.intersection(rows.columns)]).select_dtypes("number")
    ordered = rows.sort_values(["event_time", "seq"])
    drawn = []
    for device, name in worst_of({key: len(them) for key, them in of.items()}) or [
        (device, name) for device in rows.device.unique()[:2] for name in numbers.columns[:1]
    ]:
        mine = sorted(of[device, name], key=lambda alert: -alert.score)
        marks = [Mark(one.event_time.timestamp(), one.value, one.kind) for one in mine[:MOST_MARKS]]
        points = _thinned(ordered[ordered.device == device][["event_time", name]].dropna())
        drawn.append(Signal(device, name, _UNITS.get(name, ""), points, marks, alerts=len(mine)))
    return drawn


def _thinned(values: pd.DataFrame) -> list[tuple[float, float, float, float]]:
    """At most :data:`MOST_POINTS` points with least, mean and greatest value."""
    size = max(1, -(-len(values) // MOST_POINTS))
    parts = values.set_axis(["at", "value"], axis=1).groupby([at // size for at in range(len(values))])
    points = parts.agg(at=("at", "first"), low=("value", "min"), mean=("value", "mean"), high=("value", "max"))
    return [*points.itertuples(index=False, name=None)]


def _offenders(rows: pd.DataFrame, lost: Mapping[str, list[int]], alerts: Sequence[_Alert]) -> Table | None:
    known = rows.groupby("device").agg(type=("type", "last"), seen=("received_at", "max"))
    alerted = Counter(alert.device for alert in alerts if alert.device in known.index)
    missing = Counter({device: len(numbers) for device, numbers in lost.items()})
    both = alerted + missing  # a missing reading and a wrong one weigh the same
    return worst_rows(
        ("device", "type", "last reading received (UTC)", "alerts", "missing numbers"),
        [
            (it, known.type[it], moment(known.seen[it]), alerted[it], missing[it])
            for it in sorted(both, key=lambda device: (-both[device], device))
        ],
    )


def _alert_table(alerts: Sequence[_Alert]) -> Table | None:
    groups: defaultdict[tuple[str, str, str], list[_Alert]] = defaultdict(list)
    for alert in alerts:
        groups[alert.device, alert.signal or "", alert.kind].append(alert)
    return worst_rows(
        ("device", "signal", "kind", "alerts", "highest score", "last (UTC)"),
        [
            (*key, len(them), max(it.score for it in them), moment(max(it.event_time.timestamp() for it in them)))
            for key, them in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
        ],
    )


def _counted(rows: pd.DataFrame, label: str, received: str, most: int) -> Bars:
    """How many there are of each label, in at most so many stretches of time."""
    width = bucket_s(rows[received].max() - rows[received].min(), most)
    counts = rows.groupby([label, rows[received] // width * width]).size()
    return stacked([(name, begin, count) for (name, begin), count in counts.items()], width)
