"""A worker's spool: the store and the spooler together, as a component of the service."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from bridge.errors import SpoolWriteError
from bridge.ledger import Ledger
from bridge.produce.dead_letter import DeadLetterPlan
from bridge.produce.pipeline import Pipeline
from bridge.produce.spooler import SpoolPolicy
from bridge.spool.spool import Spool, spool_path
from bridge.waiting import end_tasks
from config.errors import forget_frames
from config.settings import Settings
from gateway.base.lifecycle import StopVerb
from gateway.base.metrics import Metrics

log = structlog.get_logger("spool")

RETRY_S: Final = 5.0  # after a number of partitions that was not written
CLOSE_PATIENCE_NS: Final = 200_000_000  # for answers to batches in flight: without them they are sent again


class Spooling:
    """``start`` opens the spool; its records go before all new ones. It comes after the identity, whose lock guards the
    folder, and before the sessions.

    ``stop`` comes after the sessions have drained. A worker that retires waits for an empty spool: no other worker
    would deliver its records.
    """

    name: Final = "spool"

    def __init__(
        self,
        settings: Settings,
        pipeline: Pipeline,
        ledger: Ledger,
        verb: Callable[[], StopVerb],
        preset: Callable[[str, int], None],
        withholds: Callable[[str], bool],
    ) -> None:
        """``preset`` pins a topic's partitions; ``withholds``: whether a route may make no dead letter now."""
        self._preset = preset
        spool = settings.spool
        self._ledger = ledger
        self._sender = pipeline.sender
        self._verb = verb
        self.store = Spool(
            spool_path(settings.data_dir, settings.worker), max_bytes=spool.max_bytes, instance=settings.instance
        )
        self.spooler = pipeline.spool(self.store, SpoolPolicy.from_settings(settings), ledger)
        self._dead_letters = pipeline.dead_letters(
            self.spooler.accumulator, DeadLetterPlan.from_settings(settings), withholds
        )
        self._remembered: dict[str, int] = {}  # partitions by topic, over restarts
        self._remembering: set[asyncio.Task[None]] = set()
        self._open = False
        self._was_opened = False  # in this life

    def adopt(self, settings: Settings) -> None:
        """Use other limits from now on. A spool beyond them keeps its records and takes no more."""
        self._dead_letters.adopt(DeadLetterPlan.from_settings(settings))
        self.store.max_bytes = settings.spool.max_bytes
        self.spooler.adopt(SpoolPolicy.from_settings(settings))

    async def start(self) -> None:
        """Open the spool. Raises SpoolError when the folder cannot be used. Damage is logged and counted as lost."""
        report = await self.store.open()
        self._open = self._was_opened = True
        self._ledger.recovered += report.lost_messages
        self._ledger.lost += report.lost_messages
        waiting = {topic for topic, _ in self.store.partitions()}
        before, self._remembered = self._remembered, self.store.topics()
        # New partitions move keys to other ones: not before the batches for the old ones are delivered.
        used = {topic: count for topic, count in self._remembered.items() if topic in waiting}
        for topic, count in used.items():
            self._preset(topic, count)
        for topic in before.keys() - used.keys():  # seen before the spool was open
            self.remember(topic, before[topic])
        self.spooler.opened()
        if self.store.batches:
            self._dead_letters.doubt_keys()
            log.info("spool_found", messages=self.store.messages, bytes=self.store.bytes, batches=self.store.batches)
        for queue in list(self._sender.partitions.queues.values()):
            self._sender.resume(queue)

    async def stop(self, deadline_ns: int) -> None:
        """Close the spool; a worker that retires drains it first, if the deadline allows."""
        if not self._open:
            return
        if self._verb() is StopVerb.RETIRE and time.monotonic_ns() < deadline_ns:
            if self.store.batches:
                log.info("spool_draining", messages=self.spooler.messages())
            await self.spooler.drained()
        left_ns = max(0, min(CLOSE_PATIENCE_NS, deadline_ns - time.monotonic_ns()))
        await self.spooler.close(patience_s=left_ns / 1e9)
        await end_tasks(*self._remembering)
        await self.store.close()
        self._open = False
        if self.store.batches:
            log.info("spool_left", messages=self.store.messages, bytes=self.store.bytes)

    def may_hold_messages(self) -> bool:
        """Whether messages are on disk; also where a stop came before it was looked at."""
        return self.store.batches > 0 if self._was_opened else self.store.path.exists()

    def watch_metrics(self, metrics: Metrics, max_bytes: int) -> None:
        """Show the spool's contents as metrics."""
        metrics.spool_limit_bytes.child().value = max_bytes
        metrics.spool_messages.watch(self.spooler.messages)
        metrics.spool_bytes.watch(lambda: self.store.bytes)
        metrics.spool_oldest_age.watch(self.oldest_age_s)
        self.store.watch_writes(metrics.spool_fsync_seconds.child().observe)
        metrics.spool_failing.watch(lambda: int(self.spooler.trouble is not None))

    def facts(self) -> dict[str, object]:
        """The spool's part of /status. Does not block."""
        return {
            "messages": self.spooler.messages(),
            "bytes": self.store.bytes,
            "max_bytes": self.store.max_bytes,
            "oldest_age_seconds": self.oldest_age_s(),
            "spooling": self.spooler.spooling(),
            "problem": self.spooler.trouble,
        }

    def oldest_age_s(self) -> float:
        """The age of the oldest batch; 0 without one."""
        oldest_ms = self.store.oldest_ms()
        return max(0.0, time.time() - oldest_ms / 1000) if oldest_ms else 0.0

    # --- partitions of topics, over restarts -------------------------------------------------------

    def remember(self, topic: str, partitions: int) -> None:
        """Keep a topic's number of partitions for a start without Kafka. Does not block."""
        self._remembered[topic] = partitions
        if self._open:
            task = asyncio.get_running_loop().create_task(self._remember(topic, partitions))
            self._remembering.add(task)
            task.add_done_callback(self._remembering.discard)

    async def _remember(self, topic: str, partitions: int) -> None:
        """Write the number, again and again while the disk refuses it and it is the topic's last one."""
        while self._remembered[topic] == partitions:
            try:
                await self.store.remember_topic(topic, partitions)
                break
            except SpoolWriteError as error:
                log.warning("spool_not_written", error=str(error), repeat_key="remember")
                forget_frames(error)
                await asyncio.sleep(RETRY_S)

    def pin_all(self, topics: list[str]) -> bool:
        """Whether messages can be taken without Kafka: the partitions of all these topics are known from before.

        Then these numbers of partitions are in use from now on.
        """
        if not self._remembered.keys() >= set(topics):
            return False
        for topic in topics:
            self.recall(topic)
        return True

    def recall(self, topic: str) -> int | None:
        """A topic's number of partitions from before, which is in use from now on; None if it is not known."""
        count = self._remembered.get(topic)
        if count is not None:
            self._preset(topic, count)
        return count
