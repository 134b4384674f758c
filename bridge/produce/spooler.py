"""Decides what goes to the spool, and brings it back: for partitions that Kafka does not take for a while.

A partition is *spooling* once its oldest record has waited ``after`` without an acknowledgement from it. From then on
what is flushed for it goes to the disk, together with the batch that is under way, and the spans that waited for it are
released: an acknowledgement to MQTT then means Kafka, or this disk. When the partition takes batches again, those on
disk go first, oldest first, some at a time; once the last of them is under way, new ones wait for it in memory as they
always did. They do so earlier where the disk is slower than Kafka (``bridge.produce.partitions.BacklogState``).

A batch that was under way when the spool took it stays the producer's: a late answer removes it from the disk, and
nothing else of its partition is sent before it has failed or its incarnation is gone. So what is on disk comes before
what is in memory alone, and each in the order received.

The event loop's thread owns everything here; the store works in a thread of its own."""

from __future__ import annotations

__all__ = ["SpoolPolicy", "Spooler"]

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from bridge.errors import SpoolFullError, SpoolWriteError
from bridge.produce.partitions import Backlog, BacklogState
from bridge.produce.spool_episodes import Episodes
from bridge.produce.spool_replay import Replay
from bridge.spool.spool import SpoolBatch
from config.errors import forget_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bridge.ledger import Ledger
    from bridge.ports import Producer, SpoolStore
    from bridge.produce.accumulator import Accumulator
    from bridge.produce.batch import Batch
    from bridge.produce.partitions import PartitionQueue, Partitions

log = structlog.get_logger("spool")

LOOK_INTERVAL_S: Final = 0.1  # how often stalled partitions are looked for; spool.after is a second
WRITE_BYTES: Final = 4 << 20  # of one append, or one batch: a commit of this size takes a slow disk some 40 ms
RETRY_S: Final = 1.0  # after a write that failed
SLOW_NS: Final = 250_000_000  # a write that takes longer is slow, where Kafka needs less than half of that
FRAME_BYTES: Final = 1024  # what a batch takes beyond its own bytes, at most
FULL_ADVICE: Final = "Kafka has to take some first: look why it does not; MQTT clients are held back meanwhile"


@dataclass(frozen=True, slots=True)
class SpoolPolicy:
    """``after_ns``: how long a partition may take nothing; 0: everything goes through the disk. ``acknowledges``
    False: only Kafka does, and what MQTT will deliver again (QoS 1 and 2) is left to its window. ``takes`` False:
    nothing new goes to the disk, and what is there is delivered."""

    after_ns: int
    acknowledges: bool
    replay_bytes_per_s: int
    batch_bytes: int
    takes: bool = True


