"""A look at a consumer group: what Kafka tells of it now, as ``gateway.admin.lag`` judges it. Blocks."""

from __future__ import annotations

__all__ = ["judged", "look", "unseen"]

import time
from typing import TYPE_CHECKING, Final

from gateway.admin.errors import AdminError
from gateway.admin.lag import GroupLag, Look, group_lag

if TYPE_CHECKING:
    from collections.abc import Collection

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
    told = {place.topic for place in ends.values}
    missing = {place.topic for place in places} - told
    hidden = unseen(admin, missing) if missing or not places else ""
    return Look(at_s, group, committed.values, ends.values, starts.values, problems, hidden)


def unseen(admin: GroupReading, topics: Collection[str]) -> str:
    """Why nothing can be said of a group that reads these topics; empty when all may be seen. Kafka leaves out offsets
    of topics that it does not show to who asks, without a word."""
    if not topics:
        return "it shows no topic: it has committed no offset yet, or its topics may not be seen"
    hidden = sorted({*topics} - {topic.name for topic in admin.topics(topics)})
    return f"its topics may not be seen, or are gone: {', '.join(hidden)}" if hidden else ""


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
