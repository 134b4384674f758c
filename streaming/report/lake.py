"""The tool ``report``: one HTML file about the lake's tables.

    gateway stream report --output report.html --from 2026-11-20 --to 2026-11-21T06:00 --device oslo-meter-0004

All aggregation is Spark's; what comes to the driver is bounded by the constants below, whatever the lake. A table
without a row of loss says nothing of readings that its job has not looked at. They are "not judged".
"""

import time
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from config.errors import ConfigError, ExitStatus
from config.numbers import length_text
from config.settings import Settings, StreamSettings
from streaming import lake_tables
from streaming.decoding.device_schemas import load_device_schemas
from streaming.errors import tell
from streaming.lake.lake import DeltaTable
from streaming.lake.storage import Folder, location
from streaming.report.page import Figure, Finding, Report, Table, moment, write_page
from streaming.report.plots import MOST_LABELS, Bars, Histogram, Lines, Plot, Point, Signal
from streaming.runtime.checkpoint_log import read_progress

MOST_SIGNALS: Final = 12
_MOST_MARKS: Final = 50  # on one signal's plot
_MOST_POINTS: Final = 400  # of a line, whatever time it is over: a page is no wider
_MOST_ROWS: Final = 25
_MOST_KINDS: Final = 200  # types, reasons or events
_STRETCHES: Final = 200  # of time
LATENESS: Final = {
    "in the future": 0.0, "under 1 s": 1.0, "1 s to 10 s": 10.0, "10 s to 1 min": 60.0, "1 min to 10 min": 600.0,
    "10 min to 1 h": 3600.0, "1 h to 1 day": 86_400.0, "over 1 day": inf,
}  # fmt: skip
"""Ranges of the time between a device's clock and the gateway's, and where each ends in seconds."""
_LATE_S: Final = 300.0
_LATEST_S: Final = 220_000_000_000
"""In the year 8941: a drawing has to end before the year 10,000, with its last bar and a margin. A producer may say any
time."""
_NICE_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
                  604_800)  # fmt: skip
_JOBS: Final = {"silver_quarantine": "silver", "device_events": "devices"}
_BOUNDS: Final = (
    (
        f"At most {MOST_SIGNALS} signals are drawn, those with most anomalies first, of {_MOST_POINTS} points and"
        f" {_MOST_MARKS} marks each; tables have {_MOST_ROWS} rows, the worst first."
    ),
    "Records in Kafka that silver has not read yet are not judged here: gateway stream status counts them.",
)


def read_lake(
    spark: SparkSession,
    stream: StreamSettings,
    *,
    since_s: float | None = None,
    until_s: float | None = None,
    device: str | None = None,
) -> Report:
    """Reads what there is between two moments, by when it was received, of one device or all. Blocks: a scan of silver
    for each of lateness, throughput and signals."""
    catalog = stream.lake.catalog
    source = f"the catalog {catalog}" if catalog else f"the lake {location(stream.lake.path)}"
    report = Report(time.time(), f"Read from {source}", bounds=[*_BOUNDS])
    if device is not None:
        report.about = f"Only the device {device}. {report.about}"
        report.bounds.append("Quarantine, ledger and losses in Kafka are those of all devices.")
    if since_s is not None or until_s is not None:
        report.bounds.append("The devices' states and missing numbers are the newest that there are.")
    lake = _Lake(spark, stream, report, since_s, until_s, device)
    silver = lake.table("silver", "throughput", "received_at")
    begin_s = None if silver is None else _readings(lake, silver)
    if begin_s is None:
        report.about = f"no readings. {report.about}"
    _devices(lake)
    _signals(lake, silver, begin_s)
    _quarantine(lake, begin_s)
    _deleted(lake)
    _lost(lake)
    _audit(replace(lake, device=None))
    return report


