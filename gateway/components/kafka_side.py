"""The Kafka side of a worker: login, topics, partitions, and the sender with its producer."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from bridge.backoff import Backoff
from bridge.certificate import Validity
from bridge.errors import BridgeError, LeaderMissingError, RetriableError
from bridge.interceptors import Chains
from bridge.kafka.connection import cluster_id
from bridge.kafka.contacts import Contacts
from bridge.kafka.login import KafkaLogin
from bridge.kafka.producer import KafkaProducer
from bridge.kafka.topic_watch import TopicWatch
from bridge.kafka.topics import Topics
from bridge.produce.accumulator import Slot
from bridge.produce.partitions import PartitionQueue, Partitions
from bridge.produce.pipeline import Pipeline, PipelineHooks
from bridge.produce.sender import SenderPolicy
from bridge.routing.router import Router
from bridge.waiting import end_tasks, report_failure
from bridge.wire import DeadLetterReason
from config.settings import Settings
from gateway.base.metrics import Metrics
from gateway.base.readiness import TopicView
from gateway.components.send_counts import SendCounts
from gateway.components.spooling import Spooling
from gateway.data_dir.identity import Identity
from gateway.data_dir.ledger_log import LedgerLog
from gateway.mqtt.properties import parse_properties

log = structlog.get_logger("worker")

FIRST_ANSWER_S: Final = 3.0  # a reachable Kafka answers a start in a tenth of that


@dataclass(frozen=True, slots=True)
class Reports:
    """What the worker is told of the data path (``bridge.produce.pipeline.PipelineHooks``)."""

    failed: Callable[[BaseException], None]
    filtered: Callable[[str, str], None]
    dead_letter_made: Callable[[str, DeadLetterReason, BaseException, str | None], None]


class KafkaSide:
    """A component of the service. Also the ``bridge.produce.parking.TopicLocator`` of the worker's sessions.

    ``problem`` says why Kafka could not be reached at the start. The worker sets ``spooling`` where it has a spool,
    ``needs_kafka`` where another worker serves until this one has started, ``slots``, which returns those of all
    records, and ``released``, which is called when topics are no longer watched.
    """

    name: Final = "kafka"

    def __init__(
        self,
        settings: Settings,
        router: Router,
        login: KafkaLogin,
        counts: SendCounts,
        ledger_log: LedgerLog,
        identity: Identity,
        reports: Reports,
    ) -> None:
        self._settings = settings
        self.router = router
        self.login = login
        self.counts = counts
        self._ledger_log = ledger_log
        self._identity = identity
        self._fail = reports.failed
        self.spooling: Spooling | None = None
        self.needs_kafka = False
        self.slots: Callable[[], Iterable[Slot]] = tuple
        self.released: Callable[[], None] = lambda: None
        self.problem: str | None = None
        self._late: asyncio.Task[None] | None = None  # ensures the topics of a Kafka that did not answer the start
        self._replaced: set[str] = set()  # topics of routes that a reload is about to replace
        self._left: set[str] = set()  # topics of routes that a finished reload has replaced
        self._client_id = settings.kafka.client_id.replace("${instance}", settings.instance).replace(
            "${worker}", str(settings.worker)
        )
        self.topics = Topics(settings.kafka, self._client_id, login)
        self.topic_watch = TopicWatch(
            self.producer,
            self.topics if settings.kafka.topics.create else None,
            time.monotonic_ns,
            reports.failed,
            interval_s=settings.kafka.metadata_max_age.total_seconds(),
            pinned=self._pinned,
        )
        self.partitions = Partitions()
        self.contacts = Contacts()
        hooks = PipelineHooks(
            topics=self,
            parse_properties=parse_properties,
            filtered=reports.filtered,
            failed=reports.failed,
            observer=counts,
            dead_letter_made=reports.dead_letter_made,
        )
        policy = SenderPolicy.from_settings(settings.kafka)
        self.pipeline = Pipeline(self.partitions, self._make_producer, policy, hooks)
        self.sender = self.pipeline.sender

    # --- the producer --------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether Kafka has answered in this life of the worker."""
        return self.sender.started

    def producer(self) -> KafkaProducer:
        """The present producer: for metadata."""
        producer = self.sender.producer
        assert isinstance(producer, KafkaProducer)
        return producer

    def started_producer(self) -> KafkaProducer | None:
        """The present producer; None before Kafka has answered."""
        return self.producer() if self.started else None

    def _make_producer(self) -> KafkaProducer:
        """A producer that is not started; it knows the topics of routes, settings and queues."""
        topics = {*self.routed_topics(), *self._settings.own_topics, *(topic for topic, _ in self.partitions.queues)}
        return KafkaProducer(
            self._settings.kafka,
            self._client_id,
            topics,
            self._identity.confirm_cluster,
            self._batch_retried,
            self.login,
            self.contacts,
            self.counts.throttled,
        )

    def _batch_retried(self, topic: str, error: BridgeError) -> None:
        settling = isinstance(error, LeaderMissingError) and self.topics.is_settling(topic)
        self.counts.batch_retried(topic, error, expected=settling)

    def certificates(self) -> Iterable[Validity]:
        """Certificates of the brokers; none before Kafka has answered."""
        return self.producer().certificates() if self.started else ()

    # --- topics --------------------------------------------------------------------------------------

    def partition_count(self, topic: str) -> int | None:
        """Partitions in use by records of this worker; None while that is unknown."""
        if self.started:
            return self.topic_watch.partition_count(topic)
        count = self.topic_watch.pinned(topic)
        return self.spooling.recall(topic) if count is None and self.spooling is not None else count

    async def locate(self, topic: str) -> int:
        """Find or create a topic. Returns its partitions in use; raises RetriableError, RefusedError or
        TopicMissingError."""
        if not self.started:
            raise RetriableError(f"Kafka has not answered yet; where topic {topic} is will be seen then.")
        await self.topics.ensure(self.producer(), [topic])
        count = self.partition_count(topic)
        if count is None:
            raise RetriableError(f"Kafka lists no partitions of topic {topic} yet.")
        return count

    def _pinned(self, topic: str, count: int) -> None:
        if self.spooling is not None:
            self.spooling.remember(topic, count)

    def routed_topics(self) -> list[str]:
        """Topics that the settings name, dead letters included."""
        return sorted(self.router.kafka_topics.union(self._settings.dead_letter_topics))

    def _topics_in_use(self) -> list[str]:
        return sorted({*self.routed_topics(), *(state.name for state in self.topic_watch.states())})

    def refused_topics(self) -> tuple[str, ...]:
        """Topics in use that Kafka's rules keep this worker from seeing or writing."""
        if not self.started:
            return ()
        producer = self.producer()
        return tuple(name for name in self._topics_in_use() if producer.refuses(name))

    def metadata_age_ns(self) -> int | None:
        """Age of the metadata; None before there are any."""
        refreshed_ns = self.producer().metadata_refreshed_ns() if self.started else 0
        return time.monotonic_ns() - refreshed_ns if refreshed_ns else None

    def topic_views(self, silent_ns: Callable[[PartitionQueue, int], int]) -> tuple[TopicView, ...]:
        """What /readyz judges of each topic in use. ``silent_ns`` says how long a partition owes an answer."""
        producer = self.producer()
        now_ns, silent = time.monotonic_ns(), dict[str, list[tuple[int, int]]]()
        for queue in self.partitions.queues.values():
            if length_ns := silent_ns(queue, now_ns):
                silent.setdefault(queue.topic, []).append((queue.partition, length_ns))
        used = {state.name: state for state in self.topic_watch.states()}
        views = []
        for name in self._topics_in_use():
            count = producer.partition_count(name) or 0
            leaderless = tuple(n for n in range(count) if not producer.has_leader(name, n))
            state = used.get(name)
            problem = (state.problem if state is not None else None) or producer.trouble(name)
            partitions_used = state.used if state else None
            views.append(TopicView(name, count, leaderless, problem, partitions_used, tuple(silent.get(name, ()))))
        return tuple(views)

    # --- start and stop ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect to Kafka and ensure its topics; an unreachable Kafka is asked again and again.

        With a spool, the start returns after ``FIRST_ANSWER_S``: otherwise the MQTT broker's queue would overflow. Not
        if it ``needs_kafka``: wrong settings would replace a worker that reaches it.
        """
        backoff = Backoff(500_000_000, 10_000_000_000)
        spools = self._settings.spool.enabled and not self.needs_kafka
        while True:
            try:
                async with asyncio.timeout(FIRST_ANSWER_S if spools else None):
                    await self.sender.start()
                break
            except TimeoutError:
                sentence = f"Kafka has not answered within {FIRST_ANSWER_S:g} s; it goes on being asked."
                self._go_on_without(sentence, backoff)
                return
            except RetriableError as error:
                if spools:
                    self._go_on_without(str(error), backoff)
                    return
                await self._wait(error, backoff)
        await self._ensure_topics(backoff)

    def _go_on_without(self, sentence: str, backoff: Backoff) -> None:
        """End the start before Kafka has answered: the rest of it runs as a task."""
        log.warning("kafka_not_ready", error=sentence)
        self.problem = sentence
        self.sender.start_later()
        self._late = asyncio.create_task(self._ensure_topics(backoff))
        self._late.add_done_callback(report_failure(self._fail))

    async def _ensure_topics(self, backoff: Backoff) -> None:
        """Once Kafka has answered: create missing topics, and pin their partitions. Asks until it works."""
        await self.counts.started.wait()
        while True:
            try:
                await self.topics.ensure(self.producer(), self.routed_topics())
                await self._ledger_log.ensure(self.topics, self.producer())
            except RetriableError as error:
                await self._wait(error, backoff)
            else:
                self.topic_watch.pin(self.routed_topics())
                if self._ledger_log.topic:
                    self.topic_watch.keep(self._ledger_log.topic)
                return

    async def _wait(self, error: BridgeError, backoff: Backoff) -> None:
        delay_ns = backoff.next_ns(time.monotonic_ns())
        log.warning("kafka_not_ready", error=str(error), retry_in_s=round(delay_ns / 1e9, 1))
        self.problem = str(error)
        await asyncio.sleep(delay_ns / 1e9)

    async def wait_until_messages_can_be_taken(self) -> None:
        """Return when Kafka is there, or when the spool knows the partitions of every topic."""
        if self._late is None:  # Kafka answered during the start
            return
        assert self.spooling is not None
        if self.spooling.pin_all(self.routed_topics()):
            log.warning("kafka_away", consequence="messages go to the spool until it answers")
        else:
            log.warning("kafka_away", consequence="waiting: the number of partitions of its topics is unknown")
            await asyncio.shield(self._late)

    async def stop(self, deadline_ns: int) -> None:
        """The last record of the ledger is written before the producer closes."""
        left_s = max(0.1, (deadline_ns - time.monotonic_ns()) / 1e9)
        try:
            await end_tasks(self._late)
            await self._ledger_log.stop(deadline_ns)
        finally:  # the last record may take all the time that a forced stop has
            await self.sender.close(patience_s=min(left_s, 2.0))

    # --- reload --------------------------------------------------------------------------------------

    async def try_login(self, settings: Settings) -> None:
        """Connect once with the login of other settings. Raises BridgeError."""
        await cluster_id(settings.kafka, self._client_id, self.login.trial(settings.kafka))

    async def missing(self, topics: list[str]) -> list[str] | None:
        """The topics that Kafka does not have; None while Kafka has not answered. Raises RetriableError."""
        producer = self.started_producer()
        if producer is None:
            return None
        missing = await self.topics.missing(producer, topics)
        # A missing one would be logged every second; without one in use, its messages would wait for metadata.
        producer.forget_topics([topic for topic in topics if self.topic_watch.pinned(topic) is None])
        return missing

    async def ensure(self, topics: list[str], settings: Settings) -> bool:
        """Create the topics that Kafka does not have, by these settings. False while Kafka has not answered.

        Raises RetriableError."""
        producer = self.started_producer()
        if producer is None:
            return False
        await self.topics.ensure(producer, topics, settings.kafka)
        return True

    def seal(self) -> None:
        """Close every open batch and send what can be sent. Records of new routes go into new batches."""
        self.partitions.seal_open()
        self.sender.pump()

    def adopt(self, settings: Settings, router: Router, chains: Chains) -> None:
        """Use other settings from now on."""
        self._replaced.update(self.routed_topics())  # ``settle`` lets them go
        self._settings = settings
        self.router = router
        self.counts.chains = chains
        self.login.adopt(settings.kafka)
        self.topics.adopt(settings.kafka)

    def settle(self) -> None:
        """Pin the topics that the settings name, release the others. The end of a reload, also of one rolled back."""
        self._left |= self._replaced
        self._replaced = set()
        self.release_unused()
        if self.started:
            self.topic_watch.pin(self.routed_topics())

    def release_unused(self) -> None:
        """Forget topics that only earlier routes name, once no record waits for them.

        An operator may delete such a topic then. Called every few seconds: earlier routes may still get messages."""
        self._left.difference_update(self.routed_topics())
        if not self._left:
            return
        templates = {route.name for route in self.router.routes if route.kafka_topic is None}
        self._left.difference_update(
            slot.topic for slot in self.slots() if slot.route in templates and not slot.dead_letter
        )
        busy = {topic for (topic, _), queue in self.partitions.queues.items() if queue.has_unsent or queue.has_records}
        unused = sorted(topic for topic in self._left - busy if self.topic_watch.pinned(topic) is not None)
        if unused:
            self.topic_watch.release(unused)
            self.released()
            if (producer := self.started_producer()) is not None:
                producer.forget_topics(unused)

    def watch_metrics(self, metrics: Metrics) -> None:
        """Show partitions that wait to be used."""
        metrics.kafka_partitions_unused.watch_rows(
            lambda: {(state.name,): state.unused for state in self.topic_watch.states()}
        )

    def waiting_by_topic(self) -> Mapping[str, int]:
        """Messages that Kafka does not have, by topic."""
        topics: dict[str, int] = {}
        for (topic, _), queue in self.partitions.queues.items():
            if waiting := queue.messages():
                topics[topic] = topics.get(topic, 0) + waiting
        return topics