class _Write:
    """Batches to be written at once: as many as one commit may have, or one that is larger, if the disk has room."""

    __slots__ = ("_left", "_room", "full", "items")

    def __init__(self, room: int) -> None:
        self._room = room
        self._left = WRITE_BYTES
        self.full = False  # something was left out for which the disk has no room
        self.items: list[tuple[PartitionQueue, Batch]] = []

    def add(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Take a batch in; False when it has to wait."""
        size = batch.size + FRAME_BYTES
        if size > self._room:
            self.full = True
            return False
        if size > self._left and self.items:
            return False
        self._room -= size
        self._left -= size
        assert queue.backlog is not None
        batch.writing = True
        queue.backlog.writing.append(batch)
        self.items.append((queue, batch))
        return True


class Spooler:
    """``resume`` is called with a queue that has something to send again, or room to. ``opened`` comes first."""

    def __init__(
        self,
        store: SpoolStore,
        partitions: Partitions,
        producer: Callable[[], Producer],
        policy: SpoolPolicy,
        ledger: Ledger,
        resume: Callable[[PartitionQueue], None],
        clock_ns: Callable[[], int],
        fatal: Callable[[BaseException], None],
    ) -> None:
        self.store = store
        self._partitions = partitions
        self._policy = policy
        self._ledger = ledger
        self._resume = resume
        self._clock_ns = clock_ns
        self._fatal = fatal
        self._replay = Replay(
            store, partitions, producer, ledger, resume, clock_ns, fatal,
            bytes_per_s=policy.replay_bytes_per_s, batch_bytes=policy.batch_bytes,
        )  # fmt: skip
        self._spooling: dict[PartitionQueue, None] = {}
        self._writer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._episodes = Episodes()
        self._retry_ns = 0
        self._write_ns = 0  # how long the last write took
        self._wrote_ns = 0  # when it ended
        self._closed = False  # nothing goes to the disk or comes from it any more
        self.problem: str | None = None  # why the disk takes nothing at the moment
        self.full = False  # whether that is for want of room
        if policy.takes and not policy.after_ns:
            partitions.made = self._begin

    def adopt(self, policy: SpoolPolicy) -> None:
        """Spool by another policy from now on, one that differs in times and rates alone: neither to nor from an
        ``after_ns`` of 0."""
        self._policy = policy
        self._replay.adopt(policy.replay_bytes_per_s)

    # --- life --------------------------------------------------------------------------------------

    def opened(self) -> None:
        """Take over what the store holds from an earlier life: it goes before anything new of its partitions."""
        for topic, partition in self.store.partitions():
            queue = self._partitions.queue(topic, partition)
            backlog = queue.backlog = queue.backlog or Backlog()
            backlog.behind = self.store.waiting(topic, partition)
            backlog.behind_messages = self.store.waiting_messages(topic, partition)
            self._ledger.recovered += backlog.behind_messages
            if self._policy.after_ns:
                self._episodes.begin(topic, partition, self._clock_ns(), recovered=True)
            if self._policy.takes:
                self._begin(queue)
        self._look()

    async def close(self, *, patience_s: float = 0.0) -> None:
        """Send nothing from the disk any more; let a write end, and wait a moment for the answers to what is under
        way, which would be delivered again otherwise. The rest is on disk, or was never acknowledged."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._replay.close()
        if self._writer is not None:
            await asyncio.wait([self._writer])
        under_way = [queue for queue in self._partitions.queues.values() if queue.in_flight is not None]
        replays = [queue for queue in under_way if queue.in_flight is not None and queue.in_flight.on_disk]
        if replays and patience_s:
            settled = self._replay.settled
            settled.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    while any(queue.in_flight is not None and queue.in_flight.on_disk for queue in replays):
                        await settled.wait()
                        settled.clear()
        self._replay.end()
        self._episodes.tell(None)

    async def drained(self) -> None:
        """Wait until the disk holds nothing any more, however long that takes."""
        # Not until no message is left: the last of a message's records may be in Kafka, and the others here.
        while not self._replay.idle or any(backlog.behind for backlog in self._backlogs()):
            self._replay.settled.clear()
            await self._replay.settled.wait()

    @property
    def accumulator(self) -> Accumulator:
        """Where what was read back enters, and its dead letters."""
        return self._replay.accumulator

    @property
    def replay(self) -> Replay:
        """What brings messages back."""
        return self._replay

    def messages(self) -> int:
        """Messages in the spool, read back or not, until Kafka has them: the ledger's own look at what is held."""
        return sum(backlog.behind_messages for backlog in self._backlogs()) + self._replay.messages()

    @property
    def trouble(self) -> str | None:
        """Why the disk takes nothing at the moment, or gives nothing back."""
        return self.problem or self._replay.problem

    def spooling(self) -> dict[str, list[int]]:
        """The partitions whose messages go to the disk at the moment, by topic."""
        found: dict[str, list[int]] = {}
        for queue in self._spooling:
            found.setdefault(queue.topic, []).append(queue.partition)
        return found

    def _backlogs(self) -> Iterator[Backlog]:
        return (queue.backlog for queue in self._partitions.queues.values() if queue.backlog is not None)

    # --- for the sender ----------------------------------------------------------------------------

    def pump(self) -> None:
        """Write what has been flushed for the partitions that are spooling. Does not block."""
        if self._spooling and self._writer is None and not self._closed:
            items = self._next_items()
            if items:
                self._writer = asyncio.get_running_loop().create_task(self._write_all(items))
                self._writer.add_done_callback(self._written_all)

    def next_batch(self, queue: PartitionQueue) -> Batch | None:
        """Take the batch to send next of a queue that has a backlog, or None: it may be on its way from the disk."""
        backlog = queue.backlog
        assert backlog is not None
        if self._closed:
            return None
        if backlog.behind:
            self._replay.want(queue)
        if (backlog.turn or not backlog.loaded) and (backlog.loaded or backlog.behind or backlog.writing):
            # In turn with what is on disk, which may have no end: their order is promised to nobody.
            backlog.turn = False
            if queue.sealed and not self._takes(queue.sealed[0]):
                return queue.sealed.popleft()
        if backlog.loaded:
            batch = backlog.loaded.popleft()
            backlog.turn = True
            if not (backlog.behind or backlog.loaded or backlog.writing) and self._policy.after_ns:
                self._drain(queue)  # new batches wait for this one in memory
            return batch
        if backlog.behind or backlog.writing:
            return None
        if self._policy.after_ns:
            if backlog.spooling:
                self._drain(queue)
            queue.backlog = None
            self._episodes.end(queue.topic, queue.partition, self._clock_ns())
        return queue.next_batch()

    # --- to the disk -------------------------------------------------------------------------------

    def _look(self) -> None:
        """Find the partitions that have taken nothing for too long."""
        self._timer = None
        if self._closed:
            return
        now_ns = self._clock_ns()
        for queue in self._partitions.queues.values() if self._policy.takes else ():
            if queue not in self._spooling and self._late(queue, now_ns) and self._takes_any(queue):
                if queue.backlog is None:
                    self._episodes.begin(queue.topic, queue.partition, now_ns)
                self._begin(queue)
        self._episodes.tell(now_ns)
        try:
            self.pump()
        except Exception as error:  # noqa: BLE001 - the loop would only log it, and nothing be spooled any more
            self._fatal(error)
        self._timer = asyncio.get_running_loop().call_later(LOOK_INTERVAL_S, self._look)

    def _late(self, queue: PartitionQueue, now_ns: int) -> bool:
        """Whether what memory alone has of a partition has to go to the disk."""
        oldest_ns, after_ns, backlog = queue.oldest_ns(), self._policy.after_ns, queue.backlog
        if not oldest_ns:
            return False
        silent_ns = max(oldest_ns, queue.last_acknowledged_ns)
        if backlog is None:
            return silent_ns < now_ns - after_ns
        # While everything that goes first is still on the disk, Kafka has nothing to acknowledge.
        if (queue.in_flight or backlog.loaded) and max(silent_ns, backlog.read_ns) < now_ns - after_ns:
            return True
        # It waits for the disk to be emptied: not longer than the disk would take for it.
        return max(oldest_ns, backlog.since_ns) < now_ns - max(after_ns, self._write_ns)

    def _begin(self, queue: PartitionQueue) -> None:
        backlog = queue.backlog
        if backlog is None:
            backlog = queue.backlog = Backlog()
            backlog.read_id = self._replay.last_held(queue)
        backlog.state, backlog.since_ns = BacklogState.SPOOLS, self._clock_ns()
        self._spooling[queue] = None

    def _drain(self, queue: PartitionQueue) -> None:
        """Add nothing more to the disk."""
        backlog = queue.backlog
        assert backlog is not None
        backlog.state, backlog.since_ns = BacklogState.DRAINS, self._clock_ns()
        self._spooling.pop(queue, None)
        if not self._spooling:
            self.problem = None  # nothing is asked of the disk any more

    def _spare_slow_disk(self) -> None:
        """Before a write: drain the partitions for which the disk takes longer than Kafka does."""
        if self._write_ns < SLOW_NS or not self._policy.after_ns:
            return
        silent_ns = self._clock_ns() - self._policy.after_ns
        for queue in list(self._spooling):
            backlog, batch = queue.backlog, queue.in_flight
            assert backlog is not None
            takes = queue.last_acknowledged_ns > backlog.since_ns and (batch is None or batch.sent_ns > silent_ns)
            # What was sent before it began to spool, and answered since, tells how long Kafka was away.
            awaited = queue.last_acknowledged_ns - queue.answered_in_ns <= backlog.since_ns
            if takes and (awaited or self._write_ns > 2 * queue.answered_in_ns):
                self._drain(queue)

    def _reads_first(self) -> bool:
        """Whether a slow disk is left to the partitions that drain: after a write, no longer than that write took.

        One thread serves the disk, and reads one partition at a time. Each read would wait for another write."""
        if self._write_ns < SLOW_NS or self._clock_ns() > self._wrote_ns + self._write_ns:
            return False
        return any(backlog.state is BacklogState.DRAINS and backlog.holds for backlog in self._backlogs())

    def _next_items(self) -> list[tuple[PartitionQueue, Batch]]:
        self._spare_slow_disk()
        return [] if self._reads_first() else self._collect()

    def _takes(self, batch: Batch) -> bool:
        return self._policy.acknowledges or batch.slot.qos == 0

    def _takes_any(self, queue: PartitionQueue) -> bool:
        if self._policy.acknowledges:
            return True
        opened = any(slot.qos == 0 for slot in queue.open)
        return opened or any(batch.slot.qos == 0 for batch in queue.batches() if not batch.on_disk)

    def _collect(self) -> list[tuple[PartitionQueue, Batch]]:
        """What to write next, in order for each partition; empty when there is nothing, or no room for it."""
        if self._clock_ns() < self._retry_ns:
            return []
        write = _Write(self.store.max_bytes - self.store.bytes)
        for queue in list(self._spooling):
            self._collect_from(queue, write)
            if write.full:
                self._note_full()
        return write.items

    def _collect_from(self, queue: PartitionQueue, write: _Write) -> None:
        """Add what of a queue is to be written next. What does not fit stays, and with it everything behind it."""
        backlog = queue.backlog
        assert backlog is not None
        batch = queue.in_flight
        if batch is not None and not batch.on_disk and self._takes(batch) and not write.add(queue, batch):
            return
        kept: list[Batch] = []
        while (batch := queue.next_batch()) is not None:
            if not self._takes(batch):
                kept.append(batch)
            elif not write.add(queue, batch):
                kept.append(batch)
                break
        queue.sealed.extendleft(reversed(kept))

    def _note_full(self) -> None:
        """Back-pressure: what does not fit stays in memory, unacknowledged, until the disk has room again."""
        if self.problem is None:
            self.full = True
            self.problem = f"the spool holds {self.store.bytes} bytes of spool.max_bytes = {self.store.max_bytes}"
            log.error("spool_full", bytes=self.store.bytes, max_bytes=self.store.max_bytes, advice=FULL_ADVICE)

    async def _write_all(self, items: list[tuple[PartitionQueue, Batch]]) -> None:
        while items:
            await self._write(items)
            items = [] if self._closed else self._next_items()

    def _written_all(self, task: asyncio.Task[None]) -> None:
        self._writer = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal(error)

    async def _write(self, items: list[tuple[PartitionQueue, Batch]]) -> None:
        now_ns, now_ms = self._clock_ns(), time.time_ns() // 1_000_000
        rows = [
            SpoolBatch(
                topic=queue.topic,
                partition=queue.partition,
                route=batch.slot.route,
                qos=batch.slot.qos,
                dead_letter=batch.slot.dead_letter,
                messages=batch.messages,
                unfinished=tuple(batch.unfinished),
                opened_ms=now_ms - (now_ns - batch.opened_ns) // 1_000_000,
                data=batch.builder.encode(),
            )
            for queue, batch in items
        ]
        try:
            ids = await self.store.append(rows)
            self._wrote_ns = self._clock_ns()
            self._write_ns = self._wrote_ns - now_ns
        except (SpoolFullError, SpoolWriteError) as error:
            forget_frames(error)  # they have what was to be written: 4 MiB, and once more at each attempt
            self._not_written(items, error)
        else:
            if self.problem is not None:
                self.problem = None
                log.info("spool_takes_again")
            for (queue, batch), row_id in zip(items, ids, strict=True):
                self._written(queue, batch, row_id)
        for queue in dict.fromkeys(queue for queue, _ in items):
            self._resume(queue)

    def _written(self, queue: PartitionQueue, batch: Batch, row_id: int) -> None:
        backlog = queue.backlog
        assert backlog is not None
        batch.writing = False
        backlog.writing.remove(batch)
        if batch.stored:
            # Kafka has answered meanwhile, so as far as the ledger is concerned the disk never had it.
            backlog.read_id = max(backlog.read_id, row_id)
            self.store.remove(queue.topic, queue.partition, [row_id])
            return
        if batch is queue.in_flight:
            backlog.read_id = max(backlog.read_id, row_id)
            batch.on_disk = True
            batch.slot.accumulator.spooled(batch, self._replay.hold(queue, [row_id], batch.messages))
            return
        backlog.behind += 1
        backlog.behind_messages += batch.messages
        batch.slot.accumulator.spooled(batch)

    def _not_written(self, items: list[tuple[PartitionQueue, Batch]], error: SpoolFullError | SpoolWriteError) -> None:
        """Everything stays in memory, unacknowledged: the windows close, and the broker holds what comes."""
        self._retry_ns = self._clock_ns() + round(RETRY_S * 1e9)
        self.problem = str(error)
        self.full = isinstance(error, SpoolFullError)
        log.error("spool_not_written", error=str(error), repeat_key=type(error).__name__)
        for queue, batch in reversed(items):
            batch.writing = False
            assert queue.backlog is not None
            queue.backlog.writing.remove(batch)
            if batch is not queue.in_flight and not batch.stored:
                queue.sealed.appendleft(batch)
