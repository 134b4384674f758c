"""Writes batches of a partition to the spool while Kafka does not take them, and sends them in order later.

A partition begins to *spool* when its oldest record has waited ``after`` without an acknowledgement. From then on its
batches go to the disk, including the one in flight. Then their messages are acknowledged to MQTT. When Kafka takes
batches again, those on disk are sent first, oldest first. Once the last of them is in flight, new batches wait in
memory; on a disk slower than Kafka they do so earlier (``bridge.produce.partitions.BacklogState``).

A batch that was in flight when it was spooled stays with the producer. A late answer removes it from the disk. No other
batch of its partition is sent until it has failed or the producer is replaced. So batches on disk are sent before
those that are only in memory, in the order received.

The event loop's thread owns everything here. The store has its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import structlog

from bridge.errors import SpoolFullError, SpoolWriteError
from bridge.produce.batch import Batch, OnDisk
from bridge.produce.partitions import Backlog, BacklogState, PartitionQueue
from bridge.produce.spool_episodes import Episodes
from bridge.produce.spool_replay import Replay, SpoolLinks
from bridge.spool.record import SpoolBatch
from bridge.waiting import until_beat_s
from config.errors import forget_frames

if TYPE_CHECKING:
    from bridge.produce.accumulator import Accumulator
    from config.settings import Settings

log = structlog.get_logger("spool")

LOOK_INTERVAL_S: Final = 0.1  # between two checks for stalled partitions; spool.after is a second
IDLE_INTERVAL_S: Final = 0.5  # the same while no record waits
WRITE_BYTES: Final = 4 << 20  # limit of one append, unless one batch is larger; a slow disk commits this in some 40 ms
RETRY_S: Final = 1.0  # after a write that failed
SLOW_NS: Final = 250_000_000  # a longer write is slow if Kafka needs less than half of its time
FRAME_BYTES: Final = 1024  # most bytes that a batch takes beyond its own
FULL_ADVICE: Final = "Kafka has to take some first: look why it does not; MQTT clients are held back meanwhile"


@dataclass(frozen=True, slots=True)
class SpoolPolicy:
    """Settings of spooling.

    A partition spools after ``after_ns`` without an acknowledgement; with 0 every batch goes through the disk. With
    ``acknowledges`` False only Kafka acknowledges, and only QoS 0 is spooled: the broker keeps the others. With
    ``takes`` False no batch is written, and those on disk are delivered."""

    after_ns: int
    acknowledges: bool
    replay_bytes_per_s: int
    batch_bytes: int
    takes: bool = True

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        spool = settings.spool
        return cls(
            after_ns=round(spool.after.total_seconds() * 1e9),
            acknowledges=spool.acknowledge == "fsync",  # MQTT gets its acknowledgement when the disk has the batch
            replay_bytes_per_s=spool.replay_max_bytes_per_second,
            batch_bytes=settings.kafka.batch_bytes,
            takes=spool.enabled,  # otherwise the spool is only emptied
        )


class _Write:
    """The batches of one write: as many as fit into WRITE_BYTES and the free space, or one larger batch."""

    __slots__ = ("_left", "_room", "is_full", "items")

    def __init__(self, room: int) -> None:
        self._room = room
        self._left = WRITE_BYTES
        self.is_full = False  # a batch was left out for lack of space
        self.items: list[tuple[PartitionQueue, Batch]] = []

    def add(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Add a batch, which is being written from now on; False when the spool or this write has no room for it."""
        size = batch.size + FRAME_BYTES
        if size > self._room:
            self.is_full = True
            return False
        if size > self._left and self.items:
            return False
        self._room -= size
        self._left -= size
        assert queue.backlog is not None
        batch.enter(OnDisk.WRITING)
        queue.backlog.writing.append(batch)
        self.items.append((queue, batch))
        return True


