"""The dead letters that a ``gateway dlq`` command is about, by filters or places."""

import heapq
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bridge.dead_letters.reading import Assembler, DeadLetter, Place
from bridge.dead_letters.replay_marks import Marks
from bridge.kafka.reader import Partition
from bridge.routing.filters import matches
from gateway.cli.dead_letters.reader import DeadLetterReader

_PLACE = re.compile(r"(?:([A-Za-z0-9._-]{1,249})/)?(\d+):(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions of a dead letter; an empty tuple or None is no condition. Times are the message's receipt in
    milliseconds since 1970: ``since_ms`` is included, ``until_ms`` is not."""

    reasons: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    mqtt_filters: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    def takes(self, letter: DeadLetter) -> bool:
        return (
            (not self.reasons or letter.reason in self.reasons)
            and (not self.routes or letter.route in self.routes)
            and (not self.devices or letter.device in self.devices)
            and (not self.mqtt_filters or self._topic_matches(letter.mqtt_topic))
            and (self.since_ms is None or letter.first_seen_ms >= self.since_ms)
            and (self.until_ms is None or letter.first_seen_ms < self.until_ms)
        )

    def _topic_matches(self, topic: str | None) -> bool:
        return topic is not None and any(matches(text, topic) for text in self.mqtt_filters)


@dataclass(frozen=True, slots=True)
class Selection:
    """Dead letters without payloads, oldest first, their marks, and the ends of reading.

    ``total``: all dead letters; ``matching``: the wanted ones, of which ``letters`` may be only the newest."""

    total: int
    matching: int
    letters: tuple[DeadLetter, ...]
    marks: Marks
    ends: dict[Partition, int]


async def look_through(
    reader: DeadLetterReader, wanted: Callable[[DeadLetter], bool] = lambda _letter: True, *, newest: int | None = None
) -> Selection:
    """Read all present dead letters once, and keep the ``wanted`` ones, or the ``newest`` of them. Keeps no payload,
    but about a kilobyte for each."""
    starts, ends = await reader.beginnings(), await reader.ends()
    assembler, marks = Assembler(keep_values=False), Marks()
    kept: list[tuple[int, Place, DeadLetter]] = []  # with ``newest`` a heap: the oldest goes first
    total = matching = 0

    def take(letter: DeadLetter) -> None:
        """Count a dead letter, and keep it if it is wanted and new enough."""
        nonlocal total, matching
        total += 1
        if not wanted(letter):
            return
        matching += 1
        entry = (letter.first_seen_ms, letter.place, letter)
        if newest is None:
            kept.append(entry)
        elif len(kept) < newest:
            heapq.heappush(kept, entry)
        else:
            heapq.heappushpop(kept, entry)

    async for record in reader.read(starts, ends):
        letter = None if marks.take(record) else assembler.take(record)
        if letter is not None:
            take(letter)
    for letter in assembler.rest():
        take(letter)
    kept.sort(key=lambda entry: entry[:2])
    return Selection(total, matching, tuple(letter for _, _, letter in kept), marks, ends)


def find(letters: Sequence[DeadLetter], place: Place) -> DeadLetter | None:
    return next((letter for letter in letters if place in letter.places), None)


def parse_place(text: str, default_topic: str) -> Place:
    """``PARTITION:OFFSET`` of the common dead-letter topic, or ``TOPIC/PARTITION:OFFSET``. Raises ValueError."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} names no dead letter: write PARTITION:OFFSET, or TOPIC/PARTITION:OFFSET, as dlq list shows it"
        )
    return Place(found[1] or default_topic, int(found[2]), int(found[3]))
