"""The tool ``report``: one HTML file about the lake's tables.

    gateway stream report --output report.html --from 2026-11-20 --to 2026-11-21T06:00 --device oslo-meter-0004

All aggregation is Spark's; what comes to the driver is bounded, whatever the lake.

At most: 400 points for each of 12 signals, 50 marks on each; 200 stretches of time by 200 types, reasons or events;
25 rows of each table; 8 ranges of lateness.

A table without a row of loss says nothing of readings that its job has not looked at. They are "not judged".
"""

import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from config.errors import ConfigError, ExitStatus
from config.settings import Settings, StreamSettings
from streaming.decoding.device_schemas import load_device_schemas
from streaming.lake.lake import DeltaTable
from streaming.lake.storage import Folder, location
from streaming.report.data import (
    LATE_S,
    LATENESS,
    MOST_MARKS,
    MOST_POINTS,
    MOST_ROWS_SHOWN,
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
    rates,
    stacked,
    worst_of,
)
from streaming.report.page import write_page
from streaming.runtime.checkpoint_log import read_progress

_STRETCHES: Final = 200
_LATEST_S: Final = 220_000_000_000
"""In the year 8941: a drawing has to end before the year 10,000, with its last bar and a margin. A producer may say any
time."""
_MOST_LABELS: Final = 200
_EVENT: Final = "(kind = 'silence' OR kind = 'stuck' OR run = 1)"
"""Of the alerts, those that begin something: earlier versions wrote each outlier of a run, numbered by ``run``."""
_JOBS: Final = {"silver_quarantine": "silver", "device_events": "devices"}
_ADDED: Final = ("numOutputRows", "numTargetRowsInserted", "numTargetRowsUpdated")
_BOUNDS: Final = (
    (
        f"At most {MOST_SIGNALS} signals are drawn, those with most anomalies first, of {MOST_POINTS} points and"
        f" {MOST_MARKS} marks each; tables have {MOST_ROWS_SHOWN} rows, the worst first."
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
    report = Report(source, time.time(), device=device, bounds=_BOUNDS)
    if device is not None:
        report.bounds = (*report.bounds, "Quarantine, ledger and losses in Kafka are those of all devices.")
    if since_s is not None or until_s is not None:
        report.bounds = (*report.bounds, "The devices' states and missing numbers are those of now.")
    lake = _Lake(spark, stream, report, since_s, until_s, device)
    silver = lake.table("silver", "throughput", "received_at")
    if silver is not None:
        _readings(lake, silver)
    _devices(lake)
    _signals(lake, silver)
    _quarantine(lake)
    _deleted(lake)
    _lost(lake)
    _audit(lake, silver)
    return report


@dataclass(frozen=True, slots=True)
class _Lake:
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

    def found(self, label: str, count: int, left: str | None, about: str) -> None:
        """A number of what is bad. None found is said only where all was looked at: ``left`` says what was not."""
        if left is not None:
            self.report.absent[about] = left
        value = f"{count:,}" if count or left is None else NOT_JUDGED
        self.report.findings.append(Finding(label, value, count > 0))

    def left_of_silver(self, job: str) -> str | None:
        """What of silver the job has not judged, as a sentence; None if it has judged all, or there is no silver.
        Blocks for the tables' logs."""
        silver = DeltaTable(self.spark, self.stream, "silver")
        if not silver.exists():
            return None
        progress = read_progress(Folder(self.spark, location(self.stream.checkpoint)), job)
        if progress.batch is None:
            return f"Not judged: the job {job} has not finished its first batch."
        read_to = progress.tables_read.get(_only(self.spark.sql(f"DESCRIBE DETAIL {silver.sql_name}"))["id"])
        if read_to is None:
            return f"Not judged: the job {job} has not read yet what this table silver had when it began."
        added = F.greatest(*(F.coalesce(F.col(f"operationMetrics.{it}").cast("long"), F.lit(0)) for it in _ADDED))
        history = f"DESCRIBE HISTORY {silver.sql_name} LIMIT"  # all of it is a file for each commit of a month
        newest = _only(self.spark.sql(f"{history} 1"))["version"]
        unread = F.col("version").between(read_to + 1, newest)
        known = F.count_if(unread & ((F.col("operation") == "OPTIMIZE") | (added == 0)))
        (without,) = _only(self.spark.sql(f"{history} {max(1, newest - read_to)}").agg(known))
        left = newest - read_to - without  # what the history has no more counts, too
        if not left:
            return None
        return f"Not judged: the newest {left:,} commits of silver. The job {job} has read up to version {read_to}."


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


def _by_time(rows: DataFrame, label: str, when: str, width_s: float) -> Bars:
    """Counts of stretches of time by label; bounded by labels and stretches."""
    begin = (F.floor(_seconds(when) / width_s) * width_s).alias("begin_s")
    counted = rows.groupBy(F.coalesce(F.col(label), F.lit("none")).alias("label"), begin).count()
    most = counted.orderBy(F.desc("count")).limit(_STRETCHES * _MOST_LABELS)
    return stacked([(row[0], row[1], float(row[2])) for row in most.collect()], width_s)


def _bars(rows: DataFrame, label: str, when: str) -> Bars | None:
    span = _span(rows, when)
    return None if span is None else _by_time(rows, label, when, float(bucket_s(span[1] - span[0], 60)))


def _worst(rows: DataFrame, columns: Mapping[str, str], *order: Column) -> Table | None:
    """The first rows in an order; ``columns``: by the heads on the page, in SQL."""
    first = rows.orderBy(*order).selectExpr(*columns.values()).limit(MOST_ROWS_SHOWN).collect()
    total = rows.count() if len(first) == MOST_ROWS_SHOWN else len(first)
    return Table(tuple(columns), [tuple(row) for row in first], total) if first else None


def _readings(lake: _Lake, silver: DataFrame) -> None:
    """Everything that one pass over silver can tell, and the throughput."""
    delay = _seconds("received_at") - _seconds("device_time")
    begins = [-inf, *(end for _, end in LATENESS)]
    facts = _only(
        silver.agg(
            F.count(F.lit(1)).alias("readings"),
            F.count_distinct("device").alias("devices"),
            F.min(_seconds("received_at")).alias("begin_s"),
            F.max(_seconds("received_at")).alias("end_s"),
            F.count_if(delay > LATE_S).alias("late"),
            *(F.count_if((delay >= begins[at]) & (delay < end)).alias(it) for at, (it, end) in enumerate(LATENESS)),
        )
    )
    if not facts.readings:
        lake.empty("silver", "throughput")
        return
    report, begin_s, end_s = lake.report, facts.begin_s, facts.end_s
    report.begin_s, report.end_s = begin_s, end_s
    report.lateness = {label: facts[label] for label, _ in LATENESS}
    counts = _by_time(silver, "type", "received_at", float(bucket_s(end_s - begin_s, _STRETCHES)))
    report.throughput = rates(counts, begin_s, end_s)
    report.findings += [
        Finding("readings", f"{facts.readings:,}"),
        Finding("devices", f"{facts.devices:,}"),
        Finding("late by more than 5 min", f"{facts.late / facts.readings:.1%}"),
    ]


def _devices(lake: _Lake) -> None:  # fills in its part of lake.report
    devices = lake.table("devices", "devices", None)
    happened = lake.table("device_events", "devices", "at")
    if happened is not None:
        lake.report.events = _bars(happened, "event", "at")
        if lake.report.events is None:
            lake.empty("device_events", "devices")
    if devices is None:
        return
    counts = devices.groupBy("state").count().orderBy(F.desc("count"))
    lake.report.states = states = {row[0]: row[1] for row in counts.collect()}
    if not states:
        lake.empty("devices", "devices")
        return
    lake.found("offline", states.get("offline", 0), lake.left_of_silver("devices"), "devices.left")
    lake.report.offenders = _worst(
        devices.where("state <> 'online' OR flapping OR missing > 0"),
        {
            **{name: name for name in ("device", "type", "site", "state")},
            "last seen (UTC)": "date_format(last_seen, 'yyyy-MM-dd HH:mm:ss')",
            **{name: name for name in ("transitions", "gaps", "missing")},
        },
        F.desc("flapping"),
        (F.col("state") == "offline").desc(),
        F.desc("missing"),
        F.col("device"),
    )


def _signals(lake: _Lake, silver: DataFrame | None) -> None:  # fills in its part of lake.report
    alerts = lake.table("anomalies", "signals", "event_time")
    if alerts is None:
        return
    events = alerts.where(_EVENT)
    groups = (
        events.groupBy("device", "signal", "kind")
        .agg(
            F.count(F.lit(1)).alias("times"),
            F.max("score").alias("highest score"),
            F.date_format(F.max("event_time"), "yyyy-MM-dd HH:mm:ss").alias("last (UTC)"),
        )
        .orderBy(F.desc("times"), "device", "signal")
    )
    top = groups.limit(10 * MOST_ROWS_SHOWN).collect()
    lake.found("anomalies", events.count() if top else 0, lake.left_of_silver("anomalies"), "signals.left")
    if not top:
        lake.empty("anomalies", "signals")
        return
    total = groups.count() if len(top) == 10 * MOST_ROWS_SHOWN else len(top)
    lake.report.anomalies = Table(groups.columns, [tuple(row) for row in top[:MOST_ROWS_SHOWN]], total)
    counts: Counter[tuple[str, str]] = Counter()
    for row in top:
        if row.signal is not None:
            counts[row.device, row.signal] += row.times
    known = load_device_schemas(lake.stream.silver.schemas).signals
    units = {name: it.unit for name, it in known.items()}
    lake.report.signals = [
        _signal(silver, alerts, device, signal, units.get(signal, ""), counts[device, signal])
        for device, signal in worst_of(counts)
        if silver is not None and signal in silver.columns
    ]


def _signal(silver: DataFrame, alerts: DataFrame, device: str, signal: str, unit: str, events: int) -> Signal:
    """One signal, downsampled by Spark to :data:`MOST_POINTS` stretches of its own time."""
    mine = silver.where((F.col("device") == device) & F.col(signal).isNotNull())
    points: list[tuple[float, float, float, float]] = []
    if (span := _span(mine, "event_time")) is not None:
        width_s = max((span[1] - span[0]) / (MOST_POINTS - 1), 1e-6)
        at = F.floor((_seconds("event_time") - span[0]) / width_s).alias("at")
        value = F.col(signal).cast("double")
        means = mine.groupBy(at).agg(F.min(_seconds("event_time")), F.min(value), F.avg(value), F.max(value))
        points = [(row[1], row[2], row[3], row[4]) for row in means.orderBy("at").collect()]
    marks = (
        alerts.where((F.col("device") == device) & (F.col("signal") == signal))
        .orderBy(F.desc("score"))
        .select(_seconds("event_time"), "value", "kind")
        .limit(MOST_MARKS)
    )
    return Signal(device, signal, unit, points, [Mark(*row) for row in marks.collect()], events)


def _quarantine(lake: _Lake) -> None:  # fills in its part of lake.report
    rows = lake.table("silver_quarantine", "lost", "kafka_time")
    if rows is None:
        return
    lake.report.quarantine = bars = _bars(rows, "reason", "kafka_time")
    if bars is None:
        lake.report.absent["lost.silver_quarantine"] = "No record of this time is in quarantine."
        return
    total = round(sum(count for points in bars.stacks.values() for _, count in points))
    lake.report.findings.append(Finding("in quarantine", f"{total:,}", total > 0))


def _deleted(lake: _Lake) -> None:
    """What Kafka no longer had when bronze came to read it, by when that was seen."""
    if not DeltaTable(lake.spark, lake.stream, "bronze").exists():
        why = (
            "Not judged: what Kafka deletes before it is read is noticed by gateway stream bronze, which has no table."
        )
        lake.report.absent["lost.bronze_gaps"] = why
        return
    rows = lake.table("bronze_gaps", "lost", "seen_at")
    none_found = "bronze has met no record, in this time, that Kafka deleted before it was read."
    lake.report.absent["lost.bronze_gaps"] = none_found
    if rows is None:
        return  # it is made with the first gap
    # Of a range without an end nobody knows how much it was: one, as in the metric.
    size = F.coalesce(F.expr("last_offset - first_offset + 1"), F.lit(1))
    records, unknown = _only(rows.agg(F.sum(size), F.count_if(F.col("last_offset").isNull())))
    if records is None:
        return
    del lake.report.absent["lost.bronze_gaps"]
    lake.report.findings.append(Finding("lost in Kafka", f"{records:,}{' or more' if unknown else ''}", bad=True))
    lake.report.deleted = _worst(
        rows,
        {
            **{name: name for name in ("topic", "partition")},
            "first offset": "first_offset",
            "last offset": "last_offset",
            "reason": "reason",
            "seen (UTC)": "date_format(seen_at, 'yyyy-MM-dd HH:mm:ss')",
        },
        F.desc("seen_at"),
        F.col("topic"),
        F.col("partition"),
        F.col("first_offset"),
    )


def _lost(lake: _Lake) -> None:  # numbers that are missing, into lake.report
    devices = lake.table("devices", "lost", None)
    if devices is None:
        return
    sums = F.count(F.lit(1)), F.count("seq_last"), F.sum(F.col("missing").cast("decimal(38)"))
    total, numbered, missing = _only(devices.agg(*sums))
    left = lake.left_of_silver("devices")  # a sentence about what was not judged
    if left is None and not numbered:
        left = f"Not judged: of {total:,} devices none numbers its messages."
    lake.found("missing numbers", missing or 0, left, "lost.left")
    columns = {"device": "device", "site": "site", "missing numbers": "missing", "gaps": "gaps"}
    lake.report.lost = _worst(devices.where("missing > 0"), columns, F.desc("missing"), F.col("device"))
    if lake.report.lost is None and numbered:
        wait_s = lake.stream.devices.gap_after.total_seconds()
        lake.report.absent["lost.devices"] = (
            f"Of {total:,} devices {numbered:,} number their messages, and none of these has a gap of more than"
            f" {wait_s:g} s."
        )


def _audit(lake: _Lake, silver: DataFrame | None) -> None:  # the ledger's differences, into lake.report
    rows = lake.table("audit", "lost", "minute")
    if rows is None:
        return
    wrong = rows.where("missing > 0 OR unaccounted > 0")
    count = wrong.count()
    lake.found("ledger differences", count, _left_by_audit(rows, silver), "lost.audit_left")
    minutes = 0 if count else rows.where("open = 0 AND expired = 0").select("minute").distinct().count()
    if minutes:
        lake.report.absent["lost.audit"] = (
            f"The gateway's ledger and Kafka agree in all {minutes:,} minutes of this time that were judged."
        )
    lake.report.audit = _worst(
        wrong,
        {
            **{name: name for name in ("gateway", "route", "topic", "partition")},
            "minute (UTC)": "date_format(minute, 'yyyy-MM-dd HH:mm')",
            **{name: name for name in ("acknowledged", "present", "missing", "unaccounted")},
        },
        F.desc(F.col("missing") + F.col("unaccounted")),
        F.col("minute"),
    )


def _left_by_audit(rows: DataFrame, silver: DataFrame | None) -> str | None:
    """What the audit has not judged of the time that its rows are of; None if it has judged all."""
    judged, unread, expired = _only(rows.agg(F.count(F.lit(1)), F.sum("open"), F.sum("expired")))
    if not judged:
        return "Not judged: the table audit has no minute of this time."
    said = []
    if silver is not None:
        minute = F.date_trunc("minute", "received_at").alias("minute")
        left = silver.select(minute).distinct().join(rows.select("minute").distinct(), "minute", "left_anti")
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
        print(f"Nothing was found to report on: no tables, or no rows of that time, in {where}.", file=sys.stderr)  # noqa: T201
    return ExitStatus.OK if report.findings else ExitStatus.NOT_FOUND
