"""What every store behind ``bridge.ports.SpoolStore`` does, as a suite: the one in memory and the one on disk obey it.

A test module makes a subclass and a fixture ``store``, open and empty, of 100,000 bytes at most.
"""

from collections.abc import Sequence

import pytest

from bridge.errors import SpoolFullError
from bridge.ports import SpoolStore
from bridge.spool.record import SpoolBatch


def batch(number: int, *, topic: str = "t", partition: int = 0, size: int = 100, messages: int = 3) -> SpoolBatch:
    """A batch that says which one it is."""
    data = b"%06d" % number + b"." * (size - 6)
    return SpoolBatch(topic, partition, "route", 1, number % 2 == 1, messages, (number, 7), 1_763_683_200_000, data)


async def read_all(
    store: SpoolStore, *, topic: str = "t", partition: int = 0, max_bytes: int = 500
) -> list[SpoolBatch]:
    found: list[SpoolBatch] = []
    after_id = 0
    while True:
        answer = await store.read(topic, partition, after_id, max_bytes)
        assert answer.lost_batches == answer.lost_messages == 0
        if not answer.batches:
            return found
        assert after_id < answer.batches[0].id
        ids = [stored.id for stored in answer.batches]
        assert ids == sorted(ids)
        after_id = ids[-1]
        found += [stored.batch for stored in answer.batches]


def kept(store: SpoolStore) -> Sequence[tuple[str, int]]:
    return sorted(store.partitions())


class SpoolPort:
    """The behaviour the spooler relies on."""

    async def test_a_new_one_is_empty(self, store: SpoolStore) -> None:
        assert store.bytes == 0
        assert kept(store) == []
        assert store.waiting("t", 0) == store.waiting_messages("t", 0) == 0
        assert (await store.read("t", 0, 0, 1000)).batches == []

    async def test_batches_come_back_as_they_were_in_order_by_partition(self, store: SpoolStore) -> None:
        first = [batch(1), batch(2, partition=1), batch(3)]
        ids = await store.append(first)
        assert ids[0] < ids[2]
        (later,) = await store.append([batch(4)])
        assert later > ids[2]
        assert await read_all(store) == [batch(1), batch(3), batch(4)]
        assert await read_all(store, partition=1) == [batch(2, partition=1)]
        assert kept(store) == [("t", 0), ("t", 1)]
        assert (store.waiting("t", 0), store.waiting_messages("t", 0)) == (3, 9)

    async def test_a_read_gives_one_at_least_and_not_many_more_bytes_than_asked_for(self, store: SpoolStore) -> None:
        await store.append([batch(number, size=1000) for number in range(10)])
        one = await store.read("t", 0, 0, 1)
        assert [stored.batch for stored in one.batches] == [batch(0, size=1000)]
        some = await store.read("t", 0, one.batches[0].id, 3500)
        assert [stored.batch for stored in some.batches] == [batch(number, size=1000) for number in (1, 2, 3)]
        assert all(stored.size >= 1000 for stored in some.batches)

    async def test_what_is_removed_is_gone_at_once_and_the_rest_stays(self, store: SpoolStore) -> None:
        ids = await store.append([batch(number) for number in range(6)])
        answer = await store.read("t", 0, 0, 1 << 20)
        before = store.bytes
        store.remove("t", 0, ids[:2])
        assert store.waiting("t", 0) == 4
        assert store.waiting_messages("t", 0) == 12
        assert store.bytes == before - sum(stored.size for stored in answer.batches[:2])
        store.remove("t", 0, [ids[3]])
        assert await read_all(store) == [batch(2), batch(4), batch(5)]
        store.remove("t", 0, [ids[2], *ids[4:]])
        assert store.bytes == 0
        assert kept(store) == []
        (again,) = await store.append([batch(6)])
        assert again > ids[-1], "ids rise for ever: a reader knows where it was"

    async def test_when_it_is_full_nothing_is_stored_until_something_is_removed(self, store: SpoolStore) -> None:
        ids = await store.append([batch(number, size=20_000) for number in range(4)])
        held = store.bytes
        with pytest.raises(SpoolFullError):
            await store.append([batch(7, size=100), batch(8, size=30_000)])
        assert store.bytes == held, "all or none"
        store.remove("t", 0, ids[:2])
        await store.append([batch(8, size=30_000)])
        assert await read_all(store) == [batch(2, size=20_000), batch(3, size=20_000), batch(8, size=30_000)]
