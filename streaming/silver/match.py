"""Which rows of a table a batch can meet again: the condition of the MERGE, so narrow that old files are not opened.

A copy has its original's record id, and with it the device's time. So an original lies in a file whose range of device
times holds a time of the batch, and, unless a clock ran ahead, on the day of that time. Originals with a clock that ran
ahead lie on the day they were received; all such rows are in partitions of their own. Of the days that only a few
readings of a batch open (late ones, and those without a clock) their devices' files are enough. A reject is met again
at its place in Kafka alone. No pyspark here."""

from collections.abc import Collection, Iterable, Sequence
from datetime import date, timedelta
from itertools import accumulate
from typing import Final, NamedTuple

from streaming.lake.ranges import MOST_RANGES, TimeRange, moment, named, text, timestamp

_REJECT_ID: Final = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_time")
_MOST_DAYS: Final = 400
_MOST_STRAYS: Final = 0.01
_LAST_US: Final = 253_402_300_799_999_999
"""The end of the year 9999: silver has no device time before 1970 or after it."""


class Slice(NamedTuple):
    """Rows of a batch, whose originals' device times are in ``times``."""

    rows: int
    is_clocked: bool
    times: TimeRange


def divided(found: Sequence[Slice]) -> tuple[list[Slice], list[Slice]]:
    """The slices of nearly all rows, and the strays: those without a clock where others have one, and the smallest
    ones, of a hundredth of the rows, if they are of other days."""
    clocked = sorted((it for it in found if it.is_clocked), key=lambda it: it.rows)
    if not clocked:
        return list(found), []
    most = sum(it.rows for it in clocked) * _MOST_STRAYS  # rows that may be strays
    few = [it for it, rows in zip(clocked, accumulate(it.rows for it in clocked), strict=True) if rows <= most]
    days = _days(it.times for it in clocked[len(few) :])
    late = [it for it in few if days is not None and not (_days([it.times]) or set()) <= days]
    return [it for it in clocked if it not in late], [*late, *(it for it in found if not it.is_clocked)]


class Places(NamedTuple):
    """Offsets of a Kafka partition from ``first`` to ``last``, and their receive times in microseconds since 1970; all
    four included."""

    topic: str
    partition: int
    first: int
    last: int
    first_us: int
    last_us: int


def match_condition(
    times: Sequence[TimeRange],
    strays: Sequence[TimeRange] = (),
    devices: Collection[str] = (),
    apart_us: int | None = None,
) -> str:
    """SQL: what is true of a row ``t`` of silver that is the original of a batch's row ``s``. ``times``: where its
    originals can be; ``strays``: where those of ``devices`` can be besides, of all devices if there are none.
    ``apart_us``: how far device times may be apart, where record ids do not have them."""
    if not times and not strays:
        return "t.record_id = s.record_id"
    found = [_within(times)] if times else []
    if strays:
        found.append(f"({_within(strays)}) AND ({named('t.device', devices)})" if devices else _within(strays))
    conditions = ["t.record_id = s.record_id", f"({' OR '.join(found)})"]
    if (days := _days([*times, *strays])) is not None:
        listed = ", ".join(f"DATE '{day.isoformat()}'" for day in sorted(days))
        conditions.append(f"(t.clock_ahead OR t.event_date IN ({listed}))")
    if apart_us is not None:
        conditions.append(f"abs(unix_micros(t.device_time) - unix_micros(s.device_time)) <= {apart_us}")
    return " AND ".join(conditions)


def _within(times: Sequence[TimeRange]) -> str:
    return " OR ".join(
        f"t.device_time BETWEEN {timestamp(_cut(it.first))} AND {timestamp(_cut(it.end - 1))}" for it in times
    )


def reject_condition(places: Sequence[Places]) -> str:
    """SQL: what is true of a row ``t`` of the quarantine that is a batch's reject ``s``, which are at these places."""
    same = " AND ".join(f"t.{name} = s.{name}" for name in _REJECT_ID)
    if not places:
        return same
    first_us, last_us = min(it.first_us for it in places), max(it.last_us for it in places)
    listed = [
        f"(t.kafka_topic = {text(it.topic)} AND t.kafka_partition = {it.partition}"
        f" AND t.kafka_offset BETWEEN {it.first} AND {it.last})"
        for it in places
    ]
    if len(listed) > MOST_RANGES:
        offsets = min(it.first for it in places), max(it.last for it in places)
        listed = [f"t.kafka_offset BETWEEN {offsets[0]} AND {offsets[1]}"]
    conditions = [same, f"({' OR '.join(listed)})"]
    if first_us >= 0 and last_us <= _LAST_US:  # Kafka's time can be -1, and anything that a producer says
        first, last = (moment(it).date().isoformat() for it in (first_us, last_us))
        conditions.append(f"t.ingest_date BETWEEN DATE '{first}' AND DATE '{last}'")
    return " AND ".join(conditions)


def _days(times: Iterable[TimeRange]) -> set[date] | None:
    """The days of all ranges; None if they are too many to list."""
    days: set[date] = set()
    for one in times:
        first, last = moment(_cut(one.first)).date(), moment(_cut(one.end - 1)).date()
        if (last - first).days + len(days) > _MOST_DAYS:
            return None
        days.update(first + timedelta(days=n) for n in range((last - first).days + 1))
    return days


def _cut(at_us: int) -> int:
    return min(max(at_us, 0), _LAST_US)