@dataclass(frozen=True, slots=True)
class _Lake:
    """The tables to read, and the report that each of the functions below puts its part into."""

    spark: SparkSession
    stream: StreamSettings
    report: Report
    since_s: float | None
    until_s: float | None
    device: str | None

    def table(self, name: str, section: str, when: str | None) -> DataFrame | None:
        """The table's rows in the time asked for, by the column ``when``; None if it is missing, which is said."""
        table = DeltaTable(self.spark, self.stream, name)
        if not table.exists():
            job = _JOBS.get(name, name)
            self.report.absent[f"{section}.{name}"] = f"There is no table {name} yet: gateway stream {job} writes it."
            return None
        rows = table.read()
        # The column itself is compared: by a function of it no file would be passed over.
        if when is not None and self.since_s is not None:
            rows = rows.where(F.col(when) >= _timestamp(self.since_s))
        if when is not None and self.until_s is not None:
            rows = rows.where(F.col(when) < _timestamp(self.until_s))
        if when is not None:
            rows = rows.withColumn(when, F.least(when, _timestamp(_LATEST_S)))
        if self.device is not None and "device" in rows.columns:
            rows = rows.where(F.col("device") == self.device)
        return rows

    def empty(self, name: str, section: str) -> None:
        self.report.absent[f"{section}.{name}"] = f"The table {name} has no rows in this time."

    def show(self, name: str, title: str, look_for: str, shown: Table | Plot | None) -> None:
        if shown is not None:
            self.report.parts[name] = Figure(title, look_for, shown)

    def found(self, label: str, count: int, left: str | None, about: str) -> None:
        """A number of what is bad. None found is said only where all was looked at: ``left`` says what was not."""
        if left is not None:
            self.report.absent[about] = left
        value = f"{count:,}" if count or left is None else "not judged"
        self.report.findings.append(Finding(label, value, count > 0))

    def left_of_silver(self, job: str) -> str | None:
        """What of silver the job has not judged, as a sentence; None if it has judged all, or there is no silver.
        Blocks for the tables' logs."""
        left = lake_tables.unread_silver(self.spark, self.stream, job)
        return left and f"Not judged: {left}"

    def left_by_retention(self, name: str, begin_s: float | None) -> str | None:
        """That rows of the table may have been deleted that were of this time, as a sentence; None if none were.
        ``begin_s``: when the first reading was received, if there is one."""
        kept, begin_s = getattr(self.stream.lake.retention, name), begin_s if self.since_s is None else self.since_s
        if kept is None:
            return None
        first_s = (self.report.made_at_s - kept.total_seconds()) // 86_400 * 86_400
        if begin_s is not None and begin_s >= first_s:
            return None
        return f"Not judged: {name} from before {moment(first_s)} UTC are not kept (stream.lake.retention.{name})."

    def ended_s(self, job: str) -> float | None:
        """When the job finished its last batch; None before the first."""
        return read_progress(Folder(self.spark, location(self.stream.checkpoint)), job).finished_at_s


def _only(rows: DataFrame) -> Row:
    (row,) = rows.collect()
    return row


def _timestamp(at_s: float) -> Column:
    return F.timestamp_micros(F.lit(round(at_s * 1e6)))


def _seconds(column: str) -> Column:
    return F.unix_micros(F.col(column)) / 1e6


def _span(rows: DataFrame, when: str) -> tuple[float, float] | None:
    first, last = _only(rows.agg(F.min(_seconds(when)), F.max(_seconds(when))))
    return None if first is None else (first, last)


def bucket_s(span_s: float, most: int) -> int:
    """The shortest round length that cuts a span of time into at most ``most`` pieces."""
    return next((nice for nice in _NICE_S if span_s / nice <= most), max(1, round(span_s / most)))


def stacked(counted: Iterable[tuple[str, float, int]]) -> dict[str, list[Point]]:
    """Counts by label and begin, the largest label first; what has no colour of its own is ``others``."""
    found: defaultdict[str, Counter[float]] = defaultdict(Counter)
    for label, begin, count in counted:
        found[label][begin] += count
    names = sorted(found, key=lambda label: (-found[label].total(), label))
    own = names if len(names) <= MOST_LABELS else names[: MOST_LABELS - 1]
    stacks: defaultdict[str, Counter[float]] = defaultdict(Counter)
    for label in names:
        stacks[label if label in own else "others"].update(found[label])
    return {label: sorted(points.items()) for label, points in stacks.items()}


