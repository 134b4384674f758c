"""The data path of a replay: routes and interceptors as they are now, an accumulator and a sender of its own.

A message takes the way it would take in ``gateway run``, each in a span of its own, so that one knows what became of
each. Only a dead letter is none here: the message is one already, so it is told what is wrong and stays where it is.
"""

from __future__ import annotations

__all__ = ["Destination", "Fate", "ReplayPath"]

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from bridge.errors import BridgeError, RetriableError, UnreachableError
from bridge.intercept.loading import load_chains
from bridge.kafka.producer import KafkaProducer
from bridge.kafka.topics import Topics
from bridge.produce.accumulator import Accumulator
from bridge.produce.batch import Span
from bridge.produce.dead_letter import DeadLetters
from bridge.produce.dispatch import Dispatcher, TopicNameError
from bridge.produce.sender import Sender, SenderPolicy
from bridge.routing.router import Router

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bridge.dead_letters.reading import DeadLetter, Place
    from bridge.dead_letters.replay_marks import Mark
    from bridge.kafka.login import KafkaLogin
    from bridge.message import Properties
    from bridge.ports import BatchBuilder, StoredRecord
    from bridge.produce.accumulator import Slot
    from bridge.produce.batch import Batch
    from bridge.wire import DeadLetterReason
    from config.settings import Settings

LOOK_S = 0.2


class Destination(NamedTuple):
    """Where a record of a message goes, or would go. ``partition`` None: any, or not known before the topic is made."""

    topic: str
    partition: int | None
    key: bytes | None


@dataclass(slots=True)
class Fate:
    """What becomes of one message. ``refused`` and ``filtered`` say why not; ``destinations`` are what it became."""

    span: Span
    destinations: list[Destination] = field(default_factory=list)
    written: bool = False  # Kafka has one record of it, or more
    refused: str | None = None
    filtered: str | None = None


class _Refusals(DeadLetters):
    """Stands where dead letters are made: notes what would have become one."""

    def __init__(self, path: ReplayPath, settings: Settings) -> None:
        super().__init__(
            path.accumulator,
            settings.dead_letter.topic,
            instance=settings.instance,
            partition_count=path.partition_count,
            max_record_bytes=settings.kafka.max_record_bytes,
        )
        self._path = path

    def take(self, batch: Batch, record: StoredRecord, reason: DeadLetterReason, error: BaseException) -> None:
        del record
        for span, count in batch.parts:
            span.filtered += count
            self._path.refuse(span, reason, error)

    def bury(self, route: str, qos: int, *message: Any, span: Span | None = None, **details: Any) -> Slot:
        accumulator = self._path.accumulator
        # Route, QoS, time, key, value, headers, reason, error, Kafka topic, span: as the dispatcher says them.
        reason, error = details.get("reason") or message[4], details.get("error") or message[5]
        span = span or (message[7] if len(message) > 7 else None) or accumulator.current
        span.filtered += details.get("whole", True)  # a message of several records is counted with one of them
        self._path.refuse(span, reason, error)
        return accumulator.slot(route, qos, self.topic, 0, dead_letter=True)


