"""A report from silver and its quarantine alone, read without Spark.

For tables that fit into memory, such as the demo's: at most :data:`MOST_ROWS` readings are drawn, the newest. Anomalies
are found here and now, by the detectors of the job ``anomalies``.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pandas as pd  # type: ignore[import-untyped]

from streaming.anomalies.detectors import Limits, SignalModel
from streaming.decoding.device_schemas import RESERVED
from streaming.lake.delta_files import read_rows
from streaming.report.data import (
    LATE_S,
    MOST_MARKS,
    MOST_POINTS,
    MOST_SIGNALS,
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
_VALUES_OF_A_SWITCH: Final = 2

Alert = tuple[str, str, str, float, float]
"""Device, signal, kind, score, time."""


def read_silver(lake: Path, source: str) -> Report:
    """Reads the tables, either of which may be missing. Blocks, a second or two for 100,000 readings."""
    rows = _newest(lake / "silver", "received_at")
    bad = _newest(lake / "silver_quarantine", "kafka_time")
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
    report.signals, alerts = _anomalies(rows)
    report.findings = [
        Finding("readings", f"{len(rows):,}"),
        Finding("devices", f"{rows.device.nunique():,}"),
        Finding("alerts", f"{len(alerts):,}", bool(alerts)),
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
        "Signals of no more than two values, such as a switch, are not judged.",
        *([f"Older readings than the newest {MOST_ROWS:,}."] if len(rows) == MOST_ROWS else ()),
    ]
    return report


def _newest(folder: Path, received: str) -> pd.DataFrame | None:
    """The newest rows, times as seconds since 1970; None if there are none. ``received``: the column of the receive
    time."""
    table = read_rows(str(folder))
    if table is None or table.num_rows == 0:
        return None
    kept = [name for name in table.column_names if name not in {"key", "value", "headers"}]
    rows: pd.DataFrame = table.select(kept).sort_by([(received, "descending")])[:MOST_ROWS].to_pandas()
    for name in rows.select_dtypes("datetimetz"):
        rows[name] = rows[name].dt.as_unit("us").astype("int64") / 1e6
    return rows


def _missing(rows: pd.DataFrame) -> dict[str, list[int]]:
    """Missing numbers of each device between its lowest and its highest."""
    numbers = {device: {*seqs.tolist()} for device, seqs in rows.groupby("device").seq}
    lost = {device: sorted({*range(min(seen), max(seen))} - seen) for device, seen in numbers.items()}
    return {device: gaps for device, gaps in lost.items() if gaps}


def _anomalies(rows: pd.DataFrame) -> tuple[list[Signal], list[Alert]]:
    """The signals to draw, worst first, and all alerts."""
    by_device = dict([*rows.sort_values(["event_time", "seq"]).groupby("device")])
    numbers = rows.drop(columns=[*RESERVED.intersection(rows.columns)]).select_dtypes("number")
    names = [name for name in numbers if numbers[name].nunique() > _VALUES_OF_A_SWITCH]
    found: list[Alert] = []
    marks: defaultdict[tuple[str, str], list[tuple[float, Mark]]] = defaultdict(list)
    for device, mine in by_device.items():
        for name in names:
            model = SignalModel(Limits(), name)
            for when, value in mine[["event_time", name]].dropna().itertuples(index=False):
                verdict = model.judge(round(when * 1e6), float(value))
                if verdict is not None and verdict.kind != "score":
                    found.append((device, name, verdict.kind, verdict.score, when))
                    marks[device, name].append((verdict.score, Mark(when, float(value), verdict.kind)))
    events = Counter((device, name) for device, name, *_ in found)
    drawn = []
    for device, name in worst_of(events) or [(device, name) for device in [*by_device][:2] for name in names[:1]]:
        points = _thinned(by_device[device][["event_time", name]].dropna())
        shown = [mark for _, mark in sorted(marks[device, name], key=lambda one: -one[0])[:MOST_MARKS]]
        drawn.append(Signal(device, name, _UNITS.get(name, ""), points, shown, alerts=events[device, name]))
    return drawn, found


def _thinned(values: pd.DataFrame) -> list[tuple[float, float, float, float]]:
    """At most :data:`MOST_POINTS` points with least, mean and greatest value."""
    size = max(1, -(-len(values) // MOST_POINTS))
    parts = values.set_axis(["at", "value"], axis=1).groupby([at // size for at in range(len(values))])
    points = parts.agg(at=("at", "first"), low=("value", "min"), mean=("value", "mean"), high=("value", "max"))
    return [*points.itertuples(index=False, name=None)]


def _offenders(rows: pd.DataFrame, lost: Mapping[str, list[int]], alerts: Sequence[Alert]) -> Table | None:
    alerted = Counter(device for device, *_ in alerts)
    missing = Counter({device: len(numbers) for device, numbers in lost.items()})
    known = rows.groupby("device").agg(type=("type", "last"), seen=("received_at", "max"))
    both = alerted + missing  # a missing reading and a wrong one weigh the same
    return worst_rows(
        ("device", "type", "last reading received (UTC)", "alerts", "missing numbers"),
        [
            (it, known.type[it], moment(known.seen[it]), alerted[it], missing[it])
            for it in sorted(both, key=lambda device: (-both[device], device))
        ],
    )


def _alert_table(alerts: Sequence[Alert]) -> Table | None:
    groups: defaultdict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for device, name, kind, score, when in alerts:
        groups[device, name, kind].append((score, when))
    return worst_rows(
        ("device", "signal", "kind", "alerts", "highest score", "last (UTC)"),
        [
            (*key, len(them), max(score for score, _ in them), moment(max(when for _, when in them)))
            for key, them in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
        ],
    )


def _counted(rows: pd.DataFrame, label: str, received: str, most: int) -> Bars:
    """How many there are of each label, in at most so many stretches of time."""
    width = bucket_s(rows[received].max() - rows[received].min(), most)
    counts = rows.groupby([label, rows[received] // width * width]).size()
    return stacked([(name, begin, count) for (name, begin), count in counts.items()], width)
