"""The groups in memory obey the suite of their port; and how partitions are shared out."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.commands.ports import Partition, PartitionListener
from bridge.kafka.group_protocol import assignment, read_assignment, read_subscription, share, subscription
from tests.group_port import GroupPort, Member, running
from tests.unit.fake_group import FakeMember, GroupKafka
from tests.unit.manual_time import manual_time


class FakeBackend:
    """``tests.group_port.Backend`` in memory."""

    def __init__(self) -> None:
        self.kafka = GroupKafka()
        self._numbers = itertools.count()

    async def topic(self, partitions: int = 1) -> str:
        name = f"topic-{next(self._numbers)}"
        self.kafka.topic(name, partitions)
        return name

    async def grow(self, topic: str, partitions: int) -> None:
        self.kafka.topic(topic, partitions)

    async def put(self, topic: str, partition: int, *values: bytes) -> None:
        for value in values:
            self.kafka.put(topic, partition, value)

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        self.kafka.delete_before(topic, partition, offset)

    def member(self, instance: str, topics: Sequence[str], listener: PartitionListener) -> FakeMember:
        return FakeMember(self.kafka.group("group"), instance, topics, listener, "commands.test")

    async def remove(self, instance: str) -> None:
        self.kafka.group("group").remove(instance)


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    made = FakeBackend()
    yield made
    for group in made.kafka.groups.values():
        group.close()


class TestFakeGroup(GroupPort):
    """In memory."""


@manual_time
async def test_a_crashed_member_has_its_partitions_back_within_its_session_and_not_later() -> None:
    backend = FakeBackend()
    topic = await backend.topic(4)
    first, second = Member(backend, "one", topic), Member(backend, "two", topic)
    async with running(first, second):
        await second.owns(2)
        await first.owns(2)
        before = set(first.owned)
        first.group.crash()
        again, third = Member(backend, "one", topic), Member(backend, "three", topic)
        async with running(again):
            await asyncio.sleep(1)
            assert set(again.owned) == before
            again.group.crash()
            await asyncio.sleep(14)
            assert len(second.owned) == 2
            await asyncio.sleep(2)
            assert len(second.owned) == 4
            second.group.crash()
            again = Member(backend, "two", topic)
            async with running(third, again):
                await asyncio.sleep(1)
                assert (len(third.owned), len(again.owned)) == (2, 2), "what it gave up at once is nobody's no longer"
    backend.kafka.group("group").close()


@manual_time
async def test_a_forgotten_member_loses_all_and_joins_again() -> None:
    backend = FakeBackend()
    topic = await backend.topic(2)
    member = Member(backend, "one", topic)
    async with running(member):
        await asyncio.sleep(1.102)  # between two looks of a read
        member.group.expire()
        await backend.put(topic, 0, b"for the next read")
        both = ((topic, 0), (topic, 1))
        await asyncio.sleep(1)
        assert member.told == [("assigned", both), ("lost", both), ("assigned", both)]
        assert member.values(topic) == [b"for the next read"]


COUNTS = {"a": 6, "b": 5}
ALL = [(topic, number) for topic, count in COUNTS.items() for number in range(count)]
names = st.text("mnop", min_size=1, max_size=3)
topics = st.sets(st.sampled_from("ab"), min_size=1)
members = st.dictionaries(names, st.tuples(topics, st.sets(st.sampled_from(ALL))), min_size=1, max_size=5)


@given(members)
def test_shares_are_even_and_nobody_gets_what_another_has(members: dict[str, tuple[set[str], set[Partition]]]) -> None:
    shares = share(members, COUNTS)
    for member, (wanted, claimed) in members.items():
        assert {topic for topic, _ in shares[member]} <= wanted
        for other, (_, owned) in members.items():
            assert member == other or not (shares[member] - claimed) & owned
    assert sum(map(len, shares.values())) == len(set().union(*shares.values()))
    for topic, count in COUNTS.items():
        wanting = [member for member, (wanted, _) in members.items() if topic in wanted]
        for member in wanting:
            assert sum(one[0] == topic for one in shares[member]) <= -(-count // len(wanting))


@given(st.dictionaries(names, topics, min_size=1, max_size=5), st.data())
def test_the_rounds_end_with_all_shared_out_and_few_moved(wanted: dict[str, set[str]], data: st.DataObject) -> None:
    """Whoever has to give something up joins again without it. That another topic is wanted changes nothing."""
    owner = {one: data.draw(st.sampled_from([*wanted, ""])) for one in ALL}
    owned = {member: {one for one in ALL if owner[one] == member} for member in wanted}
    before = owned
    for _ in range(2):
        owned = share({member: (wanted[member], owned[member]) for member in wanted}, COUNTS)
    for topic, count in COUNTS.items():
        wanting = [member for member in wanted if topic in wanted[member]]
        sizes = sorted(sum(one[0] == topic for one in owned[member]) for member in wanting)
        assert sum(sizes) == (count if wanting else 0)
        assert not sizes or sizes[-1] - sizes[0] <= 1
        for member in wanting:
            had = {one for one in before[member] if one[0] == topic}
            assert len(had & owned[member]) >= min(len(had), count // len(wanting))
    assert share({member: (wanted[member], owned[member]) for member in wanted}, COUNTS) == owned


def test_what_is_left_over_goes_to_who_has_fewest() -> None:
    shares = share({"m": ("ab", ()), "n": ("ab", ())}, {"a": 3, "b": 1})
    assert {member: len(got) for member, got in shares.items()} == {"m": 2, "n": 2}


def test_what_is_sent_is_read() -> None:
    owned = frozenset([("a", 1), ("a", 2), ("b", 0)])
    assert read_subscription(subscription(["a", "b"], owned)) == ({"a", "b"}, owned)
    assert read_assignment(assignment(owned)) == owned
    assert read_assignment(b"") == frozenset()