def rates(
    counts: Mapping[str, Iterable[Point]], width_s: float, begin_s: float, end_s: float
) -> dict[str, list[Point]]:
    """Counts as rates a second, 0 for none; without the first and the last stretch where they are not whole,
    if there are others."""
    first, last = -(-begin_s // width_s) * width_s, end_s // width_s * width_s
    steps = [first + at * width_s for at in range(round((last - first) / width_s))] or [begin_s // width_s * width_s]
    by_label = {label: dict(points) for label, points in counts.items()}
    return {label: [(step, points.get(step, 0.0) / width_s) for step in steps] for label, points in by_label.items()}


def _by_time(rows: DataFrame, label: str, when: str, width_s: float) -> dict[str, list[Point]]:
    """Counts of stretches of time by label; bounded by labels and stretches."""
    begin = (F.floor(_seconds(when) / width_s) * width_s).alias("begin_s")
    counted = rows.groupBy(F.coalesce(F.col(label), F.lit("none")).alias("label"), begin).count()
    return stacked(counted.orderBy(F.desc("count")).limit(_STRETCHES * _MOST_KINDS).collect())


def _bars(rows: DataFrame, label: str, when: str, unit: str) -> Bars | None:
    if (span := _span(rows, when)) is None:
        return None
    width_s = float(bucket_s(span[1] - span[0], 60))
    return Bars(width_s, _by_time(rows, label, when, width_s), unit)


def _worst(rows: DataFrame, columns: Sequence[str], *order: Column) -> Table | None:
    """The first rows in an order; ``columns`` in SQL, named as on the page."""
    chosen = rows.orderBy(*order).selectExpr(*columns).limit(_MOST_ROWS)
    first = chosen.collect()
    total = rows.count() if len(first) == _MOST_ROWS else len(first)
    return Table(chosen.columns, [tuple(row) for row in first], total) if first else None


def _second(column: str, head: str) -> str:
    return f"date_format({column}, 'yyyy-MM-dd HH:mm:ss') AS `{head} (UTC)`"


def _readings(lake: _Lake, silver: DataFrame) -> float | None:
    """Everything that one pass over silver can tell, and the throughput. Returns when the first was received."""
    delay = _seconds("received_at") - _seconds("device_time")
    ranges = pairwise([("", -inf), *LATENESS.items()])
    facts = _only(
        silver.agg(
            F.count(F.lit(1)).alias("readings"),
            F.count_distinct("device").alias("devices"),
            F.min(_seconds("received_at")).alias("begin_s"),
            F.max(_seconds("received_at")).alias("end_s"),
            F.count_if(delay > _LATE_S).alias("late"),
            *(F.count_if((delay >= begin) & (delay < end)).alias(label) for (_, begin), (label, end) in ranges),
        )
    )
    if not facts.readings:
        lake.empty("silver", "throughput")
        return None
    begin_s, end_s = facts.begin_s, facts.end_s
    lake.show(
        "late.lateness",
        "From the device's clock to the gateway",
        "Long bars below the first minute are devices or sites that were offline and sent later. A clock that is ahead"
        " measures in the future.",
        Histogram({label: facts[label] for label in LATENESS}, "readings", "received after"),
    )
    width_s = float(bucket_s(end_s - begin_s, _STRETCHES))
    counts = _by_time(silver, "type", "received_at", width_s)
    lake.show(
        "throughput.readings",
        "Readings received",
        "A gap in all lines is an outage of everything, a gap in one line of that type's devices or route; each point"
        f" is the mean of {length_text(width_s)}.",
        Lines(rates(counts, width_s, begin_s, end_s), "readings/s"),
    )
    lake.report.findings += [
        Finding("readings", f"{facts.readings:,}"),
        Finding("devices", f"{facts.devices:,}"),
        Finding("late by more than 5 min", f"{facts.late / facts.readings:.1%}"),
    ]
    span = f"from {moment(begin_s)} to {moment(end_s)} UTC ({length_text(end_s - begin_s)})"
    lake.report.about = f"Readings received {span}. {lake.report.about}"
    return float(begin_s)


def _devices(lake: _Lake) -> None:
    devices = lake.table("devices", "devices", None)
    happened = lake.table("device_events", "devices", "at")
    states: dict[str, int] = {}
    if devices is not None:
        states = dict(devices.groupBy("state").count().orderBy(F.desc("count")).collect())
    if states:
        told = ", ".join(f"{count:,} {state}" for state, count in states.items())
        lake.report.parts["devices.states"] = f"{sum(states.values()):,} devices: {told}."
    if happened is not None:
        events = _bars(happened, "event", "at", "events")
        look_for = "Many offline at one moment point to a gateway or a site; the same device again and again to its own"
        lake.show("devices.events", "Events of devices over time", f"{look_for} link.", events)
        if events is None:
            lake.empty("device_events", "devices")
    if devices is None:
        return
    if not states:
        lake.empty("devices", "devices")
        return
    left, ended_s = lake.left_of_silver("devices"), lake.ended_s("devices")
    # While it runs, it finishes one with every trigger. Of those that fell silent since, nobody has taken note.
    offline_after_s = lake.stream.devices.offline_after.total_seconds()
    if left is None and ended_s is not None and lake.report.made_at_s - ended_s > offline_after_s:
        left = f"Not judged: the job devices finished its last batch at {moment(ended_s)} UTC."
    lake.found("offline", states.get("offline", 0), left, "devices.left")
    offenders = _worst(
        devices.where("state <> 'online' OR flapping OR missing > 0"),
        ("device", "type", "site", "state", _second("last_seen", "last seen"), "transitions", "gaps", "missing"),
        F.desc("flapping"),
        (F.col("state") == "offline").desc(),
        F.desc("missing"),
        F.col("device"),
    )
    lake.show("devices.offenders", "Devices to look at first", "Worst at the top.", offenders)


def _signals(lake: _Lake, silver: DataFrame | None, begin_s: float | None) -> None:  # begin_s: of readings
    alerts = lake.table("anomalies", "signals", "event_time")
    if alerts is None:
        return
    counted = "count(1) AS times", "max(score) AS `highest score`", _second("max(event_time)", "last")
    groups = alerts.groupBy("device", "signal", "kind").agg(*map(F.expr, counted))
    groups = groups.orderBy(F.desc("times"), "device", "signal")
    top = groups.limit(10 * _MOST_ROWS).collect()
    left = lake.left_of_silver("anomalies") or lake.left_by_retention("anomalies", begin_s)
    if left is None and begin_s is None:
        left = "Not judged: silver has no readings of this time."
    lake.found("anomalies", alerts.count() if top else 0, left, "signals.left")
    if not top:
        lake.empty("anomalies", "signals")
        return
    counts: Counter[tuple[str, str]] = Counter()
    for row in top:
        if row.signal is not None:
            counts[row.device, row.signal] += row.times
    known = load_device_schemas(lake.stream.silver.schemas).signals
    for number, (device, signal) in enumerate(worst_of(counts)):
        if silver is not None and signal in silver.columns:
            unit = known[signal].unit if signal in known else ""
            plot = _signal(silver, alerts, device, signal, f"{signal} ({unit})" if unit else signal)
            times = "once" if counts[device, signal] == 1 else f"{counts[device, signal]:,} times"
            more = f" (the {_MOST_MARKS} worst readings are marked)" if len(plot.marks) == _MOST_MARKS else ""
            look_for = (
                f"Anomalous {times}{more}. A single mark far from the others is a wrong reading; a row of them is a"
                " change of level."
            )
            lake.show(f"signals.{number}", f"{device}: {signal}", look_for, plot)
    total = groups.count() if len(top) == 10 * _MOST_ROWS else len(top)
    lake.show(
        "signals.anomalies",
        "Alerts by device and signal",
        "A device with alerts on all of its signals has one fault.",
        Table(groups.columns, [tuple(row) for row in top[:_MOST_ROWS]], total),
    )


def worst_of(alerts: Mapping[tuple[str, str], int]) -> list[tuple[str, str]]:
    """Device and signal of the most alerts, :data:`MOST_SIGNALS` of them; of one signal at most a third, while there
    are others, or one kind of fault would fill the page."""
    ordered = sorted(alerts, key=lambda key: (-alerts[key], key))
    taken: Counter[str] = Counter()
    is_surplus = {}
    for key in ordered:
        taken[key[1]] += 1
        is_surplus[key] = taken[key[1]] > MOST_SIGNALS // 3
    chosen = sorted(ordered, key=lambda key: is_surplus[key])[:MOST_SIGNALS]
    return [key for key in ordered if key in chosen]


def _signal(silver: DataFrame, alerts: DataFrame, device: str, signal: str, label: str) -> Signal:
    """One signal, downsampled by Spark to :data:`_MOST_POINTS` stretches of its own time."""
    mine = silver.where((F.col("device") == device) & F.col(signal).isNotNull())
    points: list[tuple[float, float, float, float]] = []
    if (span := _span(mine, "event_time")) is not None:
        width_s = max((span[1] - span[0]) / (_MOST_POINTS - 1), 1e-6)
        at = F.floor((_seconds("event_time") - span[0]) / width_s).alias("at")
        value = F.col(signal).cast("double")
        means = mine.groupBy(at).agg(F.min(_seconds("event_time")), F.min(value), F.avg(value), F.max(value))
        points = [tuple(row)[1:] for row in means.orderBy("at").collect()]
    marks = (
        alerts.where((F.col("device") == device) & (F.col("signal") == signal))
        .orderBy(F.desc("score"))
        .select(_seconds("event_time"), "value", "kind")
        .limit(_MOST_MARKS)
    )
    return Signal(label, points, [tuple(row) for row in marks.collect()])


def _quarantine(lake: _Lake, begin_s: float | None) -> None:
    rows = lake.table("silver_quarantine", "lost", "kafka_time")
    if rows is None:
        return
    bars = _bars(rows, "reason", "kafka_time", "records")
    if bars is None:
        left = lake.left_by_retention("silver_quarantine", begin_s)
        lake.report.absent["lost.silver_quarantine"] = left or "No record of this time is in quarantine."
        return
    look_for = "A new reason at one moment is a change of firmware; a steady few are single devices."
    lake.show("lost.quarantine", "Records in quarantine by reason", look_for, bars)
    total = sum(count for points in bars.stacks.values() for _, count in points)
    lake.report.findings.append(Finding("in quarantine", f"{total:,}", bad=True))


def _deleted(lake: _Lake) -> None:
    """What Kafka no longer had when bronze came to read it, by when that was seen."""
    absent = lake.report.absent
    if not DeltaTable(lake.spark, lake.stream, "bronze").exists():
        absent["lost.bronze_gaps"] = (
            "Not judged: what Kafka deletes before it is read is noticed by gateway stream bronze, which has no table."
        )
        return
    rows = lake.table("bronze_gaps", "lost", "seen_at")  # it is made with the first gap
    # Of a range without an end nobody knows how much it was: one, as in the metric.
    sums = "sum(coalesce(last_offset - first_offset + 1, 1))", "count_if(last_offset IS NULL)"
    records, unknown = (None, 0) if rows is None else _only(rows.selectExpr(*sums))
    if rows is None or records is None:
        absent["lost.bronze_gaps"] = _looked_at_by_bronze(lake)
        return
    lake.report.findings.append(Finding("lost in Kafka", f"{records:,}{' or more' if unknown else ''}", bad=True))
    deleted = _worst(
        rows,
        ("topic", "partition", "first_offset AS `first offset`", "last_offset AS `last offset`", "reason",
         _second("seen_at", "seen")),
        F.desc("seen_at"), F.col("topic"), F.col("partition"), F.col("first_offset"),
    )  # fmt: skip
    lake.show(
        "lost.deleted",
        "Records that Kafka no longer had when bronze read on",
        "Retention is shorter than the job was away, or a topic was made anew.",
        deleted,
    )


def _looked_at_by_bronze(lake: _Lake) -> str:
    """In which part of this time bronze would have met a loss, which it has not. What it meets after a stop may be
    of any moment before."""
    bronze, gaps = (DeltaTable(lake.spark, lake.stream, name) for name in ("bronze", "bronze_gaps"))
    if (end_s := lake.ended_s("bronze")) is None:
        return "Not judged: the job bronze has not finished its first batch."
    (begin_s,) = _only(lake.spark.sql(f"DESCRIBE DETAIL {bronze.sql_name}").select(_seconds("createdAt")))
    first_s, last_s = max(begin_s, lake.since_s or 0), min(end_s, lake.until_s or inf)
    if first_s >= last_s:
        return f"Not judged: bronze began at {moment(begin_s)} and finished its last batch at {moment(end_s)} UTC."
    if gaps.exists() and not gaps.read().where(F.col("seen_at") >= _timestamp(last_s)).isEmpty():
        return "Not judged: what bronze met after this time that Kafka had deleted, which may be of this time."
    return (
        f"From {moment(first_s)} to {moment(last_s)} UTC bronze has met no record that Kafka deleted before it was"
        " read. Other times are not judged."
    )


def _lost(lake: _Lake) -> None:
    devices = lake.table("devices", "lost", None)
    if devices is None:
        return
    sums = devices.selectExpr("count(1)", "count(seq_last)", "sum(CAST(missing AS decimal(38)))")
    total, numbered, missing = _only(sums)
    left = lake.left_of_silver("devices")
    if left is None and not numbered:
        left = f"Not judged: of {total:,} devices none numbers its messages."
    lake.found("missing numbers", missing or 0, left, "lost.left")
    columns = ("device", "site", "missing AS `missing numbers`", "gaps")
    lost = _worst(devices.where("missing > 0"), columns, F.desc("missing"), F.col("device"))
    look_for = "Numbers a device has counted past; its own messages, lost before Kafka or still under way."
    lake.show("lost.numbers", "Sequence numbers that never came", look_for, lost)
    if lost is None and left is None:
        wait_s = lake.stream.devices.gap_after.total_seconds()
        lake.report.absent["lost.devices"] = (
            f"Of {total:,} devices {numbered:,} number their messages, and none of these has a gap of more than"
            f" {wait_s:g} s."
        )


def _audit(lake: _Lake) -> None:  # of all devices
    rows = lake.table("audit", "lost", "minute")
    if rows is None:
        return
    wrong = rows.where("missing > 0 OR unaccounted > 0")
    count = wrong.count()
    received = lake.table("silver", "throughput", "received_at")
    if received is None and (bronze := lake.table("bronze", "lost", "timestamp")) is not None:
        received = bronze.withColumnRenamed("timestamp", "received_at")
    lake.found("ledger differences", count, _left_by_audit(rows, received), "lost.audit_left")
    whole = rows.groupBy("minute").agg(F.sum(F.col("open") + F.col("expired")).alias("left")).where("left = 0")
    if minutes := 0 if count else whole.count():
        lake.report.absent["lost.audit"] = (
            f"The gateway's ledger and Kafka agree in all {minutes:,} minutes of this time that were judged."
        )
    differences = _worst(
        wrong,
        ("gateway", "route", "topic", "partition", "date_format(minute, 'yyyy-MM-dd HH:mm') AS `minute (UTC)`",
         "acknowledged", "present", "missing", "unaccounted"),
        F.desc(F.col("missing") + F.col("unaccounted")), F.col("minute"),
    )  # fmt: skip
    look_for = "A difference is to be explained, whatever it is."
    lake.show("lost.audit", "The gateway's ledger against Kafka", look_for, differences)


def _left_by_audit(rows: DataFrame, received: DataFrame | None) -> str | None:
    """What the audit has not judged of the time that its rows are of; None if it has judged all. ``received``: silver,
    or bronze without it."""
    judged, unread, expired = _only(rows.selectExpr("count(1)", "sum(open)", "sum(expired)"))
    if not judged:
        return "Not judged: the table audit has no minute of this time."
    said = []
    if received is None:
        said.append("minutes that the audit does not have, which only silver or bronze would show")
    else:
        minute = F.date_trunc("minute", "received_at").alias("minute")
        left = received.select(minute).distinct().join(rows.select("minute").distinct(), "minute", "left_anti")
        count, first, last = _only(left.agg(F.count(F.lit(1)), F.min(_seconds("minute")), F.max(_seconds("minute"))))
        if count:
            said.append(f"{count:,} minutes with readings, from {moment(first)} to {moment(last)} UTC")
    if unread:
        said.append(f"{unread:,} acknowledged records that the audit has not read yet")
    if expired:
        said.append(f"{expired:,} acknowledged records that Kafka deleted before the audit read them")
    return f"Not judged: {'; '.join(said)}." if said else None


def run(spark: SparkSession, settings: Settings, arguments: Namespace) -> int:
    """Reads the tables, writes the page and prints its path. Returns the exit status: 4 if there was nothing to read.
    Raises ConfigError for an empty stretch of time, or a file that cannot be written."""
    since_s, until_s = (None if ms is None else ms / 1000 for ms in (arguments.since_ms, arguments.until_ms))
    if since_s is not None and until_s is not None and since_s >= until_s:
        raise ConfigError("--from is not before --to, so there is no time to report on.")
    report = read_lake(spark, settings.stream, since_s=since_s, until_s=until_s, device=arguments.device)
    path = write_page(report, arguments.file)
    print(path)  # noqa: T201 (standard output is the tool's product)
    if not report.findings:
        where = location(settings.stream.lake.path)
        tell(f"Nothing was found to report on: no tables, or no rows of that time, in {where}.")
    return ExitStatus.OK if report.findings else ExitStatus.NOT_FOUND
