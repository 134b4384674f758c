"""Rates of sending: even, in bursts, or by time of day. Decides without a clock.

Devices have an even schedule in *steady* seconds. A profile maps these to real moments. So in each of its periods it
sends exactly as much as the even profile.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.devices.physics import DAY_S, HOUR_S, START_S, TIME_SCALE

_BURST_PERIOD_S = 10.0
_BURST_SHARE = 0.1  # share of the period in which all is sent, at ten times the mean rate
_DAY_PERIOD_S = DAY_S / TIME_SCALE  # a day of the devices' physics: four minutes
_NOON_S = 15 * HOUR_S / TIME_SCALE  # the warmest hour is the busiest
_SWING = 0.9  # from a tenth of the mean at night to 1.9 times the mean


def _burst(steady_s: float) -> float:
    periods, rest = divmod(steady_s, _BURST_PERIOD_S)
    return periods * _BURST_PERIOD_S + rest * _BURST_SHARE


def _night_and_day(steady_s: float) -> float:
    """The real second at which ``steady_s`` of an even rate are sent: the inverse of ``_sent_by``, by halving."""
    low, high = steady_s - _DAY_PERIOD_S, steady_s + _DAY_PERIOD_S
    for _ in range(48):
        middle = (low + high) / 2.0
        if _sent_by(middle) < steady_s:
            low = middle
        else:
            high = middle
    return max(0.0, high)


def _sent_by(wall_s: float) -> float:
    """Steady seconds that have passed ``wall_s`` after the start, which is at six in the morning."""
    turn = 2.0 * math.pi / _DAY_PERIOD_S
    start_s = START_S / TIME_SCALE - _NOON_S
    return wall_s + _SWING / turn * (math.sin(turn * (wall_s + start_s)) - math.sin(turn * start_s))


@dataclass(frozen=True, slots=True)
class Profile:
    """``moment_s`` gives the second after the start at which a steady second has passed; it only grows. ``peak`` is the
    highest rate in means."""

    moment_s: Callable[[float], float]
    peak: float


PROFILES: Final[Mapping[str, Profile]] = {
    "steady": Profile(lambda steady_s: steady_s, 1.0),
    "burst": Profile(_burst, 1.0 / _BURST_SHARE),
    "night-and-day": Profile(_night_and_day, 1.0 + _SWING),
}
