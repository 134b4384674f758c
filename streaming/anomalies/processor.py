"""The detectors of a device as a stateful processor of Spark: rows in, and alerts and scores out. Spark's Python
workers load this module, and with it as little as can be."""

from collections.abc import Iterator
from hashlib import blake2b
from math import isfinite
from operator import attrgetter
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from streaming.anomalies.detectors import MAD_TO_DEVIATION, Limits, Silence, Verdict, severity
from streaming.anomalies.state import DeviceDetector
from streaming.lake.columns import columns
from streaming.lake.time_ranges import moment

ANOMALIES: Final = columns(
    "alert_id string required, device string required, type string, signal string, kind string required,"
    " severity string required, event_time timestamp, value double, score double, median double, mad double,"
    " run integer, received_at timestamp, ingested_at timestamp, event_date date"
)
"""Columns of the table, and, but for the last three, fields of the JSON. For a silence ``signal`` and ``mad`` are null,
``value`` is its length and ``median`` the usual interval, in seconds, ``event_time`` the last reading's."""

_ROW = Row(*ANOMALIES.names)


class Detect(StatefulProcessor):
    """The detectors of one device after the other, each with the state that Spark kept of it.

    ``score_from``: scores below are not put out, unless they are alerts.
    """

    def __init__(self, limits: Limits, signals: tuple[str, ...], score_from: float) -> None:
        self._limits = limits
        self._names = signals
        self._score_from = score_from

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("detector", "type string, packed binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803, ARG002 (Spark's names)
        kept = self._state.get()
        device = DeviceDetector(self._limits) if kept is None else DeviceDetector.unpack(bytes(kept[1]), self._limits)
        # The order of rows within a batch is anyone's. A device's own is by its clock.
        ordered = sorted(rows, key=attrgetter("event_us", "record_id"))
        for row in ordered:
            for name, value in zip(self._names, row.measurements, strict=True):
                if value is None or not isfinite(value):
                    continue
                verdict = device.signal(name).judge(row.event_us, value)
                if verdict is not None and (verdict.kind != "score" or verdict.score >= self._score_from):
                    yield _reading_row(key[0], row, name, value, verdict, self._limits)
        for row in sorted(ordered, key=attrgetter("ingested_us", "received_us")):
            device.habit.heard(row.received_us, row.event_us, row.ingested_us)
        self._keep(device, ordered[-1].type)

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803, ARG002 (Spark's names)
        kept = self._state.get()
        if kept is None:
            return
        device = DeviceDetector.unpack(bytes(kept[1]), self._limits)
        silence = device.habit.look(1000 * timerValues.getCurrentWatermarkInMs())
        if silence is not None:
            yield _silence_row(key[0], kept[0], device, silence)
        self._keep(device, kept[0])

    def _keep(self, device: DeviceDetector, kind: str | None) -> None:
        look_at_us = device.habit.plan()
        if look_at_us is not None:
            self._handle.registerTimer(-(-look_at_us // 1000))
        self._state.update((kind, device.pack()))


def _alert_id(device: str, signal: str, kind: str, event_us: int, value: float) -> str:
    text = f"{device}\0{signal}\0{kind}\0{event_us}\0{value!r}"
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _reading_row(device: str, row: Any, signal: str, value: float, verdict: Verdict, limits: Limits) -> Row:
    kind, event_us = verdict.kind, row.event_us
    at = moment(event_us)
    return _ROW(
        _alert_id(device, signal, kind, event_us, value),
        device,
        row.type,
        signal,
        kind,
        severity(kind, verdict.score, limits),
        at,
        value,
        verdict.score,
        verdict.expected,
        verdict.deviation / MAD_TO_DEVIATION,
        int(kind in ("outlier", "level")),
        moment(row.received_us),
        moment(row.ingested_us),
        at.date(),
    )


def _silence_row(device: str, kind_of_device: str | None, detector: DeviceDetector, silence: Silence) -> Row:
    habit = detector.habit
    at = moment(habit.last_event_us)
    return _ROW(
        _alert_id(device, "", "silence", habit.last_received_us, 0.0),
        device,
        kind_of_device,
        None,
        "silence",
        "warning",
        at,
        silence.silent_us / 1e6,
        silence.silent_us / silence.usual_us,
        silence.usual_us / 1e6,
        None,
        0,
        moment(habit.last_received_us),
        moment(habit.counted_to_us),
        at.date(),
    )
