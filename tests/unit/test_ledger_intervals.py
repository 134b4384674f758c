"""Whatever the interleaving of batches and ticks, the closed intervals sum up to what Kafka acknowledged."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bridge.ledger_topic.intervals as module
from bridge.ledger import LedgerSnapshot
from bridge.ledger_topic.intervals import Entry, EntryKey, LedgerIntervals

TERMS = LedgerSnapshot(0, 0, 0, 0, 0, 0, 0, 0, 0)


def batch(key: EntryKey, count: int, unfinished: int = 0, size: int = 100) -> Any:
    """A batch as far as the account looks at it."""
    return SimpleNamespace(
        slot=SimpleNamespace(route=key.route, topic=key.topic, dead_letter=key.dead_letter),
        builder=SimpleNamespace(record_count=lambda: count), messages=count - unfinished, size=size,
    )  # fmt: skip


def offsets_of(entries: Iterable[Entry]) -> Counter[int]:
    found: Counter[int] = Counter()
    for entry in entries:
        for first, end in entry.all_runs():
            found.update(range(first, end))
    return found


KEYS = [
    EntryKey("a", "t", 0, dead_letter=False),
    EntryKey("b", "t", 0, dead_letter=False),
    EntryKey("a", "t", 1, dead_letter=False),
    EntryKey("a", "dead", 0, dead_letter=True),
]
# Which key, how many records, how many of somebody else's came before, whether Kafka says where.
stores = st.tuples(st.sampled_from(KEYS), st.integers(1, 5), st.sampled_from([0, 0, 0, 1, 7]), st.booleans())
steps = st.lists(st.one_of(stores, st.sampled_from(["tick", "write"])), max_size=120)
# Long enough, and with so few writes, that intervals are put together and lose their runs, and those again.
seldom_written = st.lists(
    st.one_of(stores, stores, st.sampled_from([*["tick"] * 9, "write"])), min_size=40, max_size=120
)


class Model:
    """Partitions, what was acknowledged in them, and the intervals that were taken to be written."""

    def __init__(self) -> None:
        self.intervals = LedgerIntervals()
        self.intervals.begin(0)
        self.ends: dict[tuple[str, int], int] = defaultdict(int)
        self.told: dict[EntryKey, list[int]] = defaultdict(list)
        self.records: Counter[EntryKey] = Counter()
        self.messages: Counter[EntryKey] = Counter()
        self.unlocated: Counter[EntryKey] = Counter()
        self.now_ms = 0
        self.taken: list[module.Interval] = []

    def run(self, history: list[Any]) -> None:
        for step in history:
            if step == "tick":
                self.now_ms += 60_000
                self.intervals.close(self.now_ms, TERMS)
            elif step == "write":
                if self.intervals.pending:
                    self.taken.append(self.intervals.pending.popleft())
            else:
                self.store(*step)

    def store(self, key: EntryKey, count: int, foreign: int, located: bool) -> None:
        place = (key.topic, key.partition)
        offset = self.ends[place] + foreign
        self.ends[place] = offset + count
        unfinished = count // 3
        self.intervals.stored(batch(key, count, unfinished), key.partition, offset if located else -1)
        self.records[key] += count
        self.messages[key] += count - unfinished
        if located:
            self.told[key] += range(offset, offset + count)
        else:
            self.unlocated[key] += count

    def close(self) -> dict[EntryKey, list[Entry]]:
        """Everything, as it would be on the ledger topic."""
        self.run(["tick"])
        self.taken += self.intervals.pending
        entries: dict[EntryKey, list[Entry]] = defaultdict(list)
        for interval in self.taken:
            for key, entry in interval.entries.items():
                entries[key].append(entry)
        return entries

    def check_sums(self, entries: dict[EntryKey, list[Entry]]) -> None:
        assert entries.keys() == self.records.keys()
        for key, found in entries.items():
            assert sum(entry.records for entry in found) == self.records[key]
            assert sum(entry.messages for entry in found) == self.messages[key]
            assert sum(entry.unlocated for entry in found) == self.unlocated[key]
        times = [(interval.from_ms, interval.to_ms) for interval in self.taken]
        assert [time for pair in times for time in pair] == sorted(time for pair in times for time in pair)
        assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(times)), "no time is left out"
        records = [sum(entry.records for entry in interval.entries.values()) for interval in self.taken]
        assert [interval.acknowledged for interval in self.taken] == list(itertools.accumulate(records))


@given(steps)
def test_closed_intervals_sum_up_to_what_was_acknowledged_offset_by_offset(history: list[Any]) -> None:
    model = Model()
    model.run(history)
    entries = model.close()
    model.check_sums(entries)
    for key, found in entries.items():
        assert all(entry.exact for entry in found)
        assert offsets_of(found) == Counter(model.told[key])


@given(seldom_written)
def test_nor_when_intervals_are_put_together_and_runs_given_up(history: list[Any]) -> None:
    model = Model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_PENDING", 3)
        patch.setattr(module, "MAX_RUNS", 2)
        patch.setattr(module, "MAX_ALL_RUNS", 6)
        model.run(history)
        entries = model.close()
        assert len(model.intervals.pending) <= 3
        assert sum(interval.run_count() for interval in model.intervals.pending) <= 6
    model.check_sums(entries)
    for key, found in entries.items():
        told = set(model.told[key])
        exact = offsets_of(found)
        assert set(exact) <= told
        assert all(count == 1 for count in exact.values())
        assert all(entry.records == entry.unlocated + offsets_of([entry]).total() for entry in found if entry.exact)
        bounds = [bounds for entry in found if (bounds := entry.bounds()) is not None]
        assert all(any(low <= offset <= high for low, high in bounds) for offset in told)
        if told:
            assert min(low for low, _ in bounds) == min(told)
            assert max(high for _, high in bounds) == max(told)


def test_an_undisturbed_partition_has_one_run_whatever_the_rate() -> None:
    model = Model()
    model.run([(KEYS[0], 3, 0, True)] * 10_000)
    ((entry,),) = model.close().values()
    assert list(entry.all_runs()) == [(0, 30_000)]


def test_messages_by_route_count_what_is_open_too() -> None:
    model = Model()
    model.run([(KEYS[0], 1, 0, True), "tick", (KEYS[0], 2, 0, True), (KEYS[2], 2, 0, True), (KEYS[3], 1, 0, True)])
    assert model.intervals.messages(dead_letter=False) == {"a": 5}
    assert model.intervals.messages(dead_letter=True) == {"a": 1}


def test_where_nothing_is_written_no_offset_is_kept() -> None:
    intervals = LedgerIntervals(located=False)
    for offset in range(0, 100_000, 10):
        intervals.stored(batch(KEYS[0], 1), 0, offset)
    (entry,) = intervals._open.values()
    assert entry.run_count() == 0
    assert intervals.messages(dead_letter=False) == {"a": 10_000}


def test_bounds_are_those_of_all_offsets_with_and_without_their_runs() -> None:
    intervals = LedgerIntervals()
    for offset in (0, 7):
        intervals.stored(batch(KEYS[0], 1), 0, offset)
        (entry,) = intervals._open.values()
        assert entry.bounds() == (0, offset)
        entry.keep_bounds_only()
        assert entry.bounds() == (0, offset)
    nowhere = Entry()
    nowhere.begin_run(-1, 1)
    nowhere.keep_bounds_only()
    entry.add(nowhere)
    assert entry.bounds() == (0, 7)


def test_a_clock_stepped_back_makes_no_interval_that_ends_before_it_begins() -> None:
    intervals = LedgerIntervals()
    intervals.begin(1_000_000)
    intervals.close(400_000, TERMS)
    intervals.close(460_000, TERMS)
    assert [(one.from_ms, one.to_ms) for one in intervals.pending] == [(400_000, 400_000), (400_000, 460_000)]
