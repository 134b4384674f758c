"""A report from the lake's tables. All aggregation is Spark's; what comes to the driver is bounded, whatever the lake.

At most: 400 points for each of 12 signals, 50 marks on each; 200 stretches of time by 200 types, reasons or events;
25 rows of each table; 8 ranges of lateness.
"""

from __future__ import annotations

__all__ = ["read_lake"]

import time
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from streaming.lake import DeltaTable
from streaming.report_data import (
    MOST_MARKS,
    Bars,
    Finding,
    Health,
    Histogram,
    Mark,
    Report,
    Series,
    Signal,
    Table,
    bucket_s,
)
from streaming.report_facts import (
    LATENESS,
    MOST_POINTS,
    MOST_ROWS_SHOWN,
    MOST_SIGNALS,
    moment,
    stacked,
    worst_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from config.settings import StreamSettings

_STRETCHES: Final = 200
_MOST_LABELS: Final = 200
_LATE_S: Final = 300.0
_EVENT: Final = "(kind = 'silence' OR kind = 'stuck' OR run = 1)"
"""Of the alerts, those that begin something: a run of outliers is one event, and the level that ends it none."""
_JOBS: Final = {"silver_quarantine": "silver", "device_events": "devices"}


_BOUNDS: Final = (
    f"At most {MOST_SIGNALS} signals are drawn, those with most anomalies first, of {MOST_POINTS} points and"
    f" {MOST_MARKS} marks each; tables have {MOST_ROWS_SHOWN} rows, the worst first."
)


class _Reader:
    """The tables between two moments, and why those are absent that are."""

    def __init__(
        self,
        spark: SparkSession,
        stream: StreamSettings,
        since_s: float | None,
        until_s: float | None,
        device: str | None,
    ) -> None:
        self._spark, self._stream = spark, stream
        self._since_s, self._until_s, self._device = since_s, until_s, device
        self.absent: dict[str, str] = {}

    def table(self, name: str, section: str, when: str | None, *, by_device: bool = True) -> DataFrame | None:
        """The table's rows in the time asked for, by the column ``when``; None if it is missing."""
        table = DeltaTable(self._spark, self._stream, name)
        if not table.exists():
            self.absent[f"{section}.{name}"] = (
                f"There is no table {name} yet: gateway stream {_JOBS.get(name, name)} writes it."
            )
            return None
        rows = table.read()
        if when is not None and self._since_s is not None:
            rows = rows.where(_seconds(when) >= self._since_s)
        if when is not None and self._until_s is not None:
            rows = rows.where(_seconds(when) < self._until_s)
        if by_device and self._device is not None and "device" in rows.columns:
            rows = rows.where(F.col("device") == self._device)
        return rows

    def empty(self, name: str, section: str) -> None:
        self.absent[f"{section}.{name}"] = f"The table {name} has no rows in this time."


def read_lake(
    spark: SparkSession,
    stream: StreamSettings,
    source: str,
    *,
    since_s: float | None = None,
    until_s: float | None = None,
    device: str | None = None,
    units: Mapping[str, str | None] | None = None,
) -> Report:
    """Reads what there is between two moments, by when it was received, of one device or all. Blocks: a scan of silver
    for each of lateness, throughput and signals."""
    reader = _Reader(spark, stream, since_s, until_s, device)
    findings: list[Finding] = []
    silver = reader.table("silver", "throughput", "received_at")
    begin_s = end_s = None
    lateness = None
    throughput: list[Series] = []
    width_s = 60.0
    if silver is not None:
        facts = _facts(silver)
        if facts["readings"]:
            begin_s, end_s = float(facts["begin_s"]), float(facts["end_s"])
            width_s = float(bucket_s(end_s - begin_s, _STRETCHES))
            lateness = Histogram([label for label, _ in LATENESS], [facts[f"late{at}"] for at in range(len(LATENESS))])
            throughput = _throughput(silver, begin_s, end_s, width_s)
            findings += [
                Finding("readings", f"{facts['readings']:,}"),
                Finding("devices", f"{facts['devices']:,}"),
                Finding("late by more than 5 min", f"{facts['late'] / facts['readings']:.1%}"),
            ]
        else:
            reader.empty("silver", "throughput")
    health = _health(reader, findings)
    signals, alerts = _signals(reader, silver, units or {}, findings)
    quarantine = _quarantine(reader, findings)
    lost = _lost(reader, findings)
    audit = _audit(reader, findings)
    return Report(
        source,
        time.time(),
        begin_s,
        end_s,
        findings=findings,
        health=health,
        signals=signals,
        anomalies=alerts,
        lateness=lateness,
        quarantine=quarantine,
        lost=lost,
        audit=audit,
        throughput=throughput,
        throughput_s=width_s,
        absent=reader.absent,
        bounds=(_BOUNDS,),
    )


def _seconds(column: str) -> Column:
    return F.unix_micros(F.col(column)) / 1e6


def _facts(silver: DataFrame) -> dict[str, Any]:
    """Everything that one pass over silver can tell."""
    delay = _seconds("received_at") - _seconds("device_time")
    lower = float("-inf")
    counts = []
    for at, (_, upper) in enumerate(LATENESS):
        inside = (delay >= lower) & (delay < upper)
        counts.append(F.count(F.when(inside, 1)).alias(f"late{at}"))
        lower = upper
    found = silver.agg(
        F.count(F.lit(1)).alias("readings"),
        F.approx_count_distinct("device", 0.01).alias("devices"),
        F.min(_seconds("received_at")).alias("begin_s"),
        F.max(_seconds("received_at")).alias("end_s"),
        F.count(F.when(delay > _LATE_S, 1)).alias("late"),
        *counts,
    ).first()
    assert found is not None
    return found.asDict()


def _by_time(rows: DataFrame, label: str, when: str, width_s: float) -> list[tuple[str, float, float]]:
    """Label, begin and count of stretches of time; bounded by labels and stretches."""
    begin = (F.floor(_seconds(when) / width_s) * width_s).alias("begin_s")
    counted = (
        rows.groupBy(F.coalesce(F.col(label), F.lit("none")).alias("label"), begin)
        .agg(F.count(F.lit(1)).alias("count"))
        .orderBy(F.desc("count"))
        .limit(_STRETCHES * _MOST_LABELS)
    )
    return [(row["label"], float(row["begin_s"]), float(row["count"])) for row in counted.collect()]


def _throughput(silver: DataFrame, begin_s: float, end_s: float, width_s: float) -> list[Series]:
    bars = stacked(_by_time(silver, "type", "received_at", width_s), width_s)
    first, last = begin_s // width_s * width_s, end_s // width_s * width_s
    steps = [first + number * width_s for number in range(round((last - first) / width_s))] or [first]
    return [
        Series(kind, [(step, dict(points).get(step, 0.0) / width_s) for step in steps])
        for kind, points in bars.stacks.items()
    ]


def _span(rows: DataFrame, when: str) -> tuple[float, float] | None:
    found = rows.agg(F.min(_seconds(when)), F.max(_seconds(when))).first()
    return None if found is None or found[0] is None else (float(found[0]), float(found[1]))


def _bars(rows: DataFrame, label: str, when: str) -> Bars | None:
    span = _span(rows, when)
    if span is None:
        return None
    width_s = float(bucket_s(span[1] - span[0], 60))
    return stacked(_by_time(rows, label, when, width_s), width_s)


def _health(reader: _Reader, findings: list[Finding]) -> Health | None:
    devices = reader.table("devices", "devices", None)
    happened = reader.table("device_events", "devices", "at")
    events = None if happened is None else _bars(happened, "event", "at")
    if happened is not None and events is None:
        reader.empty("device_events", "devices")
    if devices is None:
        return None if events is None else Health({}, None, events)
    states = {row["state"]: row["count"] for row in devices.groupBy("state").count().orderBy(F.desc("count")).collect()}
    if not states:
        reader.empty("devices", "devices")
        return Health({}, None, events)
    offline = states.get("offline", 0)
    findings.append(Finding("offline", f"{offline:,}", offline > 0))
    bad = devices.where("state <> 'online' OR flapping OR missing > 0")
    columns = ("device", "type", "site", "state", "last_seen_s", "transitions", "gaps", "missing")
    worst = (
        bad.withColumn("last_seen_s", _seconds("last_seen"))
        .orderBy(
            F.col("flapping").desc(), (F.col("state") == "offline").desc(), F.col("missing").desc(), F.col("device")
        )
        .select(*columns)
        .limit(MOST_ROWS_SHOWN)
        .collect()
    )
    offenders = Table(
        ("device", "type", "site", "state", "last seen (UTC)", "transitions", "gaps", "missing"),
        [
            (row[0], row[1], row[2], row[3], None if row[4] is None else moment(float(row[4])), row[5], row[6], row[7])
            for row in worst
        ],
        total=bad.count() if len(worst) == MOST_ROWS_SHOWN else len(worst),
    )
    return Health(states, offenders if worst else None, events)


def _signals(
    reader: _Reader, silver: DataFrame | None, units: Mapping[str, str | None], findings: list[Finding]
) -> tuple[list[Signal], Table | None]:
    alerts = reader.table("anomalies", "signals", "event_time")
    if alerts is None:
        return [], None
    events = alerts.where(_EVENT)
    groups = (
        events.groupBy("device", "signal", "kind")
        .agg(
            F.count(F.lit(1)).alias("events"), F.max("score").alias("score"), F.max(_seconds("event_time")).alias("at")
        )
        .orderBy(F.desc("events"), "device", "signal")
    )
    top = groups.limit(10 * MOST_ROWS_SHOWN).collect()
    if not top:
        reader.absent["signals.anomalies"] = "The table anomalies has no rows in this time: nothing was found."
        findings.append(Finding("anomalies", "0"))
        return [], None
    total = events.count()
    findings.append(Finding("anomalies", f"{total:,}", total > 0))
    table = Table(
        ("device", "signal", "kind", "times", "highest score", "last (UTC)"),
        [
            (row["device"], row["signal"], row["kind"], row["events"], float(row["score"]), moment(float(row["at"])))
            for row in top[:MOST_ROWS_SHOWN]
        ],
        total=groups.count() if len(top) == 10 * MOST_ROWS_SHOWN else len(top),
    )
    counts: dict[tuple[str, str], int] = {}
    for row in top:
        if row["signal"] is not None:
            key = row["device"], row["signal"]
            counts[key] = counts.get(key, 0) + row["events"]
    drawn = []
    for name, signal in worst_of(counts):
        if silver is not None and signal in silver.columns:
            drawn.append(_signal(silver, alerts, name, signal, units.get(signal) or "", counts[name, signal]))
    return drawn, table


def _signal(silver: DataFrame, alerts: DataFrame, device: str, signal: str, unit: str, events: int) -> Signal:
    """One signal, downsampled by Spark to :data:`MOST_POINTS` stretches of its own time."""
    mine = silver.where((F.col("device") == device) & F.col(signal).isNotNull())
    span = _span(mine, "event_time")
    points: list[tuple[float, float, float, float]] = []
    if span is not None:
        width_s = max((span[1] - span[0]) / (MOST_POINTS - 1), 1e-6)
        at = F.floor((_seconds("event_time") - span[0]) / width_s)
        value = F.col(signal).cast("double")
        rows = (
            mine.groupBy(at.alias("at"))
            .agg(F.min(_seconds("event_time")).alias("s"), F.min(value), F.avg(value), F.max(value))
            .orderBy("at")
            .collect()
        )
        points = [(float(row[1]), row[2], row[3], row[4]) for row in rows]
    marks = (
        alerts.where((F.col("device") == device) & (F.col("signal") == signal))
        .orderBy(F.desc("score"))
        .select(_seconds("event_time"), "value", "kind")
        .limit(MOST_MARKS)
        .collect()
    )
    return Signal(device, signal, unit, points, [Mark(float(row[0]), row[1], row[2]) for row in marks], events)


def _quarantine(reader: _Reader, findings: list[Finding]) -> Bars | None:
    rows = reader.table("silver_quarantine", "lost", "kafka_time", by_device=False)
    if rows is None:
        return None
    bars = _bars(rows, "reason", "kafka_time")
    if bars is None:
        reader.absent["lost.silver_quarantine"] = "No record of this time is in quarantine."
        return None
    total = round(sum(count for points in bars.stacks.values() for _, count in points))
    findings.append(Finding("in quarantine", f"{total:,}", total > 0))
    return bars


def _lost(reader: _Reader, findings: list[Finding]) -> Table | None:
    devices = reader.table("devices", "lost", None)
    if devices is None:
        return None
    bad = devices.where("missing > 0")
    totals = bad.agg(F.count(F.lit(1)), F.sum("missing")).first()
    assert totals is not None
    if not totals[0]:
        reader.absent["lost.devices"] = "No device's sequence numbers have a gap."
        return None
    findings.append(Finding("missing numbers", f"{totals[1]:,}", bad=True))
    worst = bad.orderBy(F.desc("missing"), "device").select("device", "site", "missing", "gaps").limit(MOST_ROWS_SHOWN)
    return Table(("device", "site", "missing numbers", "gaps"), [tuple(r) for r in worst.collect()], total=totals[0])


def _audit(reader: _Reader, findings: list[Finding]) -> Table | None:
    rows = reader.table("audit", "lost", "minute", by_device=False)
    if rows is None:
        return None
    wrong = rows.where("missing > 0 OR unaccounted > 0")
    count = wrong.count()
    findings.append(Finding("ledger differences", f"{count:,}", count > 0))
    if not count:
        reader.absent["lost.audit"] = "The gateway's ledger and Kafka agree in every minute that was judged."
        return None
    columns = (
        "gateway",
        "route",
        "topic",
        "partition",
        "minute_s",
        "acknowledged",
        "present",
        "missing",
        "unaccounted",
    )
    worst = (
        wrong.withColumn("minute_s", _seconds("minute"))
        .orderBy(F.desc(F.col("missing") + F.col("unaccounted")), "minute")
        .select(*columns)
        .limit(MOST_ROWS_SHOWN)
        .collect()
    )
    return Table(
        ("gateway", "route", "topic", "partition", "minute (UTC)", *columns[5:]),
        [(*row[:4], moment(float(row[4]))[:-3], *row[5:]) for row in worst],
        total=count,
    )
