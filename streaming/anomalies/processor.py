"""The detectors of a device as a stateful processor of Spark, and as the bytes that Spark keeps of them. Spark's Python
workers load this module, and with it as little as can be."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import fields
from hashlib import blake2b
from itertools import chain, islice
from math import isfinite
from operator import attrgetter
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from streaming.anomalies.detectors import MAD_TO_DEVIATION, SIDES, SLOTS, Habit, Limits, SignalModel, severity
from streaming.lake.columns import columns
from streaming.lake.ranges import moment

STATE_VERSION: Final = 2
"""Raised when older bytes cannot be read any more: a checkpoint of another version is refused."""

_HEAD = struct.Struct("<BHH")  # version, signals, gaps
_HABIT = struct.Struct("<qqqqq?")
_SIGNAL = struct.Struct(f"<H{SLOTS}d{SLOTS}sdQqBd{SIDES}d{SIDES}d{SIDES}sidqBdIII")  # the name's length goes before
_OF_HABIT, _OF_SIGNAL = ([it.name for it in fields(kind)[2:]] for kind in (Habit, SignalModel))
_habit_of, _signal_of = attrgetter(*_OF_HABIT), attrgetter(*_OF_SIGNAL)
_LISTS: Final = {"means": SLOTS, "usual": SIDES, "peaks": SIDES}

ANOMALIES: Final = columns(
    "alert_id string required, device string required, type string, signal string, kind string required,"
    " severity string required, event_time timestamp, value double, score double, median double, mad double,"
    " run integer, received_at timestamp, ingested_at timestamp, event_date date"
)
"""Columns of the table, and, but for the last three, fields of the JSON. For a silence ``signal`` and ``mad`` are null,
``value`` is its length and ``median`` the usual interval, in seconds, ``event_time`` the last reading's."""

_ROW = Row(*ANOMALIES.names)


class Detect(StatefulProcessor):
    """The detectors of one device after the other. Scores below ``score_from`` are put out where they are alerts."""

    def __init__(self, limits: Limits, signals: tuple[str, ...], score_from: float) -> None:
        self._limits, self._names, self._score_from = limits, signals, score_from

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("detector", "type string, packed binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803, ARG002 (Spark's names)
        kept = self._state.get()  # type and packed; None of a new device
        device = DeviceDetector(self._limits) if kept is None else DeviceDetector.unpack(bytes(kept[1]), self._limits)
        # The order of rows within a batch is anyone's. A device's own is by its clock.
        ordered = sorted(rows, key=attrgetter("event_us", "record_id"))
        for row in ordered:
            for name, value in zip(self._names, row.measurements, strict=True):
                if value is None or not isfinite(value):
                    continue
                verdict = device.signal(name).judge(row.event_us, value)
                if verdict is not None and (verdict.kind != "score" or verdict.score >= self._score_from):
                    numbers = value, verdict.score, verdict.expected, verdict.deviation / MAD_TO_DEVIATION
                    alert_id = _alert_id(key[0], name, verdict.kind, row.event_us, value)
                    serious = severity(verdict.kind, verdict.score, self._limits)
                    told = alert_id, key[0], row.type, name, verdict.kind, serious
                    yield _row(told, row.event_us, numbers, row.received_us, row.ingested_us)
        for row in sorted(ordered, key=attrgetter("ingested_us", "received_us")):
            device.habit.heard(row.received_us, row.event_us, row.ingested_us)
        self._keep(device, ordered[-1].type)  # as state, and plans the next look for silence

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803, ARG002 (Spark's names)
        kept = self._state.get()
        assert kept is not None, "a timer is set where the state is written"
        device = DeviceDetector.unpack(bytes(kept[1]), self._limits)
        silence = device.habit.look(1000 * timerValues.getCurrentWatermarkInMs())  # on the stream's clock
        if silence is not None:
            habit = device.habit
            usual_us, alert_id = silence.usual_us, _alert_id(key[0], "", "silence", habit.last_received_us, 0.0)
            numbers = silence.silent_us / 1e6, silence.silent_us / usual_us, usual_us / 1e6, None
            told = alert_id, key[0], kept[0], None, "silence", "warning"
            yield _row(told, habit.last_event_us, numbers, habit.last_received_us, habit.counted_to_us)
        self._keep(device, kept[0])

    def _keep(self, device: DeviceDetector, kind: str | None) -> None:
        look_at_us = device.habit.plan()
        if look_at_us is not None:
            self._handle.registerTimer(-(-look_at_us // 1000))
        self._state.update((kind, device.pack()))


def _alert_id(device: str, signal: str, kind: str, event_us: int, value: float) -> str:
    text = f"{device}\0{signal}\0{kind}\0{event_us}\0{value!r}"
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _row(told: tuple[Any, ...], event_us: int, numbers: tuple[Any, ...], received_us: int, ingested_us: int) -> Row:
    """``told``: the columns up to ``severity``; ``numbers``: those from ``value`` to ``mad``."""
    at, run = moment(event_us), int(told[4] in ("outlier", "level"))
    return _ROW(*told, at, *numbers, run, moment(received_us), moment(ingested_us), at.date())


class DeviceDetector:
    """All that is known of one device. Packed it is 576 bytes per signal beside its name and at most 302 for the
    habit: 2.6 KB for four signals."""

    __slots__ = ("_limits", "habit", "signals")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.habit = Habit(limits)
        self.signals: dict[str, SignalModel] = {}

    def signal(self, name: str) -> SignalModel:
        if name not in self.signals:
            self.signals[name] = SignalModel(self._limits, self._limits.min_scale.get(name, 0.0))
        return self.signals[name]

    def pack(self) -> bytes:  # what Spark keeps as state
        habit = self.habit
        parts = [
            _HEAD.pack(STATE_VERSION, len(self.signals), len(habit.gaps)),
            _HABIT.pack(*_habit_of(habit)),
            struct.pack(f"<{len(habit.gaps)}q", *habit.gaps),
        ]
        for signal, model in self.signals.items():
            name = signal.encode()
            numbers = chain.from_iterable(it if isinstance(it, list) else (it,) for it in _signal_of(model))
            parts += [_SIGNAL.pack(len(name), *numbers), name]
        return b"".join(parts)

    @classmethod
    def unpack(cls, packed: bytes, limits: Limits) -> DeviceDetector:
        """What :meth:`pack` packed. ``limits`` may have changed since."""
        made = cls(limits)
        _version, signals, gaps = _HEAD.unpack_from(packed)
        at = _HEAD.size + _HABIT.size
        made.habit.gaps.extend(struct.unpack_from(f"<{gaps}q", packed, at))
        for name, value in zip(_OF_HABIT, _HABIT.unpack_from(packed, _HEAD.size), strict=True):
            setattr(made.habit, name, value)
        at += 8 * gaps
        for _ in range(signals):
            length, *numbers = _SIGNAL.unpack_from(packed, at)
            at += _SIGNAL.size + length
            model = made.signal(packed[at - length : at].decode())
            left = iter(numbers)
            for name in _OF_SIGNAL:
                setattr(model, name, list(islice(left, _LISTS[name])) if name in _LISTS else next(left))
            model.counts, model.calm = bytearray(model.counts), bytearray(model.calm)
        return made
