"""Consumer groups in memory (``tests.group_port.CommandGroup``), for simulations of the way down.

``tests/group_port.py`` holds this one and the real one to the same behaviour. Time is the event loop's. Faults:
``GroupKafka.reachable``, ``FakeMember.crash`` (ends without a word), ``FakeMember.expire`` (the coordinator forgets it,
and it joins again).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from bridge.commands.ports import Committed, Partition, PartitionListener
from bridge.dead_letters.reading import LoggedRecord, Place
from bridge.errors import RefusedError, TopicMissingError, UnreachableError
from bridge.kafka.group_protocol import share
from bridge.ports import Headers

SESSION_S = 15.0
POLL_S = 0.2
POLL_RECORDS = 1000
METADATA_LIMIT = 4096


@dataclass
class FakeLog:
    """A partition: its records from ``first`` on."""

    first: int = 0
    records: list[LoggedRecord] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self.records)


class GroupKafka:
    """Topics and groups. ``reachable`` is whether anything is answered."""

    def __init__(self) -> None:
        self.topics: dict[str, list[FakeLog]] = {}
        self.groups: dict[str, FakeGroup] = {}
        self.reachable = True

    def topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic, or give it more partitions."""
        logs = self.topics.setdefault(name, [])
        logs += [FakeLog() for _ in range(partitions - len(logs))]
        for group in self.groups.values():
            group.rebalance()

    def put(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int = 0,
    ) -> Place:
        """Append a record."""
        log = self.topics[topic][partition]
        place = Place(topic, partition, log.end)
        log.records.append(LoggedRecord(place, timestamp_ms, key, value, list(headers)))
        return place

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        log = self.topics[topic][partition]
        del log.records[: offset - log.first]
        log.first = offset

    def group(self, name: str) -> FakeGroup:
        return self.groups.setdefault(name, FakeGroup(self))


class FakeGroup:
    """A group: its commits, its present members by instance, and what is kept for those that are away."""

    def __init__(self, kafka: GroupKafka) -> None:
        self.kafka = kafka
        self.commits: dict[Partition, Committed] = {}
        self.members: dict[str, FakeMember] = {}
        self._kept: dict[str, frozenset[Partition]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._due = False
        self._task: asyncio.Task[None] | None = None

    def join(self, member: FakeMember) -> None:
        name = member.instance
        if (earlier := self.members.get(name)) is not None:
            self._kept[name] = earlier.owned
            earlier.fence()
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()
        self.members[name] = member
        self.rebalance()

    def away(self, member: FakeMember, owned: frozenset[Partition]) -> None:
        """The member has ended: its partitions wait for it."""
        if self.members.get(member.instance) is member:
            del self.members[member.instance]
            self._kept[member.instance] = owned
            loop = asyncio.get_running_loop()
            self._timers[member.instance] = loop.call_later(SESSION_S, self.remove, member.instance)

    def remove(self, instance: str) -> None:
        self.members.pop(instance, None)
        self._kept.pop(instance, None)
        if (timer := self._timers.pop(instance, None)) is not None:
            timer.cancel()
        self.rebalance()

    def close(self) -> None:
        """End timers."""
        for timer in self._timers.values():
            timer.cancel()

    def rebalance(self) -> None:
        self._due = True
        if self.members and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._rebalance())

    async def _rebalance(self) -> None:
        while self._due and self.members:
            self._due = False
            await asyncio.sleep(0)
            members = {name: ((), owned) for name, owned in self._kept.items()}
            for name, member in self.members.items():
                members[name] = (member.topics, member.owned | self._kept.get(name, frozenset()))
            shares = share(members, {topic: len(logs) for topic, logs in self.kafka.topics.items()})
            for name in self.members:  # one that is back joins again: what it is to give up is nobody's until then
                self._due |= bool(self._kept.pop(name, frozenset()) - shares[name])
            moved = await asyncio.gather(*(one.take(frozenset(shares[one.instance])) for one in self.members.values()))
            self._due |= any(moved)


