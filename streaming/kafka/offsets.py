"""Which Kafka offsets a micro-batch was planned with, and which of them nobody can read any more.

Spark notes a batch's last offsets before it reads them. What Kafka lost of such a range (retention, ``delete_records``,
a topic that was deleted and made anew, a log cut short) Spark steps over with a line in its log; here it is told to the
offset.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple

from streaming.lake.storage import Folder

Reason = Literal["deleted", "recreated", "truncated", "gone"]
"""``deleted``: below the log's start now. ``recreated``: the topic is another one of the same name, and these offsets
of it were never read. ``truncated``: beyond the log's end, although they were there when the batch was planned.
``gone``: the partition is not there or not subscribed to any more, from ``first_offset`` on."""


class Planned(NamedTuple):
    """What one batch reads of one partition: ``start`` ≤ offset < ``end``; ``end`` None: the partition is gone."""

    topic: str
    partition: int
    start: int
    end: int | None

    @property
    def size(self) -> int:
        return max(0, (self.start if self.end is None else self.end) - self.start)


class Gap(NamedTuple):
    """Offsets that were to be read and cannot be, both ends included; no last one: nobody knows how far."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int | None
    reason: Reason

    @property
    def size(self) -> int | None:
        return None if self.last_offset is None else self.last_offset - self.first_offset + 1

    def __str__(self) -> str:
        if self.last_offset is None:
            return f"{self.topic}/{self.partition} from offset {self.first_offset} on ({self.reason})"
        return f"{self.topic}/{self.partition} offsets {self.first_offset} to {self.last_offset} ({self.reason})"


def planned_ranges(checkpoint: Folder, batch: int) -> list[Planned]:
    """What the batch was planned to read, out of the query's checkpoint. One Kafka source, and the batch being run.
    A partition that came later begins at 0, as it does for Spark; those of a topic that is new here begin where Kafka
    does, which is told by ``start`` -1."""
    ends = _offsets(checkpoint.read_text(f"offsets/{batch}"))
    begins = _offsets(checkpoint.read_text(f"offsets/{batch - 1}" if batch else "sources/0/0"))
    known = {topic for topic, _ in begins}
    return [
        Planned(*place, begins.get(place, 0 if place[0] in known else -1), ends.get(place))
        for place in sorted(begins.keys() | ends.keys())
    ]


def _offsets(text: str | None) -> dict[tuple[str, int], int]:
    """The offsets in one of Spark's files: its last line is the source's, the lines before are Spark's own."""
    if text is None:
        raise FileNotFoundError("the checkpoint has no offsets of the batch that is being run: was it deleted?")
    found: dict[str, dict[str, int]] = json.loads(text.strip().splitlines()[-1])
    return {(topic, int(number)): offset for topic, by in found.items() for number, offset in by.items()}


def lost_before(
    planned: Iterable[Planned], earliest: Mapping[tuple[str, int], int], recreated: Collection[str]
) -> list[Gap]:
    """What is lost already before the batch is read. ``earliest``: the first offset that each partition still has."""
    gaps = []
    for topic, partition, start, end in planned:
        if end is None:  # deleted, or not read any more
            gaps.append(Gap(topic, partition, start, None, "gone"))
            continue
        begin = earliest.get((topic, partition), start)
        if topic in recreated or end < start:
            # Offsets count from 0 again: those before where the batch begins are of the new topic, and never read.
            if begin < min(start, end):
                gaps.append(Gap(topic, partition, begin, min(start, end) - 1, "recreated"))
        elif 0 <= start < begin and start < end:
            gaps.append(Gap(topic, partition, start, min(begin, end) - 1, "deleted"))
    return gaps


def unreadable(planned: Planned, low: int, high: int) -> list[Gap]:
    """What of a batch's range Kafka no longer has, if it has offsets from ``low`` to before ``high`` now. Lost is of it
    what has no row. An offset within that has no record was compacted, or is a transaction's mark: that is no loss."""
    topic, partition, start, end = planned
    if end is None or not planned.size:
        return []
    gaps = []
    if start < low:
        gaps.append(Gap(topic, partition, start, min(end, low) - 1, "deleted"))
    if end > high:
        gaps.append(Gap(topic, partition, max(start, high), end - 1, "truncated"))
    return gaps
