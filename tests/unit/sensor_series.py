"""Sensor series as sensors make them, with faults put in at known places, for scoring a detector."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

_MINUTE_US = 60_000_000
_READINGS = 2000


@dataclass(frozen=True, slots=True)
class Series:
    """One signal, and where it is wrong. The bounds are what the detector has to reach over many seeds."""

    readings: list[tuple[int, float]]
    """Event time in microseconds, value."""
    labels: frozenset[int]
    least_precision: float
    least_recall: float


def score(results: Iterable[tuple[frozenset[int], list[int]]]) -> tuple[float, float]:
    """Precision of alerts and recall of faults over all series together: labels, and where alerts are. Labels in a row
    are one fault."""
    right = given = found = faults = 0
    for labels, alerts in results:
        begins = sorted(at for at in labels if at - 1 not in labels)
        given += len(alerts)
        right += sum(at in labels for at in alerts)
        faults += len(begins)
        found += len({max(begin for begin in begins if begin <= at) for at in alerts if at in labels})
    return right / given, found / faults


def room_spikes(seed: int) -> Series:
    """A room's temperature, minute by minute, heated and cooling, with single wrong readings."""
    random = Random(f"room/{seed}")
    values, room = [], 20.0
    for minute in range(_READINGS):
        heating = 21.5 if minute // 180 % 2 else 18.0
        room += (heating - room) / 120.0
        values.append(room + random.gauss(0.0, 0.05))
    places = random.sample(range(100, _READINGS), 20)
    for at in places:
        values[at] += random.choice((-1, 1)) * random.uniform(3.0, 15.0)
    return _series(values, places, 0.99, 0.58)


def voltage_dropouts(seed: int) -> Series:
    """Mains voltage with its evening sag; dropouts of two to eight readings to nothing."""
    random = Random(f"voltage/{seed}")
    values = [
        231.0 + 2.0 * math.cos(2 * math.pi * minute / 1440) + random.gauss(0.0, 0.6) for minute in range(_READINGS)
    ]
    places: list[int] = []
    for start in random.sample(range(100, _READINGS - 10, 40), 8):
        span = range(start, start + random.randint(2, 8))
        places += span
        for at in span:
            values[at] = random.uniform(0.0, 5.0)
    return _series(values, places, 0.98, 0.86)


def level_step(seed: int) -> Series:
    """A pressure that falls to another level for good, and a reading here and there that is wrong. Labelled are the
    spikes and the first 20 readings of the new level: after that it is how things are."""
    random = Random(f"step/{seed}")
    values = [3.4 + random.gauss(0.0, 0.03) for _ in range(_READINGS)]
    step = random.randint(300, 1500)
    for at in range(step, _READINGS):
        values[at] -= 1.2
    spikes = [at for at in random.sample(range(100, _READINGS), 10) if abs(at - step) > 120]
    for at in spikes:
        values[at] += random.choice((-1, 1)) * random.uniform(0.6, 3.0)
    return _series(values, [*spikes, *range(step, step + 20)], 0.89, 0.62)


def coarse_signal(seed: int) -> Series:
    """Signal strength in whole dBm with slow shadowing; fades of 30 dB and more."""
    random = Random(f"rssi/{seed}")
    values, shadow = [], 0.0
    for _ in range(_READINGS):
        shadow = 0.98 * shadow + random.gauss(0.0, 0.6)
        values.append(float(round(-68.0 + shadow + random.gauss(0.0, 1.5))))
    places = random.sample(range(100, _READINGS), 12)
    for at in places:
        values[at] -= round(random.uniform(30.0, 45.0))
    return _series(values, places, 0.92, 0.52)


def _series(values: list[float], places: Iterable[int], precision: float, recall: float) -> Series:
    readings = [(at * _MINUTE_US, value) for at, value in enumerate(values)]
    return Series(readings, frozenset(places), precision, recall)


SERIES: tuple[Callable[[int], Series], ...] = (room_spikes, voltage_dropouts, level_step, coarse_signal)