class FakeMember:
    """``tests.group_port.CommandGroup`` in memory."""

    def __init__(
        self,
        group: FakeGroup,
        instance: str,
        topics: Sequence[str],
        listener: PartitionListener,
        table: str = "commands",
    ) -> None:
        self.group, self.instance, self.topics, self._listener, self._table = group, instance, topics, listener, table
        self.owned: frozenset[Partition] = frozenset()
        self._positions: dict[Partition, int] = {}
        self._paused: frozenset[Partition] = frozenset()
        self._known: set[Partition] = set()  # had since the present ``read`` began, and so paused or not
        self._error: Exception | None = None

    async def start(self) -> None:
        if not self.group.kafka.reachable:
            raise UnreachableError("Kafka cannot be reached.")
        if missing := [topic for topic in self.topics if topic not in self.group.kafka.topics]:
            raise TopicMissingError(f"Kafka has no topic {', '.join(missing)}.")
        self.group.join(self)

    async def stop(self) -> None:
        owned = self.owned
        await self._give_up(owned)
        self.group.away(self, owned)

    async def retire(self) -> None:
        await self._give_up(self.owned)
        if self.group.members.get(self.instance) is self:
            self.group.remove(self.instance)

    def crash(self) -> None:
        """End without a word."""
        self.group.away(self, self.owned)
        self.owned, self._positions = frozenset(), {}

    def expire(self) -> None:
        """The coordinator has forgotten this member, which joins again."""
        self._lose()
        self.group.rebalance()

    def fence(self) -> None:
        """Another has joined with the same instance."""
        self._fail(
            RefusedError(f"Another process has joined as {self.instance}, so this one must stop: {self._table}.")
        )

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        if self.group.members.get(self.instance) is self:
            del self.group.members[self.instance]
        self._lose()

    def _lose(self) -> None:
        owned, self.owned, self._positions = self.owned, frozenset(), {}
        if owned:
            self._listener.lost(sorted(owned))

    async def take(self, share: frozenset[Partition]) -> bool:
        """Give up what is not in ``share`` and take what is new. Returns whether something was given up."""
        gone = self.owned - share
        kept = self.owned - gone
        await self._give_up(gone)
        if self.group.members.get(self.instance) is not self or self.owned != kept:
            return True  # lost meanwhile
        if new := share - kept:
            self.owned |= new
            self._known -= new
            committed = {partition: self.group.commits.get(partition) for partition in sorted(new)}
            for (topic, number), commit in committed.items():
                first = self.group.kafka.topics[topic][number].first
                self._positions[topic, number] = first if commit is None else commit.offset
            try:
                self._listener.assigned(committed)
            except Exception as error:  # noqa: BLE001 - ``read`` raises it
                self._fail(error)
        return bool(gone)

    async def _give_up(self, partitions: frozenset[Partition]) -> None:
        for partition in partitions:
            self._positions.pop(partition, None)
        if partitions:
            await self._listener.revoked(sorted(partitions))
            self.owned -= partitions

    async def read(self) -> Sequence[LoggedRecord]:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + POLL_S
        self._known = set(self._positions)
        while True:
            if self._error is not None:
                raise self._error
            found = self._next() if self.group.kafka.reachable else []
            left_s = until_s - loop.time()
            if found or left_s <= 0:
                await asyncio.sleep(0)
                return [record for record in found if record.place[:2] in self._positions]
            await asyncio.sleep(min(left_s, 0.005))

    def _next(self) -> list[LoggedRecord]:
        found: list[LoggedRecord] = []
        for partition in list(self._positions):
            if partition in self._paused or partition not in self._known:
                continue
            topic, number = partition
            log, position = self.group.kafka.topics[topic][number], self._positions[partition]
            if position < log.first:
                self._positions[partition] = log.first
                self._listener.missed(partition, position, log.first)
            elif position > log.end:
                self._positions[partition] = log.first
                self._known.discard(partition)
                self._listener.lost([partition])
                self._listener.assigned({partition: None})
            else:
                start = position - log.first
                records = log.records[start : start + POLL_RECORDS - len(found)]
                found += records
                self._positions[partition] = position + len(records)
        return found

    async def commit(self, offsets: Mapping[Partition, Committed]) -> Collection[Partition]:
        await asyncio.sleep(0)
        if not self.group.kafka.reachable:
            raise UnreachableError("Kafka did not take a commit.")
        if not offsets.keys() <= self.owned:
            raise RefusedError("Some partitions are no longer this member's.")
        too_large = {one for one, commit in offsets.items() if len(commit.metadata.encode()) > METADATA_LIMIT}
        self.group.commits.update({one: commit for one, commit in offsets.items() if one not in too_large})
        return too_large

    def pause(self, partitions: Collection[Partition]) -> None:
        self._paused = frozenset(partitions)
