"""Verifies commands: what was taken from the command topics against the status topic.

Behind a partition's committed low-water mark, and where its commit's map says so, every command is finished, so it has
one terminal status. Beyond it, the map says which are under way and which wait.

The statuses of a partition's commands are in the status partition of the same number, so memory holds those of one
number at a time: 80 bytes a command, and 310 if it has an id of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from bridge.commands.model import Status
from bridge.commands.offset_map import Mark, OffsetMap
from bridge.commands.status_reading import read_status
from config.errors import ExitStatus

if TYPE_CHECKING:
    from bridge.commands.ports import Committed, Partition
    from bridge.commands.status_reading import StatusView
    from bridge.dead_letters.reading import LoggedRecord, Place
    from config.tables.commands import CommandSettings
    from gateway.tools.verify.check import Span
    from gateway.tools.verify.command_log import KafkaCommandLog

NAMED: Final = 5
_CLOCKS_MS: Final = 600_000  # by which clocks of producers may be ahead of the gateway's
_SKEW_MS: Final = 60_000  # as the dispatcher allows it
_NEVER_MS: Final = 1 << 62
_SENT: Final = frozenset({Status.SENT, Status.DELIVERED, Status.IN_PROGRESS})


@dataclass(slots=True)
class CommandAccount:
    """The commands of one partition, by their records from offset ``first`` to below ``end``.

    records = finished + waiting + under way + unread + missing + unjudged. ``low`` is the committed low-water mark,
    None without a commit. ``deleted_unread`` counts offsets, of which some may have had no record. ``twice`` are
    finished, with two different outcomes.
    """

    topic: str
    partition: int
    first: int
    end: int
    low: int | None
    records: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    waiting: int = 0
    under_way: int = 0
    unread: int = 0
    missing: int = 0
    twice: int = 0
    status_deleted: int = 0
    id_used_again: int = 0
    deleted_unread: int = 0
    missing_at: list[int] = field(default_factory=list)
    twice_at: list[str] = field(default_factory=list)

    @property
    def finished(self) -> int:
        return sum(self.outcomes.values())

    @property
    def unjudged(self) -> int:
        """Records without a terminal status, which may have had one."""
        return self.status_deleted + self.id_used_again


@dataclass(frozen=True, slots=True)
class CommandVerdict:
    """The result for one ``[[commands]]``. ``wrong`` and ``unjudged`` are sentences."""

    name: str
    group: str
    status_topic: str
    accounts: list[CommandAccount]
    wrong: list[str]
    unjudged: list[str]

    @property
    def exit_status(self) -> ExitStatus:
        if self.wrong:
            return ExitStatus.MISSING_MESSAGES
        return ExitStatus.UNJUDGED if self.unjudged else ExitStatus.OK


class _Told(NamedTuple):
    """What the status topic has of a command: an outcome, a second different one, and whether it was sent."""

    outcome: Status | None = None
    other: Status | None = None
    is_sent: bool = False

    def and_(self, status: StatusView) -> _Told:
        """The same with one more status, the next one in the topic."""
        if not status.is_terminal:
            return self._replace(is_sent=self.is_sent or status.status in _SENT)
        # Only timed_out may be followed by another outcome. Compaction may have left the second one alone.
        may_follow = status.is_late and self.outcome in (None, Status.TIMED_OUT)
        if self.outcome not in (None, status.status) and not may_follow:
            return self._replace(other=status.status)
        return self._replace(outcome=status.status)


_NOTHING: Final = _Told()


class _Statuses:
    """The statuses of one partition number. ``horizon_ms``: Kafka has deleted statuses from before it."""

    def __init__(self, horizon_ms: int) -> None:
        self.horizon_ms = horizon_ms  # statuses from before it may be deleted
        self.told: defaultdict[str, dict[int, _Told]] = defaultdict(dict)  # by topic and offset
        self._once: dict[_Told, _Told] = {}  # what many commands have in common, kept once
        self._owners: dict[str, Place] = {}  # of ids: the command that has used it last
        self.disputed: dict[Place, list[StatusView]] = {}  # all statuses of those with two outcomes, read again

    def take(self, record: LoggedRecord) -> None:
        """Take the next record. A command with two outcomes becomes ``disputed``."""
        status = read_status(record)
        if status is None:
            return
        told, offset = self.told[status.place.topic], status.place.offset
        now = told.get(offset, _NOTHING).and_(status)
        told[offset] = self._once.setdefault(now, now)
        if now.other is not None:
            self.disputed.setdefault(status.place, [])
        if not status.is_duplicate and status.id != str(status.place):
            self._owners[status.id] = status.place

    def take_again(self, record: LoggedRecord) -> None:
        """Keep a status of a command with two outcomes."""
        status = read_status(record)
        if status is not None and status.place in self.disputed:
            self.disputed[status.place].append(status)

    def settled(self, record: LoggedRecord, own_id: str | None) -> _Told:
        """What there is of a command with two outcomes, without the statuses from before it: of a record that had its
        place in a topic that was deleted and made anew."""
        told = _NOTHING
        for status in self.disputed[record.place]:
            if status.at_ms + _SKEW_MS >= record.timestamp_ms and status.id in (own_id, str(record.place)):
                told = told.and_(status)
        return told

    def has_another(self, command_id: str | None, place: Place) -> bool:
        """Whether a later command with this id has taken the place of its statuses, by compaction."""
        return command_id is not None and self._owners.get(command_id, place) != place


class _Check:
    """The verification of one ``[[commands]]``."""

    def __init__(self, log: KafkaCommandLog, commands: CommandSettings, span: Span) -> None:
        self._log, self._commands, self._span = log, commands, span
        self._commits: Mapping[Partition, Committed | None] = {}
        self._first: Mapping[Partition, int] = {}
        self._ends: Mapping[Partition, int] = {}
        self.accounts: list[CommandAccount] = []
        self.uncommitted: list[str] = []
        self.without_statuses: list[str] = []

    async def run(self, group: str, progress: Callable[[str], None]) -> None:
        # The commits come first: what they call finished has its status in Kafka by then.
        self._commits = await self._log.commits(group)
        self._ends, self._first = await self._log.ends(), await self._log.beginnings()
        commands_from = statuses_from = self._first
        if (since_ms := self._span.since_ms) is not None:
            commands_from = await self._log.offsets_at(since_ms)
            statuses_from = await self._log.offsets_at(since_ms - _CLOCKS_MS)
        owned = sorted((at for at in self._ends if at[0] in self._commands.topics), key=lambda at: (at[1], at[0]))
        for number in sorted({number for _, number in owned}):
            at = (self._commands.status_topic, number)
            progress(f"reading {at[0]}/{number}")
            statuses = await self._statuses(at, statuses_from)
            for partition in owned:
                if partition[1] == number:
                    progress(f"reading {partition[0]}/{number}")
                    await self._judge(partition, commands_from[partition], statuses)

    async def _statuses(self, at: Partition, since: Mapping[Partition, int]) -> _Statuses:
        """The statuses in this partition of the status topic, from the offset in ``since``."""
        statuses = _Statuses(0)
        if at not in self._ends:
            self.without_statuses.append(f"{at[0]}/{at[1]}")
            statuses.horizon_ms = _NEVER_MS
            return statuses
        first, end = self._first[at], self._ends[at]
        own = ((place[1], one) for place, one in self._commits.items() if one)
        known = (OffsetMap.parse(one.offset, one.metadata) for number, one in own if number == at[1])
        is_cut = since[at] <= first and (
            first > 0 or any(one.status_offset > end for one in known)  # a topic that was made anew
        )
        statuses.horizon_ms = _NEVER_MS if is_cut else 0
        start = max(since[at], first)
        if start < end:
            async for record in self._log.read({at: start}, {at: end}):
                statuses.horizon_ms = min(statuses.horizon_ms, record.timestamp_ms) if is_cut else 0
                statuses.take(record)
        if statuses.disputed:
            async for record in self._log.read({at: start}, {at: end}):
                statuses.take_again(record)
        return statuses

    async def _judge(self, partition: Partition, since: int, statuses: _Statuses) -> None:
        """Make the account of a partition of commands, from the offset ``since``."""
        commit, first, end = self._commits.get(partition), self._first[partition], self._ends[partition]
        start = max(first, since)
        map_ = None if commit is None else OffsetMap.parse(commit.offset, commit.metadata)
        account = CommandAccount(*partition, first=start, end=end, low=None if map_ is None else map_.low)
        self.accounts.append(account)
        told = statuses.told[partition[0]]
        if map_ is None and told:
            self.uncommitted.append(f"{partition[0]}/{partition[1]}")
        if map_ is not None and first > map_.low and start == first:
            account.deleted_unread = sum(
                map_.mark(offset) is not Mark.FINISHED and (offset not in told or told[offset].outcome is None)
                for offset in range(map_.low, first)
            )
        if start >= end:
            return
        async for record in self._log.read({partition: start}, {partition: end}):
            if self._span.until_ms is None or record.timestamp_ms <= self._span.until_ms:
                mark = None if map_ is None else map_.mark(record.place.offset)
                self._judge_one(account, record, mark, told.get(record.place.offset), statuses)

    def _judge_one(
        self, account: CommandAccount, record: LoggedRecord, mark: Mark | None, told: _Told | None, statuses: _Statuses
    ) -> None:
        """Count a command by its statuses (``told``) and by what the group's commit says of its offset (``mark``)."""
        account.records += 1
        if told is not None and told.other is not None:
            told = statuses.settled(record, self._id(record))
        if told is not None and told.outcome is not None:
            account.outcomes[told.outcome] += 1
            if told.other is not None:
                account.twice += 1
                if len(account.twice_at) < NAMED:
                    account.twice_at.append(f"{record.place.offset} ({told.outcome}, {told.other})")
        elif mark is Mark.FINISHED:
            if record.timestamp_ms < statuses.horizon_ms:
                account.status_deleted += 1
            elif statuses.has_another(self._id(record), record.place):
                account.id_used_again += 1
            else:
                account.missing += 1
                if len(account.missing_at) < NAMED:
                    account.missing_at.append(record.place.offset)
        elif mark is Mark.AWAITING or (told is not None and told.is_sent):
            account.under_way += 1
        elif mark is Mark.TAKEN or told is not None:
            account.waiting += 1
        else:
            account.unread += 1

    def _id(self, record: LoggedRecord) -> str | None:
        wanted = self._commands.id_header
        value = next((value for name, value in reversed(record.headers) if name == wanted), None)
        return None if value is None else value.decode(errors="replace")


