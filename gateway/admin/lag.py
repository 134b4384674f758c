"""How far a group is behind, and whether it moves. No I/O.

The lag in records is the next offset of the log minus the committed one. The lag in seconds is the age of the oldest
record that the group has not finished: the time stamp of the batch at the committed offset, against now. Records of a
spool carry the time at which they were received, an outage ago: where all that is unread was written since an earlier
look, it is no older than that look to its reader. Whether a
consumer is slow or has stopped shows in two looks some seconds apart: a slow one commits, a stopped one does not.
"""

from __future__ import annotations

__all__ = ["BAD", "GroupLag", "Look", "PartitionLag", "State", "group_lag", "rebalancing"]

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.admin.model import Group, Member, TopicPartition

State = Literal[
    "caught up", "catching up", "moving", "slow", "stopped", "nobody reads it", "rebalancing", "behind", "lost records",
    "unknown",
]  # fmt: skip
"""``moving``: it commits, and the lag stays about the same. ``slow``: it commits, and falls behind. ``stopped``: a
member has it and commits nothing. ``behind``: it lags, and a second look would tell why. ``lost records``: its place
was deleted before it was read. ``unknown``: Kafka did not tell an offset."""

BAD: Final[frozenset[State]] = frozenset({"stopped", "nobody reads it", "lost records"})
_TWO_COMMITS_S: Final = 10.0
_HALF: Final = 0.5
_NOISE: Final = 0.02  # a change of the lag below this share of the records that came is none


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of a group at one moment (``at_s``, of a monotonic clock)."""

    at_s: float
    group: Group
    committed: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int]
    problems: Mapping[TopicPartition, str] = field(default_factory=dict)
    unseen: str = ""  # why nothing can be said of it, or not of all its topics


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """``age_seconds``: of the oldest record not yet finished, None where nobody knows (nothing is unread, no right to
    read). Rates are records a second, None without a second look. ``lost``: records that were deleted unread."""

    place: TopicPartition
    committed: int | None
    start: int | None
    end: int | None
    lag: int | None
    lost: int
    age_seconds: float | None
    member: Member | None
    read_rate: float | None
    write_rate: float | None
    state: State
    problem: str = ""

    @property
    def seconds_to_catch_up(self) -> float | None:
        """At the pace between the looks; None when it does not catch up."""
        if self.lag is None or self.read_rate is None or self.write_rate is None:
            return None
        gain = self.read_rate - self.write_rate
        return self.lag / gain if gain > 0 and self.lag else None


@dataclass(frozen=True, slots=True)
class GroupLag:
    group: Group
    partitions: tuple[PartitionLag, ...]

    @property
    def lag(self) -> int:
        """In records, over all partitions whose lag is known."""
        return sum(one.lag or 0 for one in self.partitions)

    @property
    def age_seconds(self) -> float | None:
        return max((one.age_seconds for one in self.partitions if one.age_seconds is not None), default=None)

    @property
    def bad(self) -> tuple[PartitionLag, ...]:
        return tuple(one for one in self.partitions if one.state in BAD)


def group_lag(look: Look, before: Look | None, times_ms: Mapping[TopicPartition, int], now_ms: float) -> GroupLag:
    """The lag at ``look``, told with the help of an earlier one. ``times_ms``: when the records at the committed
    offsets were written."""
    members = {place: member for member in look.group.members for place in member.assignment}
    places = sorted({*look.committed, *members})
    return GroupLag(
        look.group, tuple(_partition(place, look, before, times_ms, now_ms, members.get(place)) for place in places)
    )


def _partition(
    place: TopicPartition,
    look: Look,
    before: Look | None,
    times_ms: Mapping[TopicPartition, int],
    now_ms: float,
    member: Member | None,
) -> PartitionLag:
    committed, start, end = look.committed.get(place), look.starts.get(place), look.ends.get(place)
    first = committed if committed is not None else start
    lag = None if end is None or first is None else max(0, end - max(first, start or 0))
    lost = max(0, start - committed) if start is not None and committed is not None else 0
    age = max(0.0, (now_ms - times_ms[place]) / 1000) if lag and place in times_ms else None
    read_rate = write_rate = None
    if before is not None and (seconds := look.at_s - before.at_s) > 0:
        if committed is not None and place in before.committed:
            read_rate = (committed - before.committed[place]) / seconds
        if end is not None and place in before.ends:
            write_rate = (end - before.ends[place]) / seconds
            if age is not None and committed is not None and before.ends[place] <= committed:
                age = min(age, seconds)
    pace = _Pace(read_rate, write_rate, age, lag or 0)
    state = _state(look.group, lag, lost, member, committed, pace, looked_twice=before is not None)
    return PartitionLag(
        place, committed, start, end, lag, lost, age, member, read_rate, write_rate, state, look.problems.get(place, "")
    )


class _Pace(NamedTuple):
    read_rate: float | None
    write_rate: float | None
    age_seconds: float | None
    lag: int

    @property
    def state(self) -> State:
        """Of a partition whose committed offset moves. Commits come in steps, every five seconds by default, so two
        looks see one of them too many or too few: what is behind by no more than two steps keeps up."""
        read, written = self.read_rate or 0.0, self.write_rate
        if written is None or abs(read - written) <= _NOISE * max(read, written):
            return "moving"
        if read > written:
            return "catching up"
        if self.age_seconds is not None and self.age_seconds <= _TWO_COMMITS_S:
            return "moving"
        # By the pace at which records come: those of a spool that is read back have old time stamps.
        return "slow" if read < _HALF * written or self.lag > _TWO_COMMITS_S * written else "moving"


def _state(
    group: Group,
    lag: int | None,
    lost: int,
    member: Member | None,
    committed: int | None,
    pace: _Pace,
    *,
    looked_twice: bool,
) -> State:
    if lag is None:
        return "unknown"
    if lost:
        return "lost records"
    if not lag:
        return "caught up"
    if rebalancing(group.state):
        return "rebalancing"
    if pace.read_rate is not None and pace.read_rate > 0:
        return pace.state
    if member is None:
        return "nobody reads it"
    if not looked_twice or (committed is not None and pace.read_rate is None):
        return "behind"
    return "stopped"


def rebalancing(state: str) -> bool:
    """Whether a group's state is one in which partitions change hands: of the classic five, and of Kafka 4's."""
    return state in {"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "NotReady"}
