"""Which dead letters have been replayed: marks beside them, in the same partition, and what a row of marks means.

A replay writes ``begun`` before it does anything, and reads the partition up to its own mark: Kafka's order of the
marks decides which of two replays at once has the dead letter, and the other leaves it alone. When Kafka has what
became of the message it writes ``done``; when nothing was written it writes ``undone``, which leaves things as they
were. A replay that dies in between leaves ``begun``: nobody knows whether the message was written, so nobody replays
it again who does not insist.

Who insists says behind which replay: of two that insist at once, the second one's mark is behind the first one's and
means nothing any more.

Marks are younger than their dead letters and in their partition, so they expire later.
"""

from __future__ import annotations

__all__ = ["Mark", "MarkKind", "Marks", "Replay"]

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from bridge import wire

if TYPE_CHECKING:
    from bridge.dead_letters.reading import LoggedRecord


class MarkKind(StrEnum):
    """The value of ``dlq.replay``."""

    BEGUN = "begun"
    DONE = "done"
    UNDONE = "undone"


_KINDS = {kind.value.encode(): kind for kind in MarkKind}


@dataclass(frozen=True, slots=True)
class Mark:
    """One mark. ``offset`` is the dead letter's, in the partition that the mark is in. ``after``: the replay behind
    which a BEGUN insists, empty for none."""

    kind: MarkKind
    offset: int
    replay: str
    after: str = ""

    def headers(self) -> list[tuple[str, bytes]]:
        """What the mark's record carries; it has no value."""
        headers = [
            (wire.DLQ_REPLAY, self.kind.value.encode()),
            (wire.DLQ_REPLAY_OFFSET, b"%d" % self.offset),
            (wire.DLQ_REPLAY_ID, self.replay.encode()),
        ]
        return [*headers, (wire.DLQ_REPLAY_AFTER, self.after.encode())] if self.after else headers

    @property
    def key(self) -> bytes:
        """A key for the mark's record: were the topic compacted, the last mark would stay."""
        return b"replay-of-%d" % self.offset

    @classmethod
    def of(cls, record: LoggedRecord) -> Mark | None:
        """The mark that a record is, or None."""
        said = {name: value or b"" for name, value in record.headers}
        kind = _KINDS.get(said.get(wire.DLQ_REPLAY, b""))
        offset = said.get(wire.DLQ_REPLAY_OFFSET, b"")
        if kind is None or not offset.isdigit():
            return None
        replay, after = (said.get(name, b"").decode() for name in (wire.DLQ_REPLAY_ID, wire.DLQ_REPLAY_AFTER))
        return cls(kind, int(offset), replay, after)


@dataclass(frozen=True, slots=True)
class Replay:
    """The replay that has a dead letter: ``done``, or begun and with its end not known. ``before``: what it insisted
    on doing again."""

    id: str
    done: bool
    at_ms: int
    before: Replay | None


class Marks:
    """What the marks of any number of partitions say. Feed them in the order of each partition."""

    def __init__(self) -> None:
        self._replays: dict[tuple[str, int, int], Replay | None] = {}

    def take(self, record: LoggedRecord) -> bool:
        """Take a record into account; true when it was a mark."""
        mark = Mark.of(record)
        if mark is None:
            return False
        at = (record.place.topic, record.place.partition, mark.offset)
        has = self._replays.get(at)
        if mark.kind is MarkKind.BEGUN:
            if mark.after == (has.id if has is not None else ""):
                self._replays[at] = Replay(mark.replay, done=False, at_ms=record.timestamp_ms, before=has)
        elif has is not None and has.id == mark.replay and not has.done:
            if mark.kind is MarkKind.DONE:
                self._replays[at] = Replay(has.id, done=True, at_ms=record.timestamp_ms, before=has.before)
            else:
                self._replays[at] = has.before
        return True

    def of(self, topic: str, partition: int, offset: int) -> Replay | None:
        """The replay that has the dead letter at this place, or None: it may be replayed."""
        return self._replays.get((topic, partition, offset))
