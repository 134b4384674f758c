"""A device's detectors together, and as the bytes that Spark keeps of them between batches."""

from __future__ import annotations

__all__ = ["STATE_VERSION", "DeviceDetector"]

import math
import struct
from typing import TYPE_CHECKING, Final

from streaming.detectors import Habit, Limits, SignalWindow

if TYPE_CHECKING:
    from collections.abc import Collection

STATE_VERSION: Final = 1
"""Raised when older bytes cannot be read any more; a checkpoint of another version is refused at start."""

_HEAD = struct.Struct("<BHH")  # version, windows, gaps
_HABIT = struct.Struct("<qqqqq?")
_WINDOW = struct.Struct("<HdIIIIHHH")  # name's bytes, last, repeats, longest, runs, lived, readings, aside, levels


class DeviceDetector:
    """All that is known of one device. In memory 1 to 2 KiB; packed 16 bytes per reading in a window, 40 per signal and
    at most 300 for the habit: 4.2 KiB for four signals with windows of 60."""

    __slots__ = ("_limits", "habit", "windows")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.habit = Habit(limits)
        self.windows: dict[str, SignalWindow] = {}

    def window(self, signal: str) -> SignalWindow:
        """The signal's window, a new one if it was never seen."""
        found = self.windows.get(signal)
        if found is None:
            found = self.windows[signal] = SignalWindow(self._limits, signal)
        return found

    def pack(self) -> bytes:
        """Everything as bytes, little-endian."""
        habit = self.habit
        parts = [
            _HEAD.pack(STATE_VERSION, len(self.windows), len(habit.gaps)),
            _HABIT.pack(
                habit.last_received_us,
                habit.last_event_us,
                habit.counted_to_us,
                habit.silent_us,
                habit.look_at_us,
                habit.told,
            ),
            struct.pack(f"<{len(habit.gaps)}q", *habit.gaps),
        ]
        for signal, window in self.windows.items():
            name = signal.encode()
            last = math.nan if window.last is None else window.last
            counts = len(window.readings), len(window.aside), len(window.levels)
            parts.append(
                _WINDOW.pack(len(name), last, window.repeats, window.longest, window.runs, window.lived, *counts)
            )
            parts.append(name)
            parts += [_packed_readings(window.readings), _packed_readings(window.aside)]
            parts.append(struct.pack(f"<{2 * len(window.levels)}d", *(it for level in window.levels for it in level)))
        return b"".join(parts)

    @classmethod
    def unpack(cls, packed: bytes, limits: Limits) -> DeviceDetector:
        """What :meth:`pack` packed. ``limits`` may have changed since: windows are cut to the new length."""
        made = cls(limits)
        version, windows, gaps = _HEAD.unpack_from(packed)
        assert version == STATE_VERSION  # the checkpoint's own note was compared at start
        at = _HEAD.size
        habit = made.habit
        (
            habit.last_received_us,
            habit.last_event_us,
            habit.counted_to_us,
            habit.silent_us,
            habit.look_at_us,
            habit.told,
        ) = _HABIT.unpack_from(packed, at)
        at += _HABIT.size
        habit.gaps.extend(struct.unpack_from(f"<{gaps}q", packed, at))
        at += 8 * gaps
        for _ in range(windows):
            length, last, repeats, longest, runs, lived, readings, aside, levels = _WINDOW.unpack_from(packed, at)
            at += _WINDOW.size
            window = made.window(packed[at : at + length].decode())
            at += length
            window.last = None if math.isnan(last) else last
            window.repeats, window.longest, window.runs, window.lived = repeats, longest, runs, lived
            window.restore(_unpacked_readings(packed, at, readings))
            at += 16 * readings
            window.aside = _unpacked_readings(packed, at, aside)
            at += 16 * aside
            pairs = struct.unpack_from(f"<{2 * levels}d", packed, at)
            window.levels.extend(zip(pairs[::2], pairs[1::2], strict=True))
            at += 16 * levels
        return made


def _packed_readings(readings: Collection[tuple[int, float]]) -> bytes:
    count = len(readings)
    return struct.pack(f"<{count}q{count}d", *(when for when, _ in readings), *(value for _, value in readings))


def _unpacked_readings(packed: bytes, at: int, count: int) -> list[tuple[int, float]]:
    numbers = struct.unpack_from(f"<{count}q{count}d", packed, at)
    return list(zip(numbers[:count], numbers[count:], strict=True))