class Spooler:
    """Writes batches of one worker to the spool. Call ``opened`` first."""

    def __init__(self, links: SpoolLinks, policy: SpoolPolicy) -> None:
        self._links = links
        self._store = links.store
        self._clock_ns = links.clock_ns
        self._policy = policy
        self.replay = Replay(links, bytes_per_s=policy.replay_bytes_per_s, batch_bytes=policy.batch_bytes)
        self._spooling: dict[PartitionQueue, None] = {}  # an ordered set
        self._writer: asyncio.Task[None] | None = None  # the write under way
        self._timer: asyncio.TimerHandle | None = None  # of the next ``_look``
        self._episodes = Episodes()
        self._retry_ns = 0  # after a failed write, nothing is written before
        self._write_ns = 0  # duration of the last write
        self._wrote_ns = 0  # when it ended
        self._closed = False  # reading and writing have stopped
        self.problem: str | None = None  # why nothing can be written at the moment
        self._full = False  # whether the last such reason was that the spool is full
        if policy.takes and not policy.after_ns:
            links.partitions.made = self._begin_spooling

    def adopt(self, policy: SpoolPolicy) -> None:
        """Use another policy from now on. ``after_ns`` may change neither to 0 nor from it."""
        self._policy = policy
        self.replay.adopt(policy.replay_bytes_per_s)

    # --- life --------------------------------------------------------------------------------------

    def opened(self) -> None:
        """Take over batches of an earlier run. They are sent before new ones of their partitions."""
        for topic, partition in self._store.partitions():
            queue = self._links.partitions.queue(topic, partition)
            if not self._policy.takes:
                queue.backlog = Backlog(BacklogState.DRAINS, self._clock_ns())
            elif queue.backlog is None:
                self._begin_spooling(queue)
            backlog = queue.backlog
            assert backlog is not None
            backlog.behind = backlog.from_earlier_run = self._store.waiting(topic, partition)
            backlog.behind_messages = self._store.waiting_messages(topic, partition)
            self._links.ledger.recovered += backlog.behind_messages
            if self._policy.after_ns:
                self._episodes.begin(topic, partition, self._clock_ns(), recovered=True)
        self._look()

    async def close(self, *, patience_s: float = 0.0) -> None:
        """Stop reading and writing; a write in progress ends first.

        Waits up to ``patience_s`` for answers of batches from the disk, which would otherwise be delivered again. All
        other batches are on disk, or were never acknowledged."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self.replay.close()
        if self._writer is not None:
            await asyncio.wait([self._writer])
        queues = self._links.partitions.queues.values()
        replays = [queue for queue in queues if queue.in_flight is not None and queue.in_flight.is_on_disk]
        if replays and patience_s:
            settled = self.replay.settled
            settled.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    while any(queue.in_flight is not None and queue.in_flight.is_on_disk for queue in replays):
                        await settled.wait()
                        settled.clear()
        self.replay.stop_removing()  # the store is closed next
        self._episodes.tell(None)  # all that have ended

    async def drained(self) -> None:
        """Wait until nothing is on disk, however long that takes."""
        # Counts batches, because a message's last record may be in Kafka while others are on disk.
        while not self.replay.idle or any(backlog.behind for backlog in self._backlogs()):
            self.replay.settled.clear()
            await self.replay.settled.wait()

    @property
    def accumulator(self) -> Accumulator:
        """The accumulator of batches that were read back, and of their dead letters."""
        return self.replay.accumulator

    def messages(self) -> int:
        """Messages in the spool, including those that were read back, until Kafka has them. For the ledger."""
        return sum(backlog.behind_messages for backlog in self._backlogs()) + self.replay.messages()

    @property
    def trouble(self) -> str | None:
        """Why nothing can be written, or read, at the moment."""
        return self.problem or self.replay.problem

    @property
    def full(self) -> bool:
        """Whether nothing can be written because the spool is full."""
        return self.problem is not None and self._full

    def spooling(self) -> dict[str, list[int]]:
        """The partitions that spool at the moment, by topic."""
        found: dict[str, list[int]] = {}
        for queue in self._spooling:
            found.setdefault(queue.topic, []).append(queue.partition)
        return found

    def _backlogs(self) -> Iterator[Backlog]:
        return (queue.backlog for queue in self._links.partitions.queues.values() if queue.backlog is not None)

    # --- for the sender ----------------------------------------------------------------------------

    def pump(self) -> None:
        """Write flushed batches of the partitions that spool. Does not block."""
        if self._spooling and self._writer is None and not self._closed:
            items = self._next_items()
            if items:
                self._writer = asyncio.get_running_loop().create_task(self._write_all(items))
                self._writer.add_done_callback(self._written_all)

    def next_batch(self, queue: PartitionQueue) -> Batch | None:
        """Take the next batch of a queue with a backlog. None when there is none, or it is being read."""
        backlog = queue.backlog
        assert backlog is not None
        if self._closed:
            return None
        if backlog.behind:
            self.replay.want(queue)
        if (backlog.memory_first or not backlog.loaded) and (backlog.loaded or backlog.behind or backlog.writing):
            # Batches that may not be spooled alternate with the disk, which may never become empty. No order is
            # promised between the two, unless an earlier run had ``spool.acknowledge = "fsync"``.
            backlog.memory_first = False
            if queue.sealed and not self._may_spool(queue.sealed[0]) and not backlog.has_ordered:
                return queue.sealed.popleft()
        if backlog.loaded:
            batch = backlog.loaded.popleft()
            backlog.memory_first = True
            if not (backlog.behind or backlog.loaded or backlog.writing) and self._policy.after_ns:
                self._drain(queue)  # new batches wait in memory for this one
            return batch
        if backlog.behind or backlog.writing:
            return None
        if self._policy.after_ns:
            if backlog.is_spooling:
                self._drain(queue)
            queue.backlog = None
            self._episodes.end(queue.topic, queue.partition, self._clock_ns())
        return queue.next_batch()

    # --- to the disk -------------------------------------------------------------------------------

    def _look(self) -> None:
        """Start to spool partitions that had no acknowledgement for too long. Its timer calls it again."""
        self._timer = None
        if self._closed:
            return
        now_ns = self._clock_ns()
        waiting = [queue for queue in self._links.partitions.queues.values() if queue.has_records]
        for queue in waiting if self._policy.takes else ():
            if queue not in self._spooling and self._must_spool(queue, now_ns) and self._may_spool_any(queue):
                if queue.backlog is None:
                    self._episodes.begin(queue.topic, queue.partition, now_ns)
                self._begin_spooling(queue)
        self._episodes.tell(now_ns)
        try:
            self.pump()
        except Exception as error:  # noqa: BLE001 - the loop would only log it, and spooling would stop
            self._links.fatal(error)
        # A record that comes before an idle look is at most half of ``spool.after`` old there.
        idle_s = max(LOOK_INTERVAL_S, min(IDLE_INTERVAL_S, self._policy.after_ns / 2e9))
        wait_s = until_beat_s(LOOK_INTERVAL_S if waiting else idle_s)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _must_spool(self, queue: PartitionQueue, now_ns: int) -> bool:
        """Whether a partition's batches that are only in memory must go to the disk."""
        oldest_ns, after_ns, backlog = queue.oldest_ns(), self._policy.after_ns, queue.backlog
        if not oldest_ns:
            return False
        silent_ns = max(oldest_ns, queue.last_acknowledged_ns)
        if backlog is None:
            return silent_ns < now_ns - after_ns
        # Kafka can acknowledge nothing while the batches to send first are still being read.
        if (queue.in_flight or backlog.loaded) and max(silent_ns, backlog.waited_read_ns) < now_ns - after_ns:
            return True
        # It waits behind batches on disk, but not longer than a write would take.
        return max(oldest_ns, backlog.since_ns) < now_ns - max(after_ns, self._write_ns)

    def _begin_spooling(self, queue: PartitionQueue) -> None:
        """Write the partition's batches to the disk from now on."""
        backlog = queue.backlog
        if backlog is None:
            backlog = queue.backlog = Backlog(BacklogState.SPOOLS, self._clock_ns())
            backlog.read_id = self.replay.newest_in_memory(queue)
        else:
            backlog.enter(BacklogState.SPOOLS, self._clock_ns())
        self._spooling[queue] = None

    def _drain(self, queue: PartitionQueue) -> None:
        """Stop writing batches of the partition."""
        backlog = queue.backlog
        assert backlog is not None
        backlog.enter(BacklogState.DRAINS, self._clock_ns())
        self._spooling.pop(queue, None)
        if not self._spooling:
            self.problem = None  # nothing is to be written

    def _spare_slow_disk(self) -> None:
        """Before a write: drain partitions for which the disk takes longer than Kafka."""
        if self._write_ns < SLOW_NS or not self._policy.after_ns:
            return
        silent_ns = self._clock_ns() - self._policy.after_ns
        for queue in list(self._spooling):
            backlog, batch = queue.backlog, queue.in_flight
            assert backlog is not None
            takes = queue.last_acknowledged_ns > backlog.since_ns and (batch is None or batch.sent_ns > silent_ns)
            # This batch was sent before spooling began, so its time includes the outage.
            awaited = queue.last_acknowledged_ns - queue.answered_in_ns <= backlog.since_ns
            if takes and (awaited or self._write_ns > 2 * queue.answered_in_ns):
                self._drain(queue)

    def _reads_first(self) -> bool:
        """Whether writes pause for reads of draining partitions: on a slow disk, after a write, for as long as it took.

        One thread serves the disk and reads one partition at a time. Without the pause each read would wait for another
        write."""
        if self._write_ns < SLOW_NS or self._clock_ns() > self._wrote_ns + self._write_ns:
            return False
        return any(backlog.state is BacklogState.DRAINS and backlog.has_batches for backlog in self._backlogs())

    def _next_items(self) -> list[tuple[PartitionQueue, Batch]]:
        self._spare_slow_disk()
        return [] if self._reads_first() else self._collect()

    def _may_spool(self, batch: Batch) -> bool:
        return self._policy.acknowledges or batch.slot.qos == 0

    def _may_spool_any(self, queue: PartitionQueue) -> bool:
        if self._policy.acknowledges:
            return True
        opened = any(slot.qos == 0 for slot in queue.open)
        return opened or any(batch.slot.qos == 0 for batch in queue.batches() if not batch.is_on_disk)

    def _collect(self) -> list[tuple[PartitionQueue, Batch]]:
        """The batches to write next, in order for each partition; none if the disk is full."""
        if self._clock_ns() < self._retry_ns:
            return []
        write = _Write(self._store.max_bytes - self._store.bytes)
        for queue in list(self._spooling):
            self._collect_from(queue, write)
            if write.is_full:
                self._note_full()
        return write.items

    def _collect_from(self, queue: PartitionQueue, write: _Write) -> None:
        """Add a queue's next batches to a write. A batch that does not fit stays in the queue, as do those behind
        it."""
        backlog = queue.backlog
        assert backlog is not None
        batch = queue.in_flight
        if batch is not None and not batch.is_on_disk and self._may_spool(batch) and not write.add(queue, batch):
            return
        kept: list[Batch] = []
        while (batch := queue.next_batch()) is not None:
            if not self._may_spool(batch):
                kept.append(batch)
            elif not write.add(queue, batch):
                kept.append(batch)
                break
        queue.sealed.extendleft(reversed(kept))

    def _note_full(self) -> None:
        """Note that the disk is full. Batches stay in memory, unacknowledged, and the windows close."""
        if self.problem is None:
            self._full = True
            self.problem = f"the spool holds {self._store.bytes} bytes of spool.max_bytes = {self._store.max_bytes}"
            log.error("spool_full", bytes=self._store.bytes, max_bytes=self._store.max_bytes, advice=FULL_ADVICE)

    async def _write_all(self, items: list[tuple[PartitionQueue, Batch]]) -> None:
        while items:
            await self._write_batches(items)
            items = [] if self._closed else self._next_items()

    def _written_all(self, task: asyncio.Task[None]) -> None:
        self._writer = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._links.fatal(error)

    async def _write_batches(self, items: list[tuple[PartitionQueue, Batch]]) -> None:
        """Write batches, note which are on disk (all or none), and resume their queues."""
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
            ids = await self._store.append(rows)
            self._wrote_ns = self._clock_ns()
            self._write_ns = self._wrote_ns - now_ns
        except (SpoolFullError, SpoolWriteError) as error:
            forget_frames(error)  # its frames refer to 4 MiB of batches
            self._not_written(items, error)
        else:
            if self.problem is not None:
                self.problem = None
                log.info("spool_takes_again")
            for (queue, batch), row_id in zip(items, ids, strict=True):
                self._note_written(queue, batch, row_id)
        for queue in dict.fromkeys(queue for queue, _ in items):
            self._links.resume(queue)

    def _note_written(self, queue: PartitionQueue, batch: Batch, row_id: int) -> None:
        """Note that a batch is on disk as ``row_id``. If Kafka has it meanwhile, remove the row."""
        backlog = queue.backlog
        assert backlog is not None
        backlog.writing.remove(batch)
        if batch.is_stored:
            batch.enter(OnDisk.NO)
            # Kafka answered meanwhile, so the ledger does not count it on disk.
            backlog.read_id = max(backlog.read_id, row_id)
            self._store.remove(queue.topic, queue.partition, [row_id])
            return
        batch.enter(OnDisk.YES)
        if batch is queue.in_flight:
            backlog.read_id = max(backlog.read_id, row_id)
            batch.slot.accumulator.spooled(batch, self.replay.hold(queue, [row_id], batch.messages))
            return
        backlog.behind += 1
        backlog.behind_messages += batch.messages
        batch.slot.accumulator.spooled(batch)

    def _not_written(self, items: list[tuple[PartitionQueue, Batch]], error: SpoolFullError | SpoolWriteError) -> None:
        """Keep every batch in memory, unacknowledged. The windows close, and the broker keeps new messages."""
        self._retry_ns = self._clock_ns() + round(RETRY_S * 1e9)
        self.problem = str(error)
        self._full = isinstance(error, SpoolFullError)
        log.error("spool_not_written", error=str(error), repeat_key=type(error).__name__)
        for queue, batch in reversed(items):
            batch.enter(OnDisk.NO)
            assert queue.backlog is not None
            queue.backlog.writing.remove(batch)
            if batch is not queue.in_flight and not batch.is_stored:
                queue.sealed.appendleft(batch)