def exit_status(verdicts: Sequence[CommandVerdict]) -> ExitStatus:
    found = {verdict.exit_status for verdict in verdicts}
    return next((one for one in (ExitStatus.MISSING_MESSAGES, ExitStatus.UNJUDGED) if one in found), ExitStatus.OK)


async def verify_commands(
    log: KafkaCommandLog,
    commands: CommandSettings,
    group: str,
    span: Span,
    progress: Callable[[str], None] = lambda _text: None,
) -> CommandVerdict:
    """Compare the command topics of one ``[[commands]]`` with its status topic. Raises the errors of ``log``."""
    check = _Check(log, commands, span)
    await check.run(group, progress)
    return CommandVerdict(
        commands.name,
        group,
        commands.status_topic,
        check.accounts,
        _wrong(check.accounts),
        _unjudged(check, commands.name),
    )


def _wrong(accounts: Collection[CommandAccount]) -> list[str]:
    found = []
    for one in accounts:
        where = f"{one.topic}/{one.partition}"
        if one.missing:
            found.append(
                f"{where}: {one.missing} of {one.records} commands are finished by the commit, and have no terminal "
                f"status: offsets {_list(one.missing_at, one.missing)}"
            )
        if one.twice:
            found.append(f"{where}: {one.twice} commands have two outcomes: offsets {_list(one.twice_at, one.twice)}")
    return found


def _unjudged(check: _Check, name: str) -> list[str]:
    found = []
    for one in check.accounts:
        where = f"{one.topic}/{one.partition}"
        if one.status_deleted:
            found.append(f"{where}: the statuses of {one.status_deleted} commands are deleted, by their age")
        if one.id_used_again:
            found.append(
                f"{where}: the statuses of {one.id_used_again} commands are those of later commands with the same id"
            )
        if one.deleted_unread:
            found.append(
                f"{where}: Kafka has deleted {one.deleted_unread} offsets from {one.low} on whose commands were not "
                "finished"
            )
    if check.uncommitted:
        found.append(
            f"there are statuses, but no commit of {_list(check.uncommitted, len(check.uncommitted))}: whether "
            "commands without a status are finished is not known (is commands.group the one of the gateway?)"
        )
    if check.without_statuses:
        missing = check.without_statuses
        found.append(f"the status topic has no partition {_list(missing, len(missing))}")
    if not any(one.records for one in check.accounts):
        found.append(f"the topics of commands {name!r} have no record in the span")
    return found


def _list(items: Sequence[object], count: int) -> str:
    more = f" and {count - NAMED} more" if count > NAMED else ""
    return ", ".join(map(str, items[:NAMED])) + more
