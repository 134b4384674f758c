"""A look at a consumer group: what Kafka tells of it now, as ``gateway.admin.lag`` judges it. Blocks."""

from __future__ import annotations

__all__ = ["judged", "look"]

import time
from typing import TYPE_CHECKING, Final

from gateway.admin.errors import AdminError
from gateway.admin.lag import GroupLag, Look, group_lag

if TYPE_CHECKING:
    from gateway.admin.groups import GroupReading


_MOST: Final = 500


def look(admin: GroupReading, name: str) -> Look:
    """What is seen of a group now. Raises AdminMissingError for one that Kafka does not know, AdminError."""
    group = admin.group(name)
    committed = admin.committed(name)
    places = {*committed.values, *(place for member in group.members for place in member.assignment)}
    at_s = time.monotonic()
    ends = admin.log_ends(places)
    starts = admin.log_starts(places)
    problems = {**committed.problems, **starts.problems, **ends.problems}
    return Look(at_s, group, committed.values, ends.values, starts.values, problems)


def judged(admin: GroupReading, now: Look, before: Look | None) -> GroupLag:
    """The lag at this look; its age too, where the topics may be read."""
    first = {place: max(now.committed.get(place, 0), now.starts.get(place, 0)) for place in now.ends}
    lags = {place: now.ends[place] - offset for place, offset in first.items() if now.ends[place] > offset}
    # A question for each: of very many partitions only those that are furthest behind.
    unread = {place: first[place] for place in sorted(lags, key=lambda one: -lags[one])[:_MOST]}
    try:
        times = admin.record_times(unread)
    except AdminError:  # no right to read, or a leader that is away: the lag in records stands all the same
        times = {}
    return group_lag(now, before, times, time.time() * 1000)
