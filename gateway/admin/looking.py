"""Reads a consumer group from Kafka, for ``gateway.admin.lag``. Blocks."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from gateway.admin.errors import AdminError
from gateway.admin.lag import GroupLag, Look, group_lag

if TYPE_CHECKING:
    from gateway.admin.groups import GroupReading
    from gateway.admin.model import TopicPartition

_MOST: Final = 500


def look(admin: GroupReading, name: str) -> Look:
    """The present state of a group. Raises AdminMissingError for an unknown group, AdminError."""
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
    """Why a group that reads these topics cannot be judged; empty if all topics are visible.

    Kafka silently leaves out offsets of topics that the user may not see."""
    if not topics:
        return "it shows no topic: it has committed no offset yet, or its topics may not be seen"
    hidden = sorted({*topics} - {topic.name for topic in admin.topics(topics)})
    return f"its topics may not be seen, or are gone: {', '.join(hidden)}" if hidden else ""


def judged(admin: GroupReading, now: Look, before: Look | None) -> GroupLag:
    """The lag at this look, with its age if the topics may be read."""
    first = {place: max(now.committed.get(place, 0), now.starts.get(place, 0)) for place in now.ends}
    lags = {place: now.ends[place] - offset for place, offset in first.items() if now.ends[place] > offset}
    earlier = {} if before is None else before.committed

    def urgency(place: TopicPartition) -> tuple[bool, int]:
        return now.committed.get(place) != earlier.get(place), -lags[place]

    # One request for each partition. Of very many only those that stand still, and those furthest behind.
    unread = {place: first[place] for place in sorted(lags, key=urgency)[:_MOST]}
    try:
        times = admin.record_times(unread)
    except AdminError:  # no right to read, or no leader: the lag in records is still known
        times = {}
    return group_lag(now, before, times, time.time() * 1000)
