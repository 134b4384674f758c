"""A partition that this member owns: its commands, what earlier owners wrote of it, and what may be committed of it."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bridge.commands.command import Command, State
from bridge.commands.model import Status
from bridge.commands.offset_map import Mark, OffsetMap
from bridge.commands.ports import Committed, Partition

if TYPE_CHECKING:
    from bridge.dead_letters.reading import LoggedRecord

SENT: Final = (Status.SENT, Status.DELIVERED, Status.IN_PROGRESS)
SKEW_MS: Final = 60_000  # the clock of a record's producer may be ahead of ours by so much
_MOST_LATE: Final = 10_000  # timed-out commands whose late answer is still noted
_METADATA_LIMIT: Final = 4096  # offset.metadata.max.bytes, as brokers have it unless told otherwise
_METADATA_SHARE: Final = 0.75


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a record from its last status, or the commit alone: its mark, how often it was sent, whether it
    is in progress, and its id, if that is not its place."""

    mark: Mark
    attempt: int
    is_in_progress: bool = False
    at_ms: int = 0
    own_id: bytes = b""


class Earlier:
    """What statuses say of partitions that their commits do not: by offset of the command, in rising order."""

    def __init__(self, commits: Mapping[Partition, Committed | None]) -> None:
        self._lows = {partition: 0 if commit is None else commit.offset for partition, commit in commits.items()}
        self._found: dict[Partition, dict[int, Known]] = {partition: {} for partition in commits}

    def take(self, record: LoggedRecord) -> None:
        """Note a status of the status topic, in the topic's order. Records of other partitions or software are
        skipped."""
        try:
            fields = json.loads(record.value or b"")
            topic_and_partition, _, offset = fields["command"].rpartition(":")
            topic, _, partition = topic_and_partition.rpartition("/")
            at, status, attempt, at_ms = int(offset), fields["status"], int(fields["attempt"]), int(fields["at_ms"])
            own_id = b"" if (id_ := fields.get("id", "")) == fields["command"] else id_.encode()
            found, low = self._found[topic, int(partition)], self._lows[topic, int(partition)]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            return  # a tombstone, or somebody else's record
        if at >= low:
            mark = Mark.AWAITING if status in SENT else Mark.TAKEN
            if fields.get("terminal") is True:
                mark = Mark.FINISHED
            found[at] = Known(mark, attempt, status == Status.IN_PROGRESS, at_ms, own_id)

    def of(self, partition: Partition) -> deque[tuple[int, Known]]:
        return deque(sorted(self._found[partition].items()))


