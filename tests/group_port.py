"""What every group behind ``CommandGroup`` does, as a suite: the one in memory and the real one.

A test module makes a subclass and a fixture ``backend``.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Protocol

import pytest

from bridge.commands.ports import Committed, Partition, PartitionListener
from bridge.dead_letters.reading import LoggedRecord
from bridge.errors import RefusedError, TopicMissingError
from tests.waiting import until

METADATA_LIMIT = 4096  # offset.metadata.max.bytes


class CommandGroup(Protocol):
    """A member of a Kafka consumer group, as ``bridge.kafka.group.GroupMember`` describes it."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def retire(self) -> None: ...
    async def read(self) -> Sequence[LoggedRecord]: ...
    async def commit(self, offsets: Mapping[Partition, Committed]) -> Collection[Partition]: ...
    def pause(self, partitions: Collection[Partition]) -> None: ...


class Backend(Protocol):
    """A Kafka to test on."""

    async def topic(self, partitions: int = 1) -> str:
        """Create a topic with a name of its own."""

    async def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""

    async def put(self, topic: str, partition: int, *values: bytes) -> None:
        """Append records."""

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete a partition's first records, as retention does."""

    def member(self, instance: str, topics: Sequence[str], listener: PartitionListener) -> CommandGroup:
        """A member of this test's group, not started."""

    async def remove(self, instance: str) -> None:
        """Put a member out of the group from outside."""


class Member:
    """A member that reads on and on, and what its listener was told. ``commits`` are committed when revoked."""

    def __init__(self, backend: Backend, instance: str, *topics: str) -> None:
        self.group = backend.member(instance, topics, self)
        self.owned: dict[Partition, Committed | None] = {}
        self.known: set[Partition] = set()  # what was owned before the present ``read``
        self.told: list[tuple[str, tuple[Partition, ...]]] = []
        self.missing: list[tuple[Partition, int, int]] = []
        self.commits: dict[Partition, Committed] = {}
        self.records: list[LoggedRecord] = []
        self.lists = 0
        self.fault: Exception | None = None
        self.held = asyncio.Event()  # ``revoked`` returns when it is set
        self.held.set()
        self.reading: asyncio.Task[None] | None = None

    # --- the listener

    def assigned(self, partitions: Mapping[Partition, Committed | None]) -> None:
        assert not self.owned.keys() & partitions.keys(), "assigned twice"
        self.told.append(("assigned", tuple(sorted(partitions))))
        self.owned.update(partitions)
        if self.fault is not None:
            raise self.fault

    async def revoked(self, partitions: Collection[Partition]) -> None:
        assert self.owned.keys() >= set(partitions)
        self.told.append(("revoked", tuple(sorted(partitions))))
        due = {partition: commit for partition, commit in self.commits.items() if partition in partitions}
        await self.held.wait()
        if due:
            assert not await self.group.commit(due)
        for partition in partitions:
            self.owned.pop(partition, None)

    def lost(self, partitions: Collection[Partition]) -> None:
        self.told.append(("lost", tuple(sorted(partitions))))
        for partition in partitions:
            del self.owned[partition]
            self.known.discard(partition)

    def missed(self, partition: Partition, first: int, end: int) -> None:
        assert partition in self.known, f"what is deleted of one that could not be paused: {partition}"
        self.missing.append((partition, first, end))

    # --- reading

    async def start(self) -> None:
        await self.group.start()
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            self.known = known = set(self.owned)
            for record in await self.group.read():
                assert record.place[:2] in self.owned, f"a record of another's partition: {record.place}"
                assert record.place[:2] in known, f"a record that could not be paused: {record.place}"
                self.records.append(record)
            self.lists += 1

    async def stop(self, *, retire: bool = False) -> None:
        if self.reading is not None:
            self.reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self.reading
            self.reading = None
        await (self.group.retire() if retire else self.group.stop())

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        return [record.value for record in self.records if record.place[:2] == (topic, partition)]

    async def owns(self, count: int) -> None:
        def enough() -> bool:
            if self.reading is not None and self.reading.done():
                self.reading.result()
            return len(self.owned) == count

        await until(enough, f"a member owns {count} partitions")


@contextlib.asynccontextmanager
async def running(*members: Member) -> AsyncIterator[None]:
    """Start members, and stop them at the end."""
    try:
        for member in members:
            await member.start()
        yield
    finally:
        for member in members:
            await member.stop(retire=True)