class ReplayPath:
    """``async with`` connects it. ``dry``: nothing is written and no topic made. Belongs to the event loop's thread."""

    def __init__(self, settings: Settings, *, dry: bool, login: KafkaLogin) -> None:
        self._settings = settings
        self._login = login
        self._dry = dry
        self._client_id = f"{settings.instance}-dlq"
        # Session groups say which sessions fetch a message; here it is fetched already.
        routes = [route.model_copy(update={"group": ""}) for route in settings.routes]
        self.router = Router(routes, instance=settings.instance, reserved_topics=settings.dead_letter_topics)
        self._topics = Topics(settings.kafka, self._client_id, login)
        self.accumulator = Accumulator(self._create_batch, lambda _span: None)
        self._fates: dict[Span, Fate] = {}
        self._failure: BaseException | None = None
        self._moved = asyncio.Event()
        self.unknown: set[str] = set()  # topics that a dry run has met and Kafka does not have
        self._properties: Properties | None = None
        seconds = settings.kafka.delivery_timeout.total_seconds()
        self._patience_s = seconds
        request_ns = round(settings.kafka.request_timeout.total_seconds() * 1e9)
        self._sender = Sender(
            self.accumulator.partitions, self._make_producer,
            SenderPolicy(delivery_timeout_ns=round(seconds * 1e9), settle_ns=2 * request_ns),
            self, time.monotonic_ns, self._fail,
        )  # fmt: skip
        self._chains = load_chains(settings)
        self.dispatcher = Dispatcher(
            self.router, self.accumulator, self, _Refusals(self, settings),
            parse_properties=self._parse, filtered=self._filtered,
            max_record_bytes=settings.kafka.max_record_bytes, cache_entries=1, property_entries=1000,
            pump=self._pump, failed=self._fail, chains=self._chains,
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        try:
            await self._sender.start()
            topics = self.router.kafka_topics.union(self._settings.dead_letter_topics)
            if self._dry:
                await self.look_for(topics)
            else:
                await self._topics.ensure(self._producer, topics)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._close()

    async def _close(self) -> None:
        await self.dispatcher.close()
        await self._sender.close(patience_s=1.0)
        self._chains.close()

    # --- what the parts ask for

    @property
    def _producer(self) -> KafkaProducer:
        producer = self._sender.producer
        assert isinstance(producer, KafkaProducer)
        return producer

    def _make_producer(self) -> KafkaProducer:
        topics = self.router.kafka_topics.union(self._settings.dead_letter_topics)
        return KafkaProducer(self._settings.kafka, self._client_id, topics, login=self._login)

    def _create_batch(self, compressed: bool) -> BatchBuilder:
        return self._sender.create_batch(compressed)

    def _pump(self) -> None:
        if not self._dry:
            self._sender.pump()

    def _parse(self, _raw: bytes) -> Properties:
        assert self._properties is not None
        return self._properties

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._moved.set()

    def _filtered(self, _route: str, reason: str) -> None:
        self._fate(self.accumulator.current).filtered = reason

    def partition_count(self, topic: str) -> int | None:
        """Partitions by the last metadata; a dry run takes an unknown topic for one that will be there."""
        count = self._producer.partition_count(topic)
        if count is None and self._dry:
            self.unknown.add(topic)
            return 1
        return count

    async def locate(self, topic: str) -> int:
        await self._topics.ensure(self._producer, [topic])
        count = self._producer.partition_count(topic)
        if count is None:
            raise RetriableError(f"Kafka lists no partitions of topic {topic} yet.")
        return count

    async def look_for(self, topics: Iterable[str]) -> None:
        """Ask Kafka for topics without making any."""
        for topic in topics:
            self._producer.watch_topic(topic)
        if not await self._producer.refresh_metadata():
            raise UnreachableError("Kafka gave no metadata; are all brokers down?")

    # --- bridge.produce.sender.SenderObserver

    def batch_stored(self, batch: Batch, partition: int, offset: int, now_ns: int) -> None:
        del offset, now_ns
        for span, _ in batch.parts:
            if (fate := self._fates.get(span)) is not None:
                fate.written = True
                fate.destinations.append(Destination(batch.slot.queue.topic, partition, None))
        self._moved.set()

    def batch_failed(self, batch: Batch, partition: int, error: BridgeError) -> None:
        del batch, partition, error
        # A refused record's spans are let go of right behind this.
        asyncio.get_running_loop().call_soon(self._moved.set)

    def incarnation_started(self, number: int) -> None: ...

    # --- replaying

    def _fate(self, span: Span) -> Fate:
        fate = self._fates.get(span)
        if fate is None:
            fate = self._fates[span] = Fate(span)
        return fate

    def refuse(self, span: Span, reason: DeadLetterReason, error: BaseException) -> None:
        """Note what would have been a dead letter."""
        self._fate(span).refused = f"{reason.value}: {error}"

    def send(self, letter: DeadLetter) -> Fate:
        """Send a whole dead letter's message on its way. ``settled`` says when its fate is certain."""
        fate = self._route(letter)
        self.accumulator.flush()
        self._pump()
        return fate

    def _route(self, letter: DeadLetter) -> Fate:
        topic = letter.mqtt_topic
        assert topic is not None
        dispatcher, accumulator = self.dispatcher, self.accumulator
        accumulator.now_ns = time.monotonic_ns()
        dispatcher.received_ms = letter.first_seen_ms
        dispatcher.delivery_prefix = b"replay:%s:" % str(letter.place).encode()
        fate = self._fate(accumulator.current)
        self._properties = letter.properties()
        try:
            dispatcher.slow(letter.flags, topic.encode(), repr(self._properties).encode(), letter.value or b"")
        except TopicNameError as error:
            accumulator.current.filtered += 1
            fate.refused = str(error)
        return fate

    def preview(self, letter: DeadLetter) -> Fate:
        """What a message would become; only of a dry path."""
        fate = self._route(letter)
        accumulator = self.accumulator
        for slot in accumulator.slots:
            if slot.batch is not None:
                slot.seal()
        for queue in accumulator.partitions.queues.values():
            for batch in queue.sealed:
                anywhere = batch.slot.choose is not None or queue.topic in self.unknown
                partition = None if anywhere else queue.partition
                records = self._producer.records(batch.builder)
                fate.destinations += (Destination(queue.topic, partition, record.key) for record in records)
            queue.sealed.clear()
        accumulator.touched.clear()
        accumulator.partitions.due.clear()
        accumulator.current = Span()
        self._fates.clear()
        return fate

    def mark(self, marks: Iterable[tuple[Place, Mark]]) -> Span:
        """Write marks beside their dead letters; the span is settled when Kafka has them all."""
        span = self.accumulator.current
        now_ms = time.time_ns() // 1_000_000
        for place, mark in marks:
            slot = self.accumulator.slot("", 0, place.topic, place.partition, dead_letter=True)
            self.accumulator.append(slot, timestamp=now_ms, key=mark.key, value=None, headers=mark.headers())
        self.accumulator.flush()
        self._pump()
        return span

    async def settled(self, spans: Iterable[Span]) -> None:
        """Wait until nothing of these is on its way any more.

        Raises UnreachableError when Kafka has taken nothing for ``kafka.delivery_timeout``."""
        waiting = [span for span in spans if span.pending]
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._patience_s
        while waiting:
            self._moved.clear()
            try:
                await asyncio.wait_for(self._moved.wait(), LOOK_S)
                deadline_s = loop.time() + self._patience_s
            except TimeoutError:
                if loop.time() > deadline_s:
                    raise UnreachableError(
                        f"Kafka has acknowledged nothing for kafka.delivery_timeout ({self._patience_s:g} s). "
                        "Is it up, and may we write to the topics?"
                    ) from None
            if self._failure is not None:
                raise self._failure
            waiting = [span for span in waiting if span.pending]

    def forget(self) -> None:
        """Let go of fates that are certain."""
        self._fates = {span: fate for span, fate in self._fates.items() if span.pending}
