"""The lag of a group, and whether it is slow or has stopped. No I/O.

The lag in records is the log's next offset minus the committed one. The lag in seconds is the age of the group's oldest
unfinished record: the present minus the timestamp of the batch at the committed offset. Records from a spool have the
old time of their receipt. So if all unread records were written since an earlier look, the lag is at most the time
since that look. Two looks some seconds apart tell a slow consumer, which commits, from a stopped one, which does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from gateway.admin.model import Group, Member, TopicPartition

State = Literal[
    "caught up", "catching up", "moving", "slow", "stopped", "nobody reads it", "rebalancing", "behind", "lost records",
    "unknown",
]  # fmt: skip
"""``moving``: it commits, and the lag is stable. ``slow``: it commits, and the lag grows. ``stopped``: a member has the
partition and commits nothing. ``behind``: it lags, and there was no second look. ``lost records``: records were deleted
before they were read. ``unknown``: Kafka did not report an offset, or the committed one is beyond the log's end."""

BAD: Final[frozenset[State]] = frozenset({"stopped", "nobody reads it", "lost records"})
_TWO_COMMITS_S: Final = 10.0
_HALF: Final = 0.5
_NOISE: Final = 0.02  # a smaller change of the lag, as a share of the new records, is ignored


@dataclass(frozen=True, slots=True)
class Look:
    """A group at one moment (``at_s``, of a monotonic clock)."""

    at_s: float
    group: Group
    committed: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int]
    problems: Mapping[TopicPartition, str] = field(default_factory=dict)
    unseen: str = ""  # why the group, or some of its topics, cannot be judged


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """``age_seconds`` is the age of the oldest unfinished record; None without unread records or the right to read.
    Rates are records per second, None without a second look. ``lost`` counts records that were deleted unread."""

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
        """Time to catch up at the rates between the looks; None if it does not."""
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
        """The lag in records, over all partitions with a known lag."""
        return sum(one.lag or 0 for one in self.partitions)

    @property
    def age_seconds(self) -> float | None:
        return max((one.age_seconds for one in self.partitions if one.age_seconds is not None), default=None)

    @property
    def unknown(self) -> str:
        """Why the lag of some partition is unknown; empty if each is known."""
        unknown = (one for one in self.partitions if one.state == "unknown")
        return next((f"{one.place}: {one.problem or 'Kafka does not report its offsets'}" for one in unknown), "")

    @property
    def bad(self) -> tuple[PartitionLag, ...]:
        return tuple(one for one in self.partitions if one.state in BAD)


def group_lag(look: Look, before: Look | None, times_ms: Mapping[TopicPartition, int], now_ms: float) -> GroupLag:
    """The lag at ``look``, compared with an earlier look. ``times_ms``: when the records at the committed offsets were
    written."""
    members = {place: member for member in look.group.members for place in member.assignment}
    places = sorted({*look.committed, *members})
    return GroupLag(
        look.group, tuple(_partition_lag(place, look, before, times_ms, now_ms, members.get(place)) for place in places)
    )


def _partition_lag(
    place: TopicPartition,
    look: Look,
    before: Look | None,
    times_ms: Mapping[TopicPartition, int],
    now_ms: float,
    member: Member | None,
) -> PartitionLag:
    """The lag at ``look``; ``before``: an earlier look; ``times_ms``: when the records at the commits were written."""
    committed, start, end = look.committed.get(place), look.starts.get(place), look.ends.get(place)
    first = committed if committed is not None else start
    problem = look.problems.get(place, "")
    if end is not None and committed is not None and committed > end:
        problem = f"its commit is beyond the log's end ({committed} > {end}): the topic was made anew, or lost records"
    lag = None if end is None or first is None or problem else max(0, end - max(first, start or 0))
    lost = max(0, start - committed) if start is not None and committed is not None else 0
    age = max(0.0, (now_ms - times_ms[place]) / 1000) if lag and place in times_ms else None
    read_rate = write_rate = None
    if before is not None and (seconds := look.at_s - before.at_s) > 0:
        if committed is not None and place in before.committed:
            read_rate = (committed - before.committed[place]) / seconds
        if end is not None and place in before.ends:
            write_rate = (end - before.ends[place]) / seconds
            if age is not None and committed is not None and before.ends[place] <= committed:
                age = min(age, seconds)  # what waits is newer than that look
    pace = _Pace(read_rate, write_rate, age, lag or 0)
    state = _state(look.group, lag, lost, member, committed, pace, looked_twice=before is not None)
    return PartitionLag(place, committed, start, end, lag, lost, age, member, read_rate, write_rate, state, problem)


class _Pace(NamedTuple):
    read_rate: float | None
    write_rate: float | None
    age_seconds: float | None
    lag: int

    @property
    def state(self) -> State:
        """The state of a partition whose committed offset moves.

        Consumers commit in steps, by default every five seconds, so two looks may see a step too many or too few. A lag
        of at most two steps therefore counts as keeping up."""
        read, written = self.read_rate or 0.0, self.write_rate
        if written is None or abs(read - written) <= _NOISE * max(read, written):
            return "moving"
        if read > written:
            return "catching up"
        if self.age_seconds is not None and self.age_seconds <= _TWO_COMMITS_S:
            return "moving"
        # By the rate of new records, because records from a spool have old timestamps.
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
    """The state of one partition. ``member`` reads it; ``lost`` records were deleted before they were read."""
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
    """Whether partitions move between members in this state of a group, classic or KIP-848."""
    return state in {"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "NotReady"}
