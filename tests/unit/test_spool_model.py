"""The spool against a model: whatever is appended, read, removed, closed, killed, in any order, both hold the same."""

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.spool.record import SpoolBatch
from bridge.spool.spool import Spool

NAMES = [("a", 0), ("a", 1), ("b", 0)]
MAX_BYTES = 6000

batches = st.builds(
    lambda name, size, messages, seed: SpoolBatch(
        name[0], name[1], "r", 1, False, messages, tuple(range(messages % 3)), 1_700_000_000_000 + seed,
        bytes([seed]) * size,
    ),
    st.sampled_from(NAMES),
    st.integers(0, 1500),
    st.integers(0, 9),
    st.integers(0, 255),
)  # fmt: skip
steps = st.one_of(
    st.tuples(st.just("append"), st.lists(batches, min_size=1, max_size=4)),
    st.tuples(st.just("together"), st.lists(st.lists(batches, min_size=1, max_size=2), min_size=2, max_size=4)),
    st.tuples(st.just("read"), st.sampled_from(NAMES), st.integers(0, 3), st.integers(0, 4000)),
    st.tuples(st.just("remove"), st.sampled_from(NAMES), st.lists(st.integers(0, 8), max_size=4)),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("kill")),
)


@dataclass
class Model:
    stored: dict[tuple[str, int], dict[int, SpoolBatch]] = field(default_factory=lambda: {name: {} for name in NAMES})
    newest: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, batches: list[SpoolBatch], ids: list[int]) -> None:
        for batch, id_ in zip(batches, ids, strict=True):
            name = (batch.topic, batch.partition)
            assert id_ > self.newest.get(name, 0), "an id was given twice, or they fell"
            self.newest[name] = id_
            self.stored[name][id_] = batch

    @property
    def bytes(self) -> int:
        return sum(batch.stored_bytes for held in self.stored.values() for batch in held.values())


class Run:
    """One sequence of steps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0
        self.spool = self.make()
        self.model = Model()

    def make(self) -> Spool:
        return Spool(self.folder / str(self.number), max_bytes=MAX_BYTES, instance="gw")

    async def append(self, some: list[SpoolBatch]) -> None:
        if self.spool.has_room(sum(batch.stored_bytes for batch in some)):
            self.model.add(some, await self.spool.append(some))

    async def together(self, calls: list[list[SpoolBatch]]) -> None:
        """What waits together keeps the order of the calls."""
        results = await asyncio.gather(*map(self.spool.append, calls), return_exceptions=True)
        for some, ids in zip(calls, results, strict=True):
            if isinstance(ids, list):
                self.model.add(some, ids)

    async def read(self, name: tuple[str, int], skip: int, max_bytes: int) -> None:
        held = self.model.stored[name]
        after = sorted(held)[skip - 1] if 0 < skip <= len(held) else 0
        result = await self.spool.read(*name, after, max_bytes)
        wanted = [id_ for id_ in sorted(held) if id_ > after]
        assert [stored.id for stored in result.batches] == wanted[: len(result.batches)]
        assert all(stored.batch == held[stored.id] for stored in result.batches)
        size = sum(stored.size for stored in result.batches)
        assert size <= max_bytes or len(result.batches) == 1
        assert bool(result.batches) == bool(wanted)
        if len(result.batches) < len(wanted):
            assert size + held[wanted[len(result.batches)]].stored_bytes > max_bytes, "less than was asked for"

    async def remove(self, name: tuple[str, int], places: list[int]) -> None:
        ids = sorted(self.model.stored[name])
        chosen = {ids[place] for place in places if place < len(ids)}
        self.spool.remove(*name, [*chosen, 12345])
        for id_ in chosen:
            del self.model.stored[name][id_]

    async def reopen(self) -> None:
        await self.spool.close()
        await self.open()

    async def kill(self) -> None:
        """What a process that ends now leaves, copied in the spool's own thread, between two of its jobs."""
        await self.settle()
        old, self.number = self.spool, self.number + 1
        await old._thread.run(shutil.copytree, old.path, self.folder / str(self.number))
        await old.close()
        await self.open()

    async def open(self) -> None:
        self.spool = self.make()
        report = await self.spool.open()
        assert report.sentence == ""
        assert self.spool.batches == sum(map(len, self.model.stored.values()))

    async def settle(self) -> None:
        """Removals of what this process has neither read nor appended are counted by the thread."""
        for name in NAMES:
            await self.spool.read(*name, 0, 0)

    def compare(self) -> None:
        stored = self.model.stored
        for name in NAMES:
            assert self.spool.waiting(*name) == len(stored[name])
        assert set(self.spool.partitions()) == {name for name in NAMES if stored[name]}
        assert self.spool.batches == sum(map(len, stored.values()))
        assert self.spool.messages == sum(batch.messages for held in stored.values() for batch in held.values())
        assert self.spool.bytes == self.model.bytes <= MAX_BYTES
        firsts = [held[min(held)].opened_ms for held in stored.values() if held]
        assert self.spool.oldest_ms() == min(firsts, default=0)


async def run(folder: Path, sequence: list[tuple[Any, ...]]) -> None:
    one = Run(folder)
    await one.open()
    try:
        for name, *values in sequence:
            await getattr(one, name)(*values)
            await one.settle()
            one.compare()
    finally:
        await one.spool.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=25))
def test_the_spool_and_a_model_of_it_agree(sequence: list[tuple[Any, ...]]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("bridge.spool.segments.SEGMENT_BYTES", 1500),
        mock.patch("bridge.spool.store._SLACK_BYTES", 0),  # so that segments are rewritten
        mock.patch("bridge.spool.spool._KNOWN", 3),  # so that the thread has to count
    ):
        asyncio.run(run(Path(folder), sequence))
