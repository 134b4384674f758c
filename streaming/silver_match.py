"""Which rows of silver a batch can meet again: the condition of the MERGE, so narrow that old files are not opened.

A copy has its original's record id, and with it the device's time. So an original lies in a file whose range of device
times holds a time of the batch, and, unless a clock ran ahead, on the day of that time. A site that was offline for
three days therefore costs the files of those three days, for the batches that bring it, and nobody else. Originals
with a clock that ran ahead lie on the day they were received; all such rows are in partitions of their own.
No pyspark here.
"""

from __future__ import annotations

__all__ = ["Span", "match_condition", "spans"]

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_SPANS: Final = 64
_MOST_DAYS: Final = 400
_MIN_US: Final = 0
_MAX_US: Final = 253_402_300_799_999_999


class Span(NamedTuple):
    """Device times from ``first_us`` to ``last_us``, both included, in microseconds since 1970."""

    first_us: int
    last_us: int


def spans(found: Iterable[Span], *, most: int = _MOST_SPANS) -> list[Span]:
    """The same times in at most ``most`` spans, in order: the widest gaps are what is left out."""
    joined: list[Span] = []
    for span in sorted(found):
        if joined and span.first_us <= joined[-1].last_us + 1:
            joined[-1] = Span(joined[-1].first_us, max(joined[-1].last_us, span.last_us))
        else:
            joined.append(span)
    if len(joined) <= most:
        return joined
    gaps = sorted(range(1, len(joined)), key=lambda at: joined[at].first_us - joined[at - 1].last_us, reverse=True)
    kept = [0, *sorted(gaps[: most - 1]), len(joined)]
    return [Span(joined[a].first_us, joined[b - 1].last_us) for a, b in pairwise(kept)]


def match_condition(times: Sequence[Span]) -> str:
    """SQL: what is true of a row ``t`` of silver that may be the original of a batch's row ``s`` with these times."""
    if not times:
        return "t.record_id = s.record_id"
    ranges = " OR ".join(
        f"t.device_time BETWEEN {_timestamp(it.first_us)} AND {_timestamp(it.last_us)}" for it in times
    )
    conditions = ["t.record_id = s.record_id", f"({ranges})"]
    if (days := _days(times)) is not None:
        listed = ", ".join(f"DATE '{day.isoformat()}'" for day in days)
        conditions.append(f"(t.clock_ahead OR t.event_date IN ({listed}))")
    return " AND ".join(conditions)


def _days(times: Sequence[Span]) -> list[date] | None:
    """The days of all spans; None if they are too many to list."""
    days: set[date] = set()
    for span in times:
        first, last = _moment(span.first_us).date(), _moment(span.last_us).date()
        if (last - first).days + len(days) > _MOST_DAYS:
            return None
        days.update(first + timedelta(days=n) for n in range((last - first).days + 1))
    return sorted(days)


def _moment(at_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=min(max(at_us, _MIN_US), _MAX_US))


def _timestamp(at_us: int) -> str:
    return f"TIMESTAMP '{_moment(at_us).strftime('%Y-%m-%d %H:%M:%S.%f')}'"
