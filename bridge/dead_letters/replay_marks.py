"""Marks of replayed dead letters, in the same partition, and the meaning of several marks.

A replay first writes ``begun``, and reads the partition up to its own mark. The order of the marks in Kafka decides
which of two simultaneous replays owns the dead letter; the other skips it. When Kafka has the records of the message,
the replay writes ``done``. When nothing was written it writes ``undone``, and the dead letter is as before. A replay
that dies in between leaves ``begun``. Then it is unknown whether the message was written, and another replay must be
forced.

A forced replay names the replay that it follows. Of two simultaneous ones, the second mark is behind the first one and
has no effect.

Marks are younger than their dead letters and in their partition, so they expire later.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bridge import wire
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
        """The headers of the mark's record, which has no value."""
        headers = [
            (wire.DLQ_REPLAY, self.kind.value.encode()),
            (wire.DLQ_REPLAY_OFFSET, b"%d" % self.offset),
            (wire.DLQ_REPLAY_ID, self.replay.encode()),
        ]
        return [*headers, (wire.DLQ_REPLAY_AFTER, self.after.encode())] if self.after else headers

    @property
    def key(self) -> bytes:
        """The key of the mark's record. A compacted topic keeps the last mark."""
        return b"replay-of-%d" % self.offset

    @classmethod
    def of(cls, record: LoggedRecord) -> Mark | None:
        """The mark in a record; None for any other record."""
        said = {name: value or b"" for name, value in record.headers}
        kind = _KINDS.get(said.get(wire.DLQ_REPLAY, b""))
        offset = said.get(wire.DLQ_REPLAY_OFFSET, b"")
        if kind is None or not offset.isdigit() or wire.DLQ_REASON in said:
            return None  # a dead letter, whose message had such headers, is none
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
    """The marks of any number of partitions. Feed them in the order of each partition."""

    def __init__(self) -> None:
        self._replays: dict[tuple[str, int, int], Replay | None] = {}  # by the dead letter's place

    def take(self, record: LoggedRecord) -> bool:
        """Note a record: a mark begins, ends or takes back a replay of a dead letter. True when it is a mark."""
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
        """The replay that owns the dead letter at this place. None: it may be replayed."""
        return self._replays.get((topic, partition, offset))
