"""A device's detectors together, and as the bytes that Spark keeps of them between batches."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from streaming.anomalies.detectors import SIDES, SLOTS, Habit, Limits, SignalModel

STATE_VERSION: Final = 2
"""Raised when older bytes cannot be read any more. Of version 1 the habit is read; its signals begin anew."""

_HEAD = struct.Struct("<BHH")  # version, signals, gaps
_HABIT_FIELDS: Final = ("last_received_us", "last_event_us", "counted_to_us", "silent_us", "look_at_us", "reported")
_HABIT = struct.Struct("<qqqqq?")
_FIRST: Final = ("counts", "variance", "readings", "newest_us", "slot", "mean_off")
_THEN: Final = ("calm", "off_run", "off_sum", "run_from_us", "quiet", "last", "repeats", "longest", "runs")
"""A model's numbers as they are packed: ``means``, the first of these, ``usual``, ``peaks``, then the others."""
_SIGNAL = struct.Struct(f"<H{SLOTS}d{SLOTS}sdQqBd{SIDES}d{SIDES}d{SIDES}sidqBdIII")  # the name's length goes before
_habit_of, _first_of, _then_of = attrgetter(*_HABIT_FIELDS), attrgetter(*_FIRST), attrgetter(*_THEN)


class DeviceDetector:
    """All that is known of one device. Packed it is 576 bytes per signal beside its name and at most 302 for the
    habit: 2.6 KB for four signals."""

    __slots__ = ("_limits", "habit", "signals")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.habit = Habit(limits)
        self.signals: dict[str, SignalModel] = {}

    def signal(self, name: str) -> SignalModel:
        found = self.signals.get(name)
        if found is None:
            found = self.signals[name] = SignalModel(self._limits, name)
        return found

    def pack(self) -> bytes:
        habit = self.habit
        parts = [
            _HEAD.pack(STATE_VERSION, len(self.signals), len(habit.gaps)),
            _HABIT.pack(*_habit_of(habit)),
            struct.pack(f"<{len(habit.gaps)}q", *habit.gaps),
        ]
        for signal, model in self.signals.items():
            name = signal.encode()
            numbers = *model.means, *_first_of(model), *model.usual, *model.peaks, *_then_of(model)
            parts += [_SIGNAL.pack(len(name), *numbers), name]
        return b"".join(parts)

    @classmethod
    def unpack(cls, packed: bytes, limits: Limits) -> DeviceDetector:
        """What :meth:`pack` packed, also that of version 1. ``limits`` may have changed since."""
        made = cls(limits)
        version, signals, gaps = _HEAD.unpack_from(packed)
        at = _HEAD.size
        _set(made.habit, _HABIT_FIELDS, _HABIT.unpack_from(packed, at))
        at += _HABIT.size
        made.habit.gaps.extend(struct.unpack_from(f"<{gaps}q", packed, at))
        at += 8 * gaps
        for _ in range(signals if version >= STATE_VERSION else 0):
            length, *numbers = _SIGNAL.unpack_from(packed, at)
            at += _SIGNAL.size
            model = made.signal(packed[at : at + length].decode())
            at += length
            left = iter(numbers)
            model.means = list(islice(left, SLOTS))
            _set(model, _FIRST, left)
            model.usual, model.peaks = list(islice(left, SIDES)), list(islice(left, SIDES))
            _set(model, _THEN, left)
            model.counts, model.calm = bytearray(model.counts), bytearray(model.calm)
        return made


def _set(it: Habit | SignalModel, fields: Iterable[str], values: Iterable[Any]) -> None:
    for field, value in zip(fields, values, strict=False):  # the rest of the values is another's
        setattr(it, field, value)
