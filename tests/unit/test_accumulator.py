"""What is appended is drained once and in order, spans complete when they may, and bytes are given back."""

from __future__ import annotations

import weakref
from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bridge.ledger import Ledger
from bridge.ports import StoredRecord
from bridge.produce.accumulator import SMALL_BATCH_BYTES, Accumulator, Slot
from bridge.produce.batch import Batch, Span
from bridge.produce.partitions import PartitionQueue
from tests.kinds import there
from tests.unit.data_path import Owner, complete
from tests.unit.fake_kafka import FakeBatch

LIMIT = 400  # bytes of a batch: a few records fill it


class Bench:
    """An accumulator whose batches a test takes and stores by hand."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.compressed: list[bool] = []
        self.fault = None
        self.limit = limit
        self.spans: list[Span] = []
        self.accumulator = Accumulator(self._create, self._completed)
        self.ledger = Ledger(self.accumulator.in_flight)
        self.log: dict[tuple[str, int], list[StoredRecord]] = defaultdict(list)

    @classmethod
    def with_slot(cls, limit: int = LIMIT) -> tuple[Bench, Slot]:
        bench = cls(limit)
        return bench, bench.accumulator.slot("a", 1, "t", 0)

    def _create(self, compressed: bool) -> FakeBatch:
        self.compressed.append(compressed)
        return FakeBatch(self.limit, self.fault)

    def _completed(self, span: Span) -> None:
        complete(span, self.spans, self.ledger)

    def append(self, slot: Slot, value: bytes, *, key: bytes = b"k") -> None:
        if slot.append(slot.count, 7, key, value, []) is None:
            slot.roll(7, key, value, [])
        else:
            slot.count += 1
        self.ledger.received += 1

    def take(self, queue: PartitionQueue) -> Batch | None:
        """As the sender does: one batch of a partition under way."""
        assert queue.in_flight is None
        queue.in_flight = queue.next_batch()
        return queue.in_flight

    def store(self, queue: PartitionQueue) -> Batch:
        batch = there(queue.in_flight)
        queue.in_flight = None
        assert batch.builder.closed
        batch.builder.sent = True
        self.log[queue.topic, queue.partition] += batch.builder.stored
        self.accumulator.stored(batch)
        return batch

    def pump(self) -> None:
        for queue in self.accumulator.partitions.due:
            if queue.in_flight is None:
                self.take(queue)
        self.accumulator.partitions.due.clear()

    def flush(self) -> None:
        self.accumulator.flush()
        self.pump()

    def finish(self) -> None:
        self.accumulator.flush()
        self.drain()

    def drain(self) -> None:
        """Answer until nothing is under way; what is then left would never have been sent."""
        self.pump()
        queues = self.accumulator.partitions.queues.values()
        while any(queue.in_flight for queue in queues):
            for queue in queues:
                if queue.in_flight:
                    self.store(queue)
                    self.take(queue)

    def values(self, topic: str = "t", partition: int = 0) -> list[bytes | None]:
        return [record.value for record in self.log[topic, partition]]


# --- any history --------------------------------------------------------------------------------------------------
SLOTS = [("a", 0, 0), ("a", 1, 0), ("b", 1, 0), ("a", 1, 1), ("b", 1, 2), ("keyless", 1, -1), ("keyless", 0, -1)]
PARTITIONS = 3


class Histories(RuleBasedStateMachine):
    """Appends, flushes and answers in any order, beside a model that knows where every message must be."""

    @initialize()
    def begin(self) -> None:
        self.bench = Bench()
        self.accumulator = self.bench.accumulator
        self.slots = [
            self.accumulator.slot(route, qos, "t", partition)
            if partition >= 0
            else self.accumulator.keyless_slot(route, qos, "t", PARTITIONS)
            for route, qos, partition in SLOTS
        ]
        self.spans: list[list[bytes]] = [[]]  # what was received between two flushes
        self.slot_of: dict[bytes, int] = {}
        self.filtered = 0

    @rule(number=st.integers(0, len(SLOTS) - 1), size=st.sampled_from([0, 10, 60, 150, 2000]), count=st.integers(1, 4))
    def append(self, number: int, size: int, count: int) -> None:
        for _ in range(count):
            value = b"%d:%d " % (number, len(self.slot_of)) + b"." * size
            self.slot_of[value] = number
            self.spans[-1].append(value)
            self.bench.append(self.slots[number], value)

    @rule()
    def filter(self) -> None:
        self.accumulator.current.filtered += 1
        self.bench.ledger.received += 1
        self.spans[-1].append(b"filtered %d" % self.filtered)
        self.filtered += 1

    @rule()
    def flush(self) -> None:
        self.accumulator.flush()
        if self.spans[-1]:
            self.spans.append([])
        self.bench.pump()

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def answer(self, partition: int) -> None:
        queue = self.accumulator.partitions.queue("t", partition)
        if queue.in_flight is not None:
            self.bench.store(queue)
            self.bench.take(queue)

    @invariant()
    def spans_complete_in_order_and_only_when_all_of_theirs_is_durable(self) -> None:
        durable = {record.value for log in self.bench.log.values() for record in log}
        done = len(self.bench.spans)
        for values in self.spans[:done]:
            assert all(value in durable or value.startswith(b"filtered") for value in values)
        assert self.bench.ledger.imbalance() == 0, self.bench.ledger
        if done < len(self.spans) - 1:  # the oldest that is not complete has a reason
            assert any(value not in durable and not value.startswith(b"filtered") for value in self.spans[done])

    @invariant()
    def counts_and_bytes_are_those_of_what_is_held(self) -> None:
        queues = self.accumulator.partitions.queues.values()
        held = sum(queue.messages() for queue in queues)
        durable = sum(len(log) for log in self.bench.log.values())
        assert held == len(self.slot_of) - durable
        settled = [batch.size for queue in queues for batch in (*queue.sealed, queue.in_flight) if batch]
        open_bytes = [slot.batch.size for queue in queues for slot in queue.open if slot.batch]
        assert self.accumulator.buffered_bytes == sum(settled) + sum(open_bytes)

    def teardown(self) -> None:
        self.flush()
        self.bench.drain()
        assert self.accumulator.in_flight() == 0
        assert self.accumulator.buffered_bytes == 0
        assert len(self.bench.spans) == len(self.spans) - 1
        drained = [record.value for log in self.bench.log.values() for record in log]
        assert sorted(drained) == sorted(self.slot_of)
        position = {value: n for n, value in enumerate(self.slot_of)}
        for log in self.bench.log.values():
            for number in range(len(SLOTS)):
                order = [position[r.value] for r in log if self.slot_of[r.value] == number]
                assert order == sorted(order), f"slot {SLOTS[number]} out of order: {order}"


Histories.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
TestHistories = Histories.TestCase


# --- filling ------------------------------------------------------------------------------------------------------
def test_a_busy_partition_s_batch_goes_on_filling_over_flushes() -> None:
    bench, slot = Bench.with_slot(limit=10_000)
    queue = slot.queue
    for number in range(20):
        bench.append(slot, b"%d" % number)
        bench.flush()
    assert queue.in_flight.count == 1
    bench.store(queue)
    batch = there(bench.take(queue))
    assert batch.count == 19  # one batch for the nineteen spans that met a busy partition
    assert len(bench.spans) == 1
    bench.store(queue)
    assert len(bench.spans) == 20
    assert bench.take(queue) is None


def test_a_batch_behind_one_that_waits_for_its_leader_goes_on_filling_too() -> None:
    bench, slot = Bench.with_slot(limit=10_000)
    for number in range(20):
        bench.append(slot, b"%d" % number)
        bench.accumulator.flush()
        bench.accumulator.partitions.due.clear()  # the sender has looked, and nobody leads the partition
    assert [batch.count for batch in slot.queue.sealed] == [1]
    assert slot.count == 19
    bench.take(slot.queue)
    bench.drain()
    assert len(bench.spans) == 20


def test_a_batch_that_no_flush_has_passed_is_not_taken() -> None:
    """An answer between two reads does not send what the rest of the span is still to join."""
    bench, slot = Bench.with_slot(limit=10_000)
    bench.append(slot, b"1")
    bench.flush()
    bench.append(slot, b"2")
    bench.store(slot.queue)
    assert bench.take(slot.queue) is None
    bench.append(slot, b"3")
    bench.flush()
    assert slot.queue.in_flight.count == 2


def test_a_full_batch_is_rolled_and_the_record_is_in_the_next() -> None:
    bench, slot = Bench.with_slot()
    for number in range(10):
        bench.append(slot, b"%d" % number + b"." * 90)
    assert [batch.count for batch in slot.queue.sealed] == [3, 3, 3]
    assert slot.count == 1
    assert slot.queue in bench.accumulator.partitions.due  # a full batch does not wait for the flush to be sent
    bench.finish()
    assert [value[:1] for value in bench.values() if value] == [b"%d" % n for n in range(10)]


def test_a_small_batch_makes_the_next_an_uncompressed_one_and_a_large_one_back() -> None:
    bench, slot = Bench.with_slot(limit=1 << 20)
    for size in (1, 1, 2 * SMALL_BATCH_BYTES, 1):
        bench.append(slot, b"." * size)
        bench.finish()
    assert bench.compressed == [True, False, False, True]


def test_batches_without_a_key_take_idle_partitions_in_turn_those_that_a_topic_made_anew_has() -> None:
    bench, order = Bench(), []
    for partitions in (3, 1):
        slot = bench.accumulator.keyless_slot("a", 1, "t", partitions)
        for number in range(6):
            bench.append(slot, b"%d" % number)
            order.append(slot.queue.partition)
            bench.finish()
    assert order == [1, 2, 0] * 2 + [0] * 6


def test_batches_without_a_key_avoid_partitions_that_are_busy() -> None:
    bench = Bench()
    slot = bench.accumulator.keyless_slot("a", 1, "t", 3)
    for partition in (1, 2):
        queue = bench.accumulator.partitions.queue("t", partition)
        bench.append(bench.accumulator.slot("b", 1, "t", partition), b"x")
        bench.accumulator.flush()
        bench.take(queue)
    for number in range(4):
        bench.append(slot, b"%d" % number)
        assert slot.queue.partition == 0
        bench.accumulator.flush()
        bench.take(slot.queue)
        bench.store(slot.queue)
    bench.append(slot, b"busy everywhere")  # with no partition idle it goes on in turn all the same
    bench.accumulator.flush()
    bench.take(slot.queue)
    bench.append(slot, b"and again")
    assert slot.queue.partition != 0


# --- spans --------------------------------------------------------------------------------------------------------


def test_a_first_record_that_no_batch_takes_leaves_no_empty_batch() -> None:
    """Kafka refuses one."""
    bench, slot = Bench.with_slot()
    for _ in range(2):
        with pytest.raises(TypeError):
            bench.append(slot, "text")  # type: ignore[arg-type]
        assert (slot.batch, slot.queue.open, bench.accumulator.touched) == (None, [], [])
        assert bench.accumulator.current.pending == 0
    bench.append(slot, b"x")
    bench.finish()
    assert [record.value for record in bench.log["t", 0]] == [b"x"]


def test_the_oldest_message_is_the_oldest_not_released_and_none_when_nothing_is_held() -> None:
    bench = Bench()
    accumulator = bench.accumulator
    accumulator.now_ns = 5
    accumulator.current.opened_ns = 5  # a read that brought no message, as a PINGRESP is
    assert accumulator.oldest_ns() == 0
    slots = [accumulator.slot("a", 1, "t", partition) for partition in (0, 1)]
    for now_ns in (100, 200):
        for slot, accumulator.now_ns in zip(slots, (now_ns, now_ns + 50), strict=True):
            bench.append(slot, b"x")
        bench.flush()
    for oldest_ns in (100, 200):
        assert accumulator.oldest_ns() == oldest_ns, "a span is as old as its first message"
        for slot in slots:
            bench.store(slot.queue)
            bench.take(slot.queue)
    assert accumulator.oldest_ns() == 0


def test_what_a_connection_is_owed_is_returned_once_and_only_to_it() -> None:
    bench, slot = Bench.with_slot()
    one, other = Owner(), Owner()
    for owner, ids, ids2 in ((one, [b"1", b"2"], [b"3"]), (other, [b"1"], [])):
        for _ in (*ids, *ids2):
            bench.append(slot, b"x")
        bench.accumulator.current.owed.append((owner, ids, ids2))
    bench.accumulator.flush()
    bench.append(slot, b"x")
    bench.accumulator.current.owed.append((one, [b"4"], []))
    assert bench.accumulator.in_flight() == 5
    assert bench.accumulator.returned(one) == 4
    assert bench.accumulator.in_flight() == 1
    gone = weakref.ref(one)
    del one, owner
    assert gone() is None, "it is not kept in memory for as long as Kafka is away"


# --- records that change places ---------------------------------------------------------------------------------------
def test_a_record_moved_to_another_slot_holds_its_own_span_there() -> None:
    bench, slot = Bench.with_slot()
    dead = bench.accumulator.slot("a", 1, "dead", 0, dead_letter=True)
    bench.append(slot, b"bad")
    bench.flush()
    failed = there(slot.queue.in_flight)
    slot.queue.in_flight = None
    bench.append(slot, b"later")  # of a span that is still open
    bench.accumulator.append(dead, timestamp=7, key=b"k", value=b"bad", headers=[])
    bench.accumulator.move(failed.parts, dead)
    bench.accumulator.discard(failed)
    bench.accumulator.make_due(dead)
    assert bench.ledger.imbalance() == 0
    bench.pump()
    bench.store(dead.queue)
    assert [span.dead for span in bench.spans] == [1]  # without waiting for the open one
    bench.finish()
    assert [(span.stored, span.dead) for span in bench.spans] == [(0, 1), (1, 0)]
    assert bench.accumulator.buffered_bytes == 0


@pytest.mark.parametrize("limit", [LIMIT, 10_000])
@pytest.mark.parametrize("count", [2, 3, 10])
def test_many_records_moved_into_one_batch_in_one_span_are_all_counted(count: int, limit: int) -> None:
    bench = Bench(limit)
    dead = bench.accumulator.slot("a", 1, "dead", 0, dead_letter=True)
    for number in range(count):
        bench.append(dead, b"%d" % number + b"." * 90)
        bench.accumulator.move([(bench.accumulator.current, 1)], dead)
        assert bench.ledger.imbalance() == 0
    bench.finish()
    assert [span.dead for span in bench.spans] == [count]
    assert bench.accumulator.buffered_bytes == 0


def test_a_batch_knows_its_spans_in_the_order_of_its_records() -> None:
    bench = Bench(10_000)
    dead = bench.accumulator.slot("a", 1, "dead", 0, dead_letter=True)
    older = Span()
    current = bench.accumulator.current
    for span in (current, older, current, current, older):
        bench.append(dead, b"x")
        bench.accumulator.move([(span, 1)], dead)
    assert [(span, count) for span, count in dead.batch.parts if count] == [
        (current, 1), (older, 1), (current, 2), (older, 1),
    ]  # fmt: skip
    assert (current.pending, older.pending) == (2, 2)


def test_a_message_of_several_records_counts_once() -> None:
    bench, slot = Bench.with_slot(10_000)
    for number in range(3):
        bench.accumulator.append(slot, timestamp=7, key=None, value=b"%d" % number, headers=[])
        if number < 2:
            slot.batch.unfinished.append(slot.count - 1)
    bench.ledger.received += 1
    assert bench.ledger.imbalance() == 0
    bench.accumulator.flush()
    assert bench.ledger.imbalance() == 0
    bench.drain()
    assert [span.stored for span in bench.spans] == [1]
    assert bench.values() == [b"0", b"1", b"2"]


# --- mutations: what the ledger sees ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("copies", "imbalance"), [(0, 1), (2, -1)], ids=["skipped", "twice"])
def test_one_record_that_is_not_in_the_bytes_exactly_once_shows(copies: int, imbalance: int) -> None:
    bench, slot = Bench.with_slot(10_000)
    bench.fault = lambda record: copies if record.value == b"5" else 1
    for number in range(10):
        bench.append(slot, b"%d" % number)
    bench.finish()
    assert len(bench.values()) == 10 - imbalance
    assert bench.ledger.imbalance() == imbalance


def test_a_batch_lost_from_its_queue_shows_at_once() -> None:
    bench, slot = Bench.with_slot()
    for number in range(7):
        bench.append(slot, b"%d" % number + b"." * 90)
    lost = slot.queue.sealed.popleft()
    assert bench.ledger.imbalance() == lost.messages == 3


def test_a_record_counted_but_never_appended_shows() -> None:
    bench, slot = Bench.with_slot()
    bench.append(slot, b"x")
    slot.count += 1
    assert bench.ledger.imbalance() == -1
    bench.finish()
    # What Kafka acknowledged is one record: the account comes right again, for the second was never received.
    assert bench.ledger.imbalance() == 0
