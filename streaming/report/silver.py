"""A report from silver, its quarantine and the alerts of the job ``anomalies``, read without Spark.

For tables that fit into memory, such as the demo's: at most :data:`MOST_ROWS` readings are drawn, the newest.
"""

import time
from collections import Counter
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Final

import pandas as pd  # type: ignore[import-untyped]

from streaming.decoding.device_schemas import RESERVED
from streaming.lake.delta_files import read_rows
from streaming.report.data import (
    LATE_S,
    LATENESS,
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
    moment,
    ranges,
    rates,
    stacked,
    worst_of,
    worst_rows,
)

MOST_ROWS: Final = 500_000
_ALERT: Final = ("device", "signal", "kind", "score", "value")
_UNITS: Final = {"temperature": "°C", "humidity": "%", "voltage": "V", "rssi": "dBm"}


def read_silver(lake: Path, source: str) -> Report:
    """Reads the tables, each of which may be missing. Blocks, a second or two for 100,000 readings."""
    rows = _newest(lake / "silver", "received_at")
    bad = _newest(lake / "silver_quarantine", "kafka_time", "reason")
    alerts = _newest(lake / "anomalies", "event_time", *_ALERT)
    absent = {
        "devices.state": "The job silver keeps no state of devices: gateway stream devices does.",
        "lost.audit": "The gateway's ledger was not compared with Kafka: gateway stream audit does that.",
    }
    report = Report(source, time.time(), absent=absent)
    if bad is None or bad.empty:
        absent["lost.quarantine"] = "No record is in quarantine."
    else:
        report.quarantine = _counted(bad, "reason", "kafka_time", 60)
    if rows is None or rows.empty:
        absent |= dict.fromkeys(("signals", "late", "throughput"), f"There are no readings in {lake}.")
        return report
    report.begin_s, report.end_s = rows.received_at.min(), rows.received_at.max()
    delays = rows.received_at - rows.device_time
    lost = _missing(rows)
    missing = sum(map(len, lost.values()))
    judged = alerts is not None
    if alerts is None:
        absent["signals.alerts"] = "The readings were not judged: gateway stream anomalies does that."
        alerts = pd.DataFrame(columns=["event_time", *_ALERT])
    report.signals = _signals(rows, alerts)
    report.findings = [
        Finding("readings", f"{len(rows):,}"),
        Finding("devices", f"{rows.device.nunique():,}"),
        Finding("alerts", f"{len(alerts):,}" if judged else NOT_JUDGED, not alerts.empty),
        Finding("in quarantine", f"{0 if bad is None else len(bad):,}", bad is not None and not bad.empty),
        Finding("missing numbers", f"{missing:,}", missing > 0),
        Finding("sent twice", f"{rows.duplicated(['device', 'seq']).sum():,}"),
        Finding("late by more than 5 min", f"{(delays > LATE_S).mean():.1%}"),
    ]
    report.offenders = _offenders(rows, lost, alerts)
    report.anomalies = _alert_table(alerts)
    of_length = pd.cut(delays, [-inf, *(end for _, end in LATENESS)], right=False, labels=[it for it, _ in LATENESS])
    report.lateness = of_length.value_counts(sort=False).to_dict()
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


def _newest(folder: Path, when: str, *more: str) -> pd.DataFrame | None:
    """The newest rows by the column ``when``, times as seconds since 1970; None if there is no table. ``more``: the
    other columns to read; none: all."""
    table = read_rows(str(folder), [when, *more] if more else None)
    if table is None:
        return None
    rows: pd.DataFrame = table.to_pandas().sort_values(when, ascending=False)[:MOST_ROWS]
    for name in rows.select_dtypes("datetimetz"):
        rows[name] = rows[name].dt.as_unit("us").astype("int64") / 1e6
    return rows


def _missing(rows: pd.DataFrame) -> dict[str, list[int]]:
    """Missing numbers of each device between its lowest and its highest."""
    numbers = {device: {*seqs.tolist()} for device, seqs in rows.groupby("device").seq}
    lost = {device: sorted({*range(min(seen), max(seen))} - seen) for device, seen in numbers.items()}
    return {device: gaps for device, gaps in lost.items() if gaps}


def _signals(rows: pd.DataFrame, alerts: pd.DataFrame) -> list[Signal]:
    """The signals to draw, worst first; without alerts one signal of two devices."""
    counts = alerts[alerts.signal.isin(rows.columns)].groupby(["device", "signal"]).size().to_dict()
    numbers = rows.drop(columns=[*RESERVED.intersection(rows.columns)]).select_dtypes("number")
    ordered, worst = rows.sort_values(["event_time", "seq"]), alerts.sort_values("score", ascending=False)
    drawn = []
    for device, name in worst_of(counts) or [
        (it, name) for it in rows.device.unique()[:2] for name in numbers.columns[:1]
    ]:
        mine = worst[(worst.device == device) & (worst.signal == name)]
        marks = [Mark(*it) for it in mine[["event_time", "value", "kind"]][:MOST_MARKS].itertuples(index=False)]
        points = _thinned(ordered[ordered.device == device][["event_time", name]].dropna())
        drawn.append(Signal(device, name, _UNITS.get(name, ""), points, marks, alerts=len(mine)))
    return drawn


def _thinned(values: pd.DataFrame) -> list[tuple[float, float, float, float]]:
    """At most :data:`MOST_POINTS` points with least, mean and greatest value."""
    size = max(1, -(-len(values) // MOST_POINTS))
    parts = values.set_axis(["at", "value"], axis=1).groupby([at // size for at in range(len(values))])
    points = parts.agg(at=("at", "first"), low=("value", "min"), mean=("value", "mean"), high=("value", "max"))
    return [*points.itertuples(index=False, name=None)]


def _offenders(rows: pd.DataFrame, lost: Mapping[str, list[int]], alerts: pd.DataFrame) -> Table | None:
    known = rows.groupby("device").agg(type=("type", "last"), seen=("received_at", "max"))
    alerted = Counter(alerts.device[alerts.device.isin(known.index)])
    missing = Counter({device: len(numbers) for device, numbers in lost.items()})
    both = alerted + missing  # a missing reading and a wrong one weigh the same
    return worst_rows(
        ("device", "type", "last reading received (UTC)", "alerts", "missing numbers"),
        [
            (it, known.type[it], moment(known.seen[it]), alerted[it], missing[it])
            for it in sorted(both, key=lambda device: (-both[device], device))
        ],
    )


def _alert_table(alerts: pd.DataFrame) -> Table | None:
    of_kind = alerts.fillna({"signal": ""}).groupby(["device", "signal", "kind"], as_index=False)
    groups = of_kind.agg(alerts=("score", "size"), score=("score", "max"), last=("event_time", "max"))
    worst = groups.sort_values("alerts", ascending=False, kind="stable")  # equal ones stay in the order of their names
    return worst_rows(
        ("device", "signal", "kind", "alerts", "highest score", "last (UTC)"),
        [(*row[:-1], moment(row[-1])) for row in worst.itertuples(index=False)],
    )


def _counted(rows: pd.DataFrame, label: str, received: str, most: int) -> Bars:
    width = bucket_s(rows[received].max() - rows[received].min(), most)
    counts = rows.groupby([label, rows[received] // width * width]).size()
    return stacked([(name, begin, count) for (name, begin), count in counts.items()], width)
