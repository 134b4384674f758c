"""The data path of a replay: the present routes and interceptors, with an accumulator and a sender of its own.

A message takes the path of ``gateway run``, in a span of its own, which shows its fate. A message that would be a dead
letter again is not written: it stays where it is, and the reason is reported. A command goes back to its Kafka topic as
it was.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

from bridge.commands.plan import CommandPlan
from bridge.commands.reading import BadCommandError, read_request
from bridge.dead_letters.reading import DeadLetter, LoggedRecord, Place
from bridge.dead_letters.replay_marks import Mark
from bridge.errors import BridgeError, RefusedError, RetriableError, UnreachableError
from bridge.intercept.loading import load_chains
from bridge.kafka.login import KafkaLogin
from bridge.kafka.producer import KafkaProducer
from bridge.kafka.topics import Topics
from bridge.message import Properties
from bridge.ports import StoredRecord
from bridge.produce.accumulator import Slot
from bridge.produce.batch import Batch, Span
from bridge.produce.dead_letter import DeadLetterDraft, DeadLetters
from bridge.produce.dispatch import TopicNameError
from bridge.produce.partitioner import partition_for
from bridge.produce.partitions import Partitions
from bridge.produce.pipeline import Pipeline, PipelineHooks
from bridge.produce.sender import SenderPolicy
from bridge.routing.router import Router
from bridge.waiting import until_set
from bridge.wire import DeadLetterReason
from config.settings import Settings
from config.tables.commands import CommandSettings

LOOK_S = 0.2


class Destination(NamedTuple):
    """The place of a record. ``partition`` is None for any, or while the topic does not exist."""

    topic: str
    partition: int | None
    key: bytes | None


@dataclass(slots=True)
class Fate:
    """The fate of one message: the ``destinations`` of its records, or why it was ``refused`` or ``filtered``."""

    span: Span
    destinations: list[Destination] = field(default_factory=list)
    written: bool = False  # Kafka has one record of it, or more
    refused: str | None = None
    filtered: str | None = None


def commands_of(letter: DeadLetter, settings: Settings) -> CommandSettings | None:
    """The ``[[commands]]`` whose command this is; None for a message. A route may have the same name, but its dead
    letters have an MQTT topic, or another Kafka topic."""
    if letter.mqtt_topic is not None and any(route.name == letter.route for route in settings.routes):
        return None
    mine = (one for one in settings.commands if one.name == letter.route and letter.kafka_topic in one.topics)
    return next(mine, None)


class _Refusals(DeadLetters):
    """Notes the messages that would become dead letters, and writes none."""

    def __init__(
        self, refused: Callable[[Span, DeadLetterReason, BaseException], None], *parts: Any, **more: Any
    ) -> None:
        super().__init__(*parts, **more)
        self._refused = refused

    def take(self, batch: Batch, record: StoredRecord, reason: DeadLetterReason, error: BaseException) -> None:
        del record
        for span, count in batch.parts:
            span.filtered += count
            self._refused(span, reason, error)

    def bury(self, letter: DeadLetterDraft, span: Span | None = None, *, whole: bool = True) -> Slot:
        """Note the refusal, write nothing. The slot is for the caller, which wants one."""
        accumulator = self._accumulator
        span = span or accumulator.current
        span.filtered += whole  # a message of several records is counted with one of them
        self._refused(span, letter.reason, letter.error)
        return accumulator.slot(letter.route, letter.qos, self.topic, 0, dead_letter=True)


class ReplayPath:
    """``async with`` connects it. ``dry``: it writes nothing and makes no topic. Belongs to the event loop's thread."""

    def __init__(self, settings: Settings, *, dry: bool, login: KafkaLogin) -> None:
        self._settings = settings
        self._login = login
        self._dry = dry
        self._client_id = f"{settings.instance}-dlq"
        # Session groups only decide which sessions fetch a message.
        routes = [route.model_copy(update={"group": ""}) for route in settings.routes]
        self.router = Router(routes, instance=settings.instance, reserved_topics=settings.own_topics)
        self._topics = Topics(settings.kafka, self._client_id, login)
        self._fates: dict[Span, Fate] = {}
        self._failure: BaseException | None = None
        self._trouble: BridgeError | None = None  # of the last batch that failed
        self._moved = asyncio.Event()
        self.unknown: set[str] = set()  # topics of a dry run that Kafka does not have
        self._properties: Properties | None = None
        self._patience_s = settings.kafka.delivery_timeout.total_seconds()
        hooks = PipelineHooks(
            topics=self,
            parse_properties=self._parse,
            filtered=self._filtered,
            failed=self._fail,
            observer=self,
            dead_letters=partial(_Refusals, self.refuse),
        )
        policy = SenderPolicy.from_settings(settings.kafka)
        pipeline = Pipeline(Partitions(), self._make_producer, policy, hooks)
        self._sender = pipeline.sender
        if dry:
            pipeline.partitions.pump = lambda: None  # nothing is sent
        self._chains = load_chains(settings)
        for stage in (stage for chain in self._chains for stage in chain.stages):
            if stage.policy == "stop":  # no worker stops here: the message is refused, and stays where it is
                stage.policy = "dead_letter"
        path = pipeline.group(settings, self.router, lambda _span: None, chains=self._chains)
        self.accumulator, self.dispatcher = path.accumulator, path.dispatcher

    async def __aenter__(self) -> Self:
        try:
            await self._sender.start()
            topics = self.router.kafka_topics.union(self._settings.dead_letter_topics)
            if self._dry:
                await self.look_for(topics)
            else:
                await self._topics.ensure(self._producer, topics)
            if commanded := {topic for one in self._settings.commands for topic in one.topics}:
                await self.look_for(commanded)  # a topic of commands is not made here
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

    # --- hooks of the pipeline

    @property
    def _producer(self) -> KafkaProducer:
        producer = self._sender.producer
        assert isinstance(producer, KafkaProducer)
        return producer

    def _make_producer(self) -> KafkaProducer:
        topics = self.router.kafka_topics.union(self._settings.dead_letter_topics)
        return KafkaProducer(self._settings.kafka, self._client_id, topics, login=self._login)

    def _parse(self, _raw: bytes) -> Properties:
        assert self._properties is not None
        return self._properties

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._moved.set()

    def _filtered(self, _route: str, reason: str) -> None:
        self._fate(self.accumulator.current).filtered = reason

    def partition_count(self, topic: str) -> int | None:
        """The number of partitions by the last metadata; in a dry run 1 for an unknown topic."""
        count = self._producer.partition_count(topic)
        if count is None and self._dry:
            self.unknown.add(topic)
            return 1
        return count

    async def locate(self, topic: str) -> int:
        """The number of partitions of a missing topic, which is made if the settings say so."""
        await self._topics.ensure(self._producer, [topic])
        count = self._producer.partition_count(topic)
        if count is None:
            raise RetriableError(f"Kafka lists no partitions of topic {topic} yet.")
        return count

    async def look_for(self, topics: Iterable[str]) -> None:
        """Ask Kafka for topics without creating any."""
        for topic in topics:
            self._producer.watch_topic(topic)
        if not await self._producer.refresh_metadata():
            raise UnreachableError("Kafka gave no metadata; are all brokers down?")

    # --- bridge.produce.sender.SenderObserver

    def batch_stored(self, batch: Batch, partition: int, offset: int, now_ns: int) -> None:
        """Note the partition with the fate of each message in a batch that Kafka has."""
        del offset, now_ns
        for span in dict(batch.parts):
            if (fate := self._fates.get(span)) is not None:
                fate.written = True
                fate.destinations.append(Destination(batch.slot.topic, partition, None))
        self._moved.set()

    def batch_failed(self, batch: Batch, partition: int, error: BridgeError) -> None:
        del batch, partition
        self._trouble = error  # the sender tries the batch again, without end

    def incarnation_started(self, number: int) -> None: ...

    # --- replaying

    def _fate(self, span: Span) -> Fate:
        return self._fates.setdefault(span, Fate(span))

    def refuse(self, span: Span, reason: DeadLetterReason, error: BaseException) -> None:
        """Note a message that would be a dead letter."""
        self._fate(span).refused = f"{reason.value}: {error}"
        # The sender releases the record's spans after this call; then replay looks at them again.
        asyncio.get_running_loop().call_soon(self._moved.set)

    def send(self, letter: DeadLetter) -> Fate:
        """Send the message of a whole dead letter. After ``settled`` its fate is certain."""
        fate = self._route(letter)
        self.accumulator.flush()
        self.accumulator.partitions.pump()
        return fate

    def _route(self, letter: DeadLetter) -> Fate:
        """Append the message's records to their batches, as if it came from MQTT now; a command is put back."""
        if (commands := commands_of(letter, self._settings)) is not None:
            return self._return(letter, commands)
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

    def _return(self, letter: DeadLetter, commands: CommandSettings) -> Fate:
        """Put a command back into its topic: key, payload and headers as they were, and the present time."""
        accumulator = self.accumulator
        accumulator.now_ns = time.monotonic_ns()
        fate = self._fate(accumulator.current)
        topic, now_ms = letter.kafka_topic, time.time_ns() // 1_000_000
        assert topic is not None
        record = LoggedRecord(letter.place, now_ms, letter.key, letter.value, list(letter.headers))
        count = self._producer.partition_count(topic)
        try:
            read_request(record, CommandPlan.from_settings(commands), now_ms)
        except BadCommandError as error:
            fate.refused = f"{error.reason.value}: {error}"
        else:
            if count is None:
                fate.refused = f"Kafka has no topic {topic}"
        if count is None or fate.refused is not None:
            accumulator.current.filtered += 1
            return fate
        if letter.key is None:
            slot = accumulator.keyless_slot(commands.name, commands.qos, topic, count)
        else:
            slot = accumulator.slot(commands.name, commands.qos, topic, partition_for(letter.key, count))
        accumulator.append(slot, timestamp=now_ms, key=letter.key, value=letter.value, headers=list(letter.headers))
        return fate

    def preview(self, letter: DeadLetter) -> Fate:
        """The fate that a message would have. Only for a dry path."""
        fate = self._route(letter)
        accumulator = self.accumulator
        keyless = {slot for slot in accumulator.slots if slot.choose is not None}
        for slot in accumulator.slots:
            if slot.batch is not None:
                slot.seal()
        for queue in accumulator.partitions.queues.values():
            for batch in queue.sealed:
                anywhere = batch.slot in keyless or queue.topic in self.unknown
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
        """Write marks to the partitions of their dead letters. The span is settled when Kafka has all."""
        span = self.accumulator.current
        now_ms = time.time_ns() // 1_000_000
        for place, mark in marks:
            slot = self.accumulator.slot("", 0, place.topic, place.partition, dead_letter=True)
            self.accumulator.append(slot, timestamp=now_ms, key=mark.key, value=None, headers=mark.headers())
        self.accumulator.flush()
        self.accumulator.partitions.pump()
        return span

    async def settled(self, spans: Iterable[Span]) -> None:
        """Wait until these spans are settled. Raises UnreachableError when Kafka has taken nothing for
        ``kafka.delivery_timeout``, or RefusedError when rights are missing."""
        waiting = [span for span in spans if span.pending]
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._patience_s
        while waiting:
            self._moved.clear()
            await until_set(self._moved, LOOK_S)
            if self._moved.is_set():
                deadline_s = loop.time() + self._patience_s
                self._trouble = None
            elif loop.time() > deadline_s:
                if isinstance(self._trouble, RefusedError):
                    raise self._trouble
                raise UnreachableError(
                    f"Kafka has acknowledged nothing for kafka.delivery_timeout ({self._patience_s:g} s). "
                    "Does it run, and may the gateway write to the topics?"
                )
            if self._failure is not None:
                raise self._failure
            waiting = [span for span in waiting if span.pending]

    def forget(self) -> None:
        """Forget the fates that are certain."""
        self._fates = {span: fate for span, fate in self._fates.items() if span.pending}