class GroupPort:
    """The behaviour the dispatcher relies on."""

    async def test_a_partition_without_a_commit_begins_at_its_first_record(self, backend: Backend) -> None:
        topic = await backend.topic(2)
        await backend.put(topic, 0, b"a", b"b")
        await backend.put(topic, 1, b"c")
        member = Member(backend, "one", topic)
        async with running(member):
            await until(lambda: len(member.records) == 3, "all read")
            assert member.told == [("assigned", ((topic, 0), (topic, 1)))]
            assert member.owned == {(topic, 0): None, (topic, 1): None}
            await backend.put(topic, 0, b"d")
            await until(lambda: member.values(topic) == [b"a", b"b", b"d"], "in order, and what comes later")

    async def test_two_topics_are_one_subscription(self, backend: Backend) -> None:
        one, other = await backend.topic(), await backend.topic()
        await backend.put(one, 0, b"a")
        await backend.put(other, 0, b"b")
        member = Member(backend, "one", one, other)
        async with running(member):
            await until(lambda: {record.value for record in member.records} == {b"a", b"b"}, "both read")

    async def test_a_commit_has_a_text_that_the_next_owner_gets(self, backend: Backend) -> None:
        topic = await backend.topic()
        await backend.put(topic, 0, b"a", b"b", b"c")
        first, second = Member(backend, "one", topic), Member(backend, "two", topic)
        async with running(first):
            await first.owns(1)
            assert not await first.group.commit({(topic, 0): Committed(1, "1|7|FäT3")})
        async with running(second):
            await second.owns(1)
            assert second.owned == {(topic, 0): Committed(1, "1|7|FäT3")}
            await until(lambda: second.values(topic) == [b"b", b"c"], "read from the commit on")

    async def test_only_what_moves_is_revoked_and_the_rest_goes_on(self, backend: Backend) -> None:
        topic = await backend.topic(4)
        first, second = Member(backend, "one", topic), Member(backend, "two", topic)
        async with running(first):
            await first.owns(4)
            first.held.clear()
            first.commits = {(topic, number): Committed(0, f"text {number}") for number in range(4)}
            async with running(second):
                await until(lambda: len(first.told) == 2, "revoked")
                name, moving = first.told[1]
                assert (name, len(moving)) == ("revoked", 2)
                kept = sorted(set(first.owned) - set(moving))
                for _, number in (*kept, *moving):
                    await backend.put(topic, number, b"x")
                await until(lambda: first.values(*kept[0]) == first.values(*kept[1]) == [b"x"], "the rest goes on")
                assert not await first.group.commit({kept[0]: Committed(1, "while others move")})
                assert not second.owned
                first.held.set()
                await second.owns(2)
                assert second.owned == {partition: Committed(0, f"text {partition[1]}") for partition in moving}
                await until(lambda: second.values(*moving[0]) == second.values(*moving[1]) == [b"x"], "read by it")
                assert not first.values(*moving[0])
                assert len(first.told) == 2
            await first.owns(4)
            assert first.told[2:] == [("assigned", moving)]

    async def test_a_member_that_comes_back_has_its_partitions(self, backend: Backend) -> None:
        topic = await backend.topic(4)
        first, second = Member(backend, "one", topic), Member(backend, "two", topic)
        async with running(first, second):
            await first.owns(2)
            await second.owns(2)
            before, told = set(first.owned), len(second.told)
            await first.stop()
            assert not first.owned
            again = Member(backend, "one", topic)
            async with running(again):
                await again.owns(2)
                assert set(again.owned) == before
                assert len(second.told) == told
        assert first.told[-1][0] == "revoked"

    async def test_a_retired_members_partitions_are_anothers_at_once(self, backend: Backend) -> None:
        topic = await backend.topic(2)
        first, second = Member(backend, "one", topic), Member(backend, "two", topic)
        async with running(first, second):
            await second.owns(1)
            first.commits = {(topic, number): Committed(0, "last words") for number in range(2)}
            await first.stop(retire=True)
            await second.owns(2)
            assert second.owned[next(iter(first.told[-1][1]))] == Committed(0, "last words")

    async def test_what_is_assigned_during_a_read_is_read_by_the_next_one(self, backend: Backend) -> None:
        """Whoever reads has no chance to pause it before."""
        topic = await backend.topic(4)
        for number in range(4):
            await backend.put(topic, number, b"a", b"b")
        first, second = Member(backend, "one", topic), Member(backend, "two", topic)
        async with running(first, second):
            await second.owns(2)
            for number in range(4):
                await until(lambda: first.values(topic, number) + second.values(topic, number), "all are read")  # noqa: B023
            second.records.clear()
            await first.stop(retire=True)
            await second.owns(4)
            await until(lambda: len(second.records) == 4, "the others' are read again, for nothing was committed")

    async def test_a_member_can_be_put_out_from_outside(self, backend: Backend) -> None:
        topic = await backend.topic(2)
        first, second = Member(backend, "one", topic), Member(backend, "two", topic)
        async with running(first, second):
            await second.owns(1)
            await first.stop()
            await backend.remove("one")
            await second.owns(2)

    async def test_of_two_with_one_name_the_earlier_ends_with_a_sentence(self, backend: Backend) -> None:
        topic = await backend.topic()
        first, rival = Member(backend, "one", topic), Member(backend, "one", topic)
        async with running(first):
            await first.owns(1)
            async with running(rival):
                await rival.owns(1)
                assert first.reading is not None
                await until(first.reading.done, "the first ends")
                error = first.reading.exception()
                assert isinstance(error, RefusedError)
                assert "as one, so this one must stop" in str(error)
                assert "commands.test" in str(error)
                assert first.told[-1][0] == "lost"
                with pytest.raises(RefusedError):
                    await first.group.commit({(topic, 0): Committed(0, "")})
                await backend.put(topic, 0, b"a")
                await until(lambda: rival.values(topic) == [b"a"], "the rival goes on")

    async def test_a_text_that_is_too_large_is_named_and_the_others_are_committed(self, backend: Backend) -> None:
        topic = await backend.topic(2)
        member = Member(backend, "one", topic)
        async with running(member):
            await member.owns(2)
            large = {(topic, 0): Committed(0, "x" * (METADATA_LIMIT + 1)), (topic, 1): Committed(0, "fits")}
            assert await member.group.commit(large) == {(topic, 0)}
        again = Member(backend, "one", topic)
        async with running(again):
            await again.owns(2)
            assert again.owned == {(topic, 0): None, (topic, 1): Committed(0, "fits")}

    async def test_what_is_not_ones_own_cannot_be_committed(self, backend: Backend) -> None:
        topic = await backend.topic(2)
        first, second = Member(backend, "one", topic), Member(backend, "two", topic)
        async with running(first, second):
            await first.owns(1)
            await second.owns(1)
            with pytest.raises(RefusedError):
                await first.group.commit(dict.fromkeys(second.owned, Committed(0, "")))

    async def test_only_what_is_not_paused_is_read(self, backend: Backend) -> None:
        topic = await backend.topic(2)
        member = Member(backend, "one", topic)
        async with running(member):
            await member.owns(2)
            member.group.pause([(topic, 0), (topic, 1)])
            await backend.put(topic, 0, b"a")
            lists = member.lists
            await until(lambda: member.lists > lists + 2, "it is asked")
            assert not member.records
            member.group.pause([(topic, 0)])
            await backend.put(topic, 1, b"b")
            await until(lambda: member.values(topic, 1) == [b"b"], "what is not paused")
            assert not member.values(topic)
            member.group.pause([])
            await until(lambda: member.values(topic) == [b"a"], "what was paused")

    async def test_what_kafka_deleted_unread_is_told(self, backend: Backend) -> None:
        topic = await backend.topic()
        await backend.put(topic, 0, *(b"%d" % number for number in range(6)))
        first = Member(backend, "one", topic)
        async with running(first):
            await first.owns(1)
            await first.group.commit({(topic, 0): Committed(1, "")})
        await backend.delete_before(topic, 0, 4)
        again = Member(backend, "one", topic)
        async with running(again):
            await until(lambda: again.values(topic) == [b"4", b"5"], "what is left")
            assert again.missing == [((topic, 0), 1, 4)]

    async def test_a_commit_beyond_the_end_begins_anew(self, backend: Backend) -> None:
        """An election of a replica that was behind took records away."""
        topic = await backend.topic()
        await backend.put(topic, 0, b"a")
        first = Member(backend, "one", topic)
        async with running(first):
            await first.owns(1)
            await first.group.commit({(topic, 0): Committed(9, "old")})
        again = Member(backend, "one", topic)
        async with running(again):
            await until(lambda: again.values(topic) == [b"a"], "all is read")
            one = ((topic, 0),)
            assert again.told == [("assigned", one), ("lost", one), ("assigned", one)]
            assert again.owned == {(topic, 0): None}

    async def test_new_partitions_are_assigned(self, backend: Backend) -> None:
        topic = await backend.topic()
        member = Member(backend, "one", topic)
        async with running(member):
            await member.owns(1)
            await backend.grow(topic, 3)
            await backend.put(topic, 2, b"a")
            await member.owns(3)
            await until(lambda: member.values(topic, 2) == [b"a"], "read from its beginning")
            assert member.told[1:] == [("assigned", ((topic, 1), (topic, 2)))]

    async def test_a_listeners_error_ends_reading(self, backend: Backend) -> None:
        topic = await backend.topic()
        member = Member(backend, "one", topic)
        member.fault = ValueError("a defect")
        async with running(member):
            assert member.reading is not None
            await until(member.reading.done, "reading ends")
            with pytest.raises(ValueError, match="a defect"):
                await member.reading

    async def test_one_may_still_read_while_it_ends(self, backend: Backend) -> None:
        topic = await backend.topic()
        member = Member(backend, "one", topic)
        async with running(member):
            await member.owns(1)
            await member.group.stop()
            assert member.reading is not None
            lists = member.lists
            await until(lambda: member.lists > lists + 1, "read, and empty")
            assert not await member.group.read()

    async def test_a_missing_topic_is_named(self, backend: Backend) -> None:
        topic = await backend.topic()
        member = Member(backend, "one", topic, f"{topic}-missing")
        with pytest.raises(TopicMissingError, match=f"{topic}-missing"):
            await member.start()
        await member.stop()
