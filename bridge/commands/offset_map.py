"""What is known of a partition's offsets from its low-water mark on, and its form in the commit's metadata.

Behind the low-water mark every command is finished; it is the committed offset. Beyond it each offset has one of three
states, two bits of knowledge:

    F  finished: its terminal status is in Kafka
    A  sent, and something is awaited: after a restart it is timed, not sent again
    T  taken, and nothing more; also offsets without a record (compaction, transactions)

The metadata is the text ``1|STATUS_OFFSET|RUNS``, with a run as letter and length: ``1|4711|F12A3T5``. Statuses with a
lower offset than STATUS_OFFSET, in the status partition of the same number, are in the runs. A broker takes 4096 bytes
at most (``offset.metadata.max.bytes``).
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

_VERSION: Final = "1"
_NEAR: Final = 100
_RUN: Final = re.compile(r"([FAT])([1-9][0-9]{0,8})")
_TEXT: Final = re.compile(r"1\|([0-9]{1,19})\|((?:[FAT][1-9][0-9]{0,8})*)")


class Mark(StrEnum):
    """The state of an offset."""

    FINISHED = "F"
    AWAITING = "A"
    TAKEN = "T"


@dataclass(slots=True)
class OffsetMap:
    """The offsets of one partition. ``low`` is the low-water mark: no offset below it is unfinished.

    ``end`` is the offset after the last one taken. ``status_offset`` is that of the metadata.
    """

    low: int
    status_offset: int = 0
    end: int = -1
    _marks: dict[int, Mark] = field(default_factory=dict)  # of offsets from low to before end; without one: FINISHED

    def __post_init__(self) -> None:
        self.end = max(self.end, self.low)

    @classmethod
    def parse(cls, offset: int, metadata: str) -> Self:
        """The map of a commit. Other text, of a group that was used by other software, gives an empty map."""
        found = cls(offset)
        if (match := _TEXT.fullmatch(metadata)) is None:
            return found
        found.status_offset = int(match[1])
        for mark, count in _RUN.findall(match[2]):
            if mark != Mark.FINISHED:
                found._marks.update(dict.fromkeys(range(found.end, found.end + int(count)), Mark(mark)))
            found.end += int(count)
        return found

    def mark(self, offset: int) -> Mark | None:
        """The state of an offset; None for one that was not taken yet."""
        if offset >= self.end:
            return None
        return Mark.FINISHED if offset < self.low else self._marks.get(offset, Mark.FINISHED)

    def take(self, offset: int) -> None:
        """Note a record that was taken. Offsets that were passed over have no record, and count as finished."""
        if offset >= self.end:
            self.end = offset + 1
            self._marks[offset] = Mark.TAKEN

    def await_(self, offset: int) -> None:
        """Note that a taken command is sent."""
        if offset in self._marks:
            self._marks[offset] = Mark.AWAITING

    def finish(self, offset: int) -> None:
        """Note that a command is finished, and move the low-water mark behind all that are."""
        self._marks.pop(offset, None)
        self._advance()

    def _advance(self) -> None:
        """Move ``low`` to the first offset that is not finished."""
        # Marks are in the order of their offsets: records come so, and a mark keeps its place when it changes. But the
        # first of a dict whose first ones were deleted is found slowly, and is most often near.
        for offset in range(self.low, min(self.end, self.low + _NEAR)):
            if offset in self._marks:
                self.low = offset
                return
        self.low = next(iter(self._marks), self.end)

    def pass_to(self, end: int) -> None:
        """Offsets before ``end`` that were not taken have no record."""
        self.end = end
        self._advance()

    def pass_over(self, first: int, held: Collection[int]) -> int:
        """Kafka has deleted the records below ``first``: forget the unfinished ones that are not held. Returns how many
        offsets that is, those that were never taken among them."""
        gone = [offset for offset in self._marks if offset < first and offset not in held]
        for offset in gone:
            del self._marks[offset]
        unread = max(0, first - self.end)
        self.end = max(self.end, first)
        self._advance()
        return len(gone) + unread

    def text(self) -> str:
        """The map as the metadata of a commit, which ``parse`` reads."""
        runs: list[str] = []
        at = self.low
        last, count = "", 0
        for offset, mark in self._marks.items():
            if offset > at:  # a stretch of finished ones
                if count:
                    runs.append(f"{last}{count}")
                runs.append(f"F{offset - at}")
                last, count = "", 0
            if mark == last:
                count += 1
            else:
                if count:
                    runs.append(f"{last}{count}")
                last, count = mark, 1
            at = offset + 1
        if count:
            runs.append(f"{last}{count}")
        if at < self.end and runs:
            runs.append(f"F{self.end - at}")
        return f"{_VERSION}|{self.status_offset}|{''.join(runs)}"