class OwnedPartition:
    """The dispatcher's state of one partition.

    ``burying`` has the bytes of each record whose dead letter or status is not in Kafka yet; ``unwritten`` counts
    statuses that it does not have. ``late`` are commands that have timed out, whose answers may still come.

    Until a record is read again its earlier status is kept, and the commit's status offset stays in front of it: the
    next owner may need it.
    """

    def __init__(self, key: Partition, committed: Committed | None, earlier: Iterable[tuple[int, Known]]) -> None:
        self.key = key
        self.map = OffsetMap(0) if committed is None else OffsetMap.parse(committed.offset, committed.metadata)
        self.commands: dict[int, Command] = {}  # unfinished, by offset
        self.late: OrderedDict[int, Command] = OrderedDict()  # timed out, by offset: an answer may still come
        self.is_closing = False  # about to be another member's
        self.burying: dict[int, int] = {}  # bytes of refused records, by offset, until Kafka has their status
        self.unwritten = 0  # statuses that Kafka does not have yet
        self._earlier = deque(earlier)  # what statuses of earlier owners say, in rising order of offset
        self._status_offset = 0  # behind the last status that Kafka has
        self._committed = committed
        self._text = ""  # of the last ``commit``
        self._text_limit = _METADATA_LIMIT
        self._is_changed = True  # the map, since then
        # The topic may have been made anew, and offsets begin again. A commit with a status offset is the new topic's,
        # and so are the statuses behind it.
        self._is_unknown = self.map.status_offset == 0
        if committed is None:
            self.map.end = -1  # the first record says where it begins

    @property
    def is_settled(self) -> bool:
        """Whether nothing waits for the broker or for Kafka."""
        is_sending = any(command.state is State.SENDING for command in self.commands.values())
        return not (self.burying or self.unwritten or is_sending)

    # --- records and statuses ------------------------------------------------------------------------

    def take(self, record: LoggedRecord) -> Known | None:
        """Note a record of commands. Returns what an earlier owner did with it; None for a new one."""
        map_, offset = self.map, record.place.offset
        self._is_changed = True
        if map_.end < 0:
            map_.low = map_.end = offset
        mark = map_.mark(offset)
        map_.take(offset)
        known = self._earlier_of(offset)
        if known is not None and self._is_unknown:
            # In whichever header: that of ids may have been renamed together with the group.
            is_named = not known.own_id or known.own_id in [value for _, value in record.headers]
            if known.at_ms + SKEW_MS < record.timestamp_ms or not is_named:
                known = None  # it is of a record that had this place before
        if mark is Mark.FINISHED or (known is None and mark is not None):
            known = Known(mark, int(mark is Mark.AWAITING))
        if known is not None:
            if known.mark is Mark.FINISHED:
                map_.finish(offset)
            elif known.mark is Mark.AWAITING:
                map_.await_(offset)
        return known

    def _earlier_of(self, offset: int) -> Known | None:
        """What an earlier status says of a record that is taken. Forgets it, and those before it."""
        earlier, found = self._earlier, None
        while earlier and earlier[0][0] <= offset:
            first, status = earlier.popleft()
            found = status if first == offset else None
            if not earlier:
                self._move_status_offset()
        return found

    def stored(self, offset: int) -> None:
        """Kafka has a status, at that offset."""
        self._is_changed = True
        self._status_offset = max(self._status_offset, offset + 1)
        if not self._earlier:
            self._move_status_offset()

    def _move_status_offset(self) -> None:
        self.map.status_offset = max(self.map.status_offset, self._status_offset)

    def finish(self, offset: int) -> None:
        """Note that Kafka has the last status of the command at this offset, or its dead letter."""
        self._is_changed = True
        self.map.finish(offset)
        self.commands.pop(offset, None)

    def time_out(self, command: Command) -> None:
        """Remember a command for its late answer."""
        self.late[command.offset] = command
        if len(self.late) > _MOST_LATE:
            self.late.popitem(last=False)

    def passed(self, position: int) -> None:
        """Note that reading goes on at this offset. Before the first record nothing is known, and nothing committed."""
        if 0 <= self.map.end < position:
            self._is_changed = True
            self.map.pass_to(position)

    def deleted(self, first: int) -> int:
        """Kafka has deleted records below ``first`` unread. Returns how many unfinished ones are gone."""
        self._is_changed = True
        held = self.commands.keys() | self.burying.keys()
        return self.map.pass_over(first, held) if self.map.end >= 0 else 0

    # --- commits -------------------------------------------------------------------------------------

    def commit(self) -> Committed | None:
        """The offset and the map to commit; None if Kafka has them already."""
        if self._is_changed:
            self._text, self._is_changed = self.map.text(), False
        now = Committed(self.map.low, self._text)
        return None if self.map.end < 0 or now == self._committed else now

    def committed(self, commit: Committed, *, is_too_large: bool) -> None:
        """Note that Kafka has a commit, or found its metadata too large: later ones are shorter."""
        if is_too_large:
            self._text_limit = max(64, len(commit.metadata) - 1)
        else:
            self._committed = commit

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be read: the map was near its limit at the last ``commit``."""
        return self.is_closing or len(self._text) >= _METADATA_SHARE * self._text_limit
