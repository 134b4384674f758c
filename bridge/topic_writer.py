"""Writes an internal topic through the producer of the routes, which may be replaced meanwhile.

At most one batch of a partition is under way, beside those of other writers. What Kafka does not take is tried until it
does, in order.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from bridge.backoff import Backoff
from bridge.errors import BridgeError, IncarnationError, LeaderMissingError, PoisonedError
from config.errors import forget_frames

if TYPE_CHECKING:
    from bridge.ports import Headers, Producer

_LOOK_S: Final = 0.5  # how often it is looked whether the producer a batch was given to has been replaced
_BATCH_RECORDS: Final = 500
_COMPRESSED_FROM: Final = 8  # records
_PATIENCE_S: Final = 300.0  # for an answer; twice what the routes' batches have by default
_RENEW_AFTER_S: Final = 600.0  # a producer is replaced on this topic's account at most so often
_FIRST_PAUSE_NS: Final = 100_000_000
_LONGEST_PAUSE_NS: Final = 10_000_000_000

Record = TypeVar("Record")


class TopicWriter(Generic[Record]):
    """Writes queues of records. Belongs to the event loop's thread.

    Args:
        encode: returns a record's key, value and headers.
        stored: told of a record that Kafka has, with its offset, or -1 when Kafka does not say it.
        wanted: whether a record that was not stored is still to be.
        refused: told of a record that Kafka will never take. Returns what to write instead, None for nothing.
        failed: told of an error; the same is tried again.
        producer: returns the present producer, or None before the first. It must know the topic.
        renew: asks for another producer, when this one cannot write to a partition any more.
        now_ms: the wall clock.
    """

    def __init__(
        self,
        topic: str,
        *,
        encode: Callable[[Record], tuple[bytes | None, bytes | None, Headers]],
        stored: Callable[[Record, int], None],  # record, offset (-1: unknown)
        refused: Callable[[Record, PoisonedError], Record | None],  # returns what to write instead
        failed: Callable[[BridgeError], None],  # it is tried again
        wanted: Callable[[Record], bool] = lambda _record: True,  # else it is dropped, once not stored
        producer: Callable[[], Producer | None],  # the present one; None before the first
        renew: Callable[[str], None],  # asks for another producer; gets the reason
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._topic = topic
        self._encode, self._stored, self._refused, self._failed = encode, stored, refused, failed
        self._wanted = wanted
        self._producer = producer
        self._renew = renew
        self._now_ms = now_ms
        self._renewed_s = float("-inf")  # when ``renew`` was last called
        # By partition; kept between calls, which follow each other at once while a partition is missing.
        self._backoffs = defaultdict[int, Backoff](lambda: Backoff(_FIRST_PAUSE_NS, _LONGEST_PAUSE_NS))

    async def partitions(self) -> int:
        """The topic's partitions, once they are known."""
        while (count := self._partition_count()) is None:
            if (producer := self._producer()) is not None:
                producer.watch_topic(self._topic)
            await asyncio.sleep(_LOOK_S)
        return count

    def _partition_count(self) -> int | None:
        producer = self._producer()
        return None if producer is None else producer.partition_count(self._topic)

    async def write(self, partition: int, queue: deque[Record]) -> None:
        """Take records from the queue, and return when it is empty and Kafka has them. Callers may add meanwhile.

        Returns also when the topic was made anew without this partition; the queue then has what Kafka has not."""
        backoff = self._backoffs[partition]
        limit = _BATCH_RECORDS
        while queue:
            records = [queue.popleft() for _ in range(min(limit, len(queue)))]
            error, taken, offset = await self._send(partition, records)
            stored = taken if error is None else 0
            queue.extendleft(record for record in reversed(records[stored:]) if self._wanted(record))
            match error:
                case None:
                    backoff.reset()
                    limit = _BATCH_RECORDS
                    for number, record in enumerate(records[:taken]):
                        self._stored(record, offset if offset < 0 else offset + number)
                case PoisonedError() if taken == 1:
                    # Nothing is gained by trying again, and what follows must not wait for it.
                    if queue and queue[0] is records[0] and (instead := self._refused(queue.popleft(), error)):
                        queue.appendleft(instead)
                case PoisonedError():
                    limit = taken // 2
                case _:
                    await self._wait(error, backoff)
                    if partition >= (self._partition_count() or partition + 1):  # unknown: it may still exist
                        return

    async def _send(self, partition: int, records: list[Record]) -> tuple[BridgeError | None, int, int]:
        """Send as many records as a batch takes, and wait for the outcome: an error, their number, the first's
        offset."""
        producer = self._producer()
        if producer is None:
            return LeaderMissingError("There is no producer yet."), 0, -1
        builder, taken = producer.create_batch(compressed=len(records) >= _COMPRESSED_FROM), 0
        now_ms = self._now_ms()
        while taken < len(records) and builder.append(taken, now_ms, *self._encode(records[taken])) is not None:
            taken += 1
        builder.close(taken)
        try:
            answer = producer.send(self._topic, partition, builder)
        except BridgeError as error:
            forget_frames(error)  # they have the producer, which may be on its way out
            return error, taken, -1
        # A producer that has been replaced never answers. Until then no other batch may go to the partition, also while
        # there is no producer to be had: this one may still deliver it.
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        while not answer.done() and self._producer() in {producer, None}:
            held_s = producer.held_until_ns(self._topic, partition) / 1e9
            if loop.time() - max(sent_s, held_s) > _PATIENCE_S:
                self._ask_for_another("no answer")
            await asyncio.wait([answer], timeout=_LOOK_S)
        if not answer.done():
            return LeaderMissingError("The producer was replaced before Kafka answered."), taken, -1
        failure = producer.failure(answer)
        return failure, taken, answer.result() if failure is None else -1

    def _ask_for_another(self, why: str) -> None:
        """Ask for another producer, but not too often: this one may still serve the routes' partitions."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._renewed_s > _RENEW_AFTER_S:
            self._renewed_s = now_s
            self._renew(f"The topic {self._topic} cannot be written: {why}")

    async def _wait(self, error: BridgeError, backoff: Backoff) -> None:
        """Report a failure, ask for another producer if this one is at its end, and pause."""
        loop = asyncio.get_running_loop()
        if isinstance(error, IncarnationError):
            self._ask_for_another(str(error))
        self._failed(error)
        if (producer := self._producer()) is not None:
            producer.watch_topic(self._topic)
        loop_ns = round(loop.time() * 1e9)
        await asyncio.sleep(backoff.next_ns(loop_ns) / 1e9)
