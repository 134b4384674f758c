"""A report from the Parquet tables of the job ``ingest``, read by pyarrow alone: no Spark has to start for it.

For tables that fit into memory, such as the demo's: at most :data:`MOST_ROWS` readings are taken, the newest. Anomalies
are found here and now, by the detectors of the job ``anomalies``.
"""

from __future__ import annotations

__all__ = ["MOST_ROWS", "read_files"]

import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

from streaming.detectors import Limits, SignalWindow
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
    lateness_counts,
    moment,
    ranges,
    stacked,
    worst_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MOST_ROWS: Final = 500_000
_FIXED: Final = {
    "device", "type", "seq", "device_time", "event_time", "mqtt_topic", "message_id", "kafka_topic", "kafka_partition",
    "kafka_offset", "kafka_time", "ingest_date", "batch",
}  # fmt: skip
_UNITS: Final = {"temperature": "°C", "humidity": "%", "voltage": "V", "rssi": "dBm"}
_LATE_S: Final = 300.0


def read_files(telemetry: Path, quarantine: Path, source: str, *, limits: Limits | None = None) -> Report:
    """Reads the folders, either of which may be missing. Blocks, a second or two for 100,000 readings."""
    rows = _columns(telemetry)
    bad = _columns(quarantine)
    absent = {
        "devices.state": "The job ingest keeps no state of devices: gateway stream devices does.",
        "lost.audit": "The gateway's ledger was not compared with Kafka: gateway stream audit does that.",
    }
    if bad is None:
        absent["lost.quarantine"] = "No record is in quarantine."
    if rows is None:
        nothing = f"There are no readings in {telemetry}."
        absent |= dict.fromkeys(("signals", "late", "throughput"), nothing)
        return Report(source, time.time(), None, None, quarantine=_quarantine(bad), absent=absent)
    received = rows["kafka_time"]
    begin_s, end_s = min(received), max(received)
    delays = [got - sent for got, sent in zip(received, rows["device_time"], strict=True)]
    lost, missing, repeats = _sequences(rows)
    signals, alerts, alert_rows = _anomalies(rows, limits or Limits())
    devices = len(set(rows["device"]))
    late = sum(delay > _LATE_S for delay in delays)
    bounds = [
        (
            f"{len(signals):,} signals are drawn, those with most alerts first; at most {MOST_SIGNALS} of"
            f" {MOST_POINTS} points each."
        )
    ]
    if len(received) == MOST_ROWS:
        bounds.append(f"Older readings than the newest {MOST_ROWS:,}.")
    return Report(
        source,
        time.time(),
        begin_s,
        end_s,
        findings=(
            Finding("readings", f"{len(received):,}"),
            Finding("devices", f"{devices:,}"),
            Finding("alerts", f"{alerts:,}", alerts > 0),
            Finding("in quarantine", f"{0 if bad is None else len(bad['reason']):,}", bad is not None),
            Finding("missing numbers", f"{missing:,}", missing > 0),
            Finding("sent twice", f"{repeats:,}"),
            Finding("late by more than 5 min", f"{late / len(delays):.1%}"),
        ),
        health=Health({}, _offenders(rows, lost, alert_rows)),
        signals=signals,
        anomalies=_alert_table(alert_rows),
        lateness=Histogram([label for label, _ in LATENESS], lateness_counts(delays)),
        quarantine=_quarantine(bad),
        lost=_lost_table(lost),
        throughput=_throughput(rows, begin_s, end_s),
        throughput_s=float(bucket_s(end_s - begin_s, MOST_POINTS // 2)),
        absent=absent,
        bounds=bounds,
    )


def _columns(folder: Path) -> dict[str, list[Any]] | None:
    """The newest rows as lists, times as seconds since 1970; None if there are none."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]
    from pyarrow import dataset

    if not any(folder.rglob("*.parquet")):
        return None
    table = dataset.dataset(folder, format="parquet", partitioning="hive").to_table()
    if table.num_rows == 0:
        return None
    if table.num_rows > MOST_ROWS:
        table = table.take(pc.sort_indices(table, [("kafka_time", "descending")])[:MOST_ROWS])
    found = {}
    for name in table.column_names:
        column = table[name]
        if pa.types.is_timestamp(column.type):
            micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
            found[name] = [None if it is None else it / 1e6 for it in micros]
        elif name not in {"key", "value", "headers"}:
            found[name] = column.to_pylist()
    return found


def _sequences(rows: Mapping[str, list[Any]]) -> tuple[dict[str, list[int]], int, int]:
    """Missing numbers of each device between its lowest and its highest, how many, and how many came again."""
    seen: defaultdict[str, set[int]] = defaultdict(set)
    for device, seq in zip(rows["device"], rows["seq"], strict=True):
        seen[device].add(seq)
    lost = {}
    for device, numbers in seen.items():
        low, high = min(numbers), max(numbers)
        if high - low + 1 > len(numbers):
            lost[device] = [number for number in range(low, high) if number not in numbers]
    repeats = len(rows["seq"]) - sum(map(len, seen.values()))
    return lost, sum(map(len, lost.values())), repeats


def _anomalies(
    rows: Mapping[str, list[Any]], limits: Limits
) -> tuple[list[Signal], int, list[tuple[str, str, str, float, float]]]:
    """The signals to draw, worst first; how many alerts; and each as device, signal, kind, score, time."""
    by_device: defaultdict[str, list[int]] = defaultdict(list)
    for at, device in enumerate(rows["device"]):
        by_device[device].append(at)
    names = [
        name
        for name, column in rows.items()
        if name not in _FIXED and any(isinstance(value, int | float) for value in column[:1000])
    ]
    times = rows["event_time"]
    found: list[tuple[str, str, str, float, float]] = []  # an event each: of a run of outliers the first
    marks: defaultdict[tuple[str, str], list[tuple[float, Mark]]] = defaultdict(list)
    for device, places in by_device.items():
        places.sort(key=lambda at: (times[at], rows["seq"][at]))
        for name in names:
            window, column = SignalWindow(limits, name), rows[name]
            for at in places:
                value = column[at]
                if value is None:
                    continue
                verdict = window.judge(round(times[at] * 1e6), float(value))
                if verdict is not None and verdict.kind != "score":
                    if verdict.run <= 1 and verdict.kind != "level":  # which ends a run
                        found.append((device, name, verdict.kind, verdict.score, times[at]))
                    marks[device, name].append((verdict.score, Mark(times[at], float(value), verdict.kind)))
    events = Counter((device, name) for device, name, *_ in found)
    worst = worst_of(events)
    if not worst and names:
        worst = [(device, names[0]) for device in sorted(by_device)[:2]]
    drawn = []
    for device, name in worst:
        column = rows[name]
        values = [(times[at], float(column[at])) for at in by_device[device] if column[at] is not None]
        shown = [mark for _, mark in sorted(marks[device, name], key=lambda one: -one[0])[:MOST_MARKS]]
        drawn.append(Signal(device, name, _UNITS.get(name, ""), _thinned(values), shown, alerts=events[device, name]))
    return drawn, len(found), found


def _thinned(values: Sequence[tuple[float, float]]) -> list[tuple[float, float, float, float]]:
    """At most :data:`MOST_POINTS` points with least, mean and greatest value."""
    size = -(-len(values) // MOST_POINTS)
    points = []
    for begin in range(0, len(values), size):
        part = values[begin : begin + size]
        numbers = [value for _, value in part]
        points.append((part[0][0], min(numbers), sum(numbers) / len(numbers), max(numbers)))
    return points


def _offenders(
    rows: Mapping[str, list[Any]], lost: Mapping[str, list[int]], alerts: Sequence[tuple[str, str, str, float, float]]
) -> Table | None:
    alerted = Counter(device for device, *_ in alerts)
    last: dict[str, float] = {}
    types: dict[str, str] = {}
    for device, kind, seen in zip(rows["device"], rows["type"], rows["kafka_time"], strict=True):
        last[device] = max(seen, last.get(device, seen))
        types[device] = kind
    bad = sorted(
        {*alerted, *lost}, key=lambda device: (-alerted[device] - len(lost.get(device, ())), device)
    )  # a missing reading and a wrong one weigh the same
    if not bad:
        return None
    return Table(
        ("device", "type", "last reading received (UTC)", "alerts", "missing numbers"),
        [
            (device, types[device], moment(last[device]), alerted[device], len(lost.get(device, ())))
            for device in bad[:MOST_ROWS_SHOWN]
        ],
        total=len(bad),
    )


def _alert_table(alerts: Sequence[tuple[str, str, str, float, float]]) -> Table | None:
    if not alerts:
        return None
    groups: defaultdict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for device, name, kind, score, when in alerts:
        groups[device, name, kind].append((score, when))
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return Table(
        ("device", "signal", "kind", "alerts", "highest score", "last (UTC)"),
        [
            (*key, len(them), max(score for score, _ in them), moment(max(when for _, when in them)))
            for key, them in ordered[:MOST_ROWS_SHOWN]
        ],
        total=len(ordered),
    )


def _lost_table(lost: Mapping[str, list[int]]) -> Table | None:
    if not lost:
        return None
    worst = sorted(lost.items(), key=lambda item: (-len(item[1]), item[0]))
    return Table(
        ("device", "missing numbers", "which"),
        [(device, len(numbers), ranges(numbers)) for device, numbers in worst[:MOST_ROWS_SHOWN]],
        total=len(worst),
    )


def _quarantine(bad: Mapping[str, list[Any]] | None) -> Bars | None:
    if bad is None:
        return None
    times = bad["kafka_time"]
    width = bucket_s(max(times) - min(times), 60)
    counts = Counter((reason, when // width * width) for reason, when in zip(bad["reason"], times, strict=True))
    return stacked([(reason, begin, count) for (reason, begin), count in counts.items()], width)


def _throughput(rows: Mapping[str, list[Any]], begin_s: float, end_s: float) -> list[Series]:
    """Readings a second by type, zero where there are none; the last, unfinished stretch left out if others are."""
    width = bucket_s(end_s - begin_s, MOST_POINTS // 2)
    counts = Counter((kind, when // width * width) for kind, when in zip(rows["type"], rows["kafka_time"], strict=True))
    first, last = begin_s // width * width, end_s // width * width
    steps = [first + number * width for number in range(round((last - first) / width))] or [first]
    kinds = [kind for kind, _ in Counter(rows["type"]).most_common(8)]
    return [Series(kind, [(step, counts[kind, step] / width) for step in steps]) for kind in kinds]
