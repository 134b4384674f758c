"""One worker: MQTT sessions, the data path and a Kafka producer on one event loop, wired together."""

from __future__ import annotations

__all__ = ["Worker"]

import asyncio
import time
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import structlog

from bridge.backoff import Backoff
from bridge.dead_letters.limit import DeadLetterLimit
from bridge.dead_letters.route_stops import RouteStops
from bridge.errors import BridgeError, LeaderMissingError, PoisonedError, RetriableError, TimestampError
from bridge.intercept.loading import load_chains
from bridge.interceptors import RecordMetadata
from bridge.kafka.contacts import Contacts
from bridge.kafka.login import KafkaLogin
from bridge.kafka.producer import KafkaProducer
from bridge.kafka.topic_watch import TopicWatch
from bridge.kafka.topics import Topics
from bridge.ledger import Ledger
from bridge.ledger_topic.intervals import SessionLoss
from bridge.produce.dead_letter import DeadLetters, stored_letters
from bridge.produce.partitions import Partitions
from bridge.produce.sender import Sender, SenderPolicy
from bridge.routing.router import Router
from bridge.spool.spool import spool_path
from config.errors import GatewayError
from gateway.base import logs
from gateway.base.group_plan import group_plans, orphan_plan
from gateway.base.instruments import EventLoopProbe
from gateway.base.lifecycle import Lifecycle, Service, StopRequest, StopVerb
from gateway.base.metrics import Metrics, send_failure_labels
from gateway.base.readiness import ReadinessSnapshot, SessionView, TopicView
from gateway.components.outward import Outward, watch_outward
from gateway.components.session_group import SessionGroup, Shared
from gateway.components.spooling import Spooling
from gateway.data_dir.directory import lost_sessions_path
from gateway.data_dir.identity import Ending, Identity
from gateway.data_dir.ledger_log import LedgerLog, LedgerSource
from gateway.data_dir.lost_sessions import LostSessions
from gateway.health.lookouts import Lookouts
from gateway.health.observation import Observation
from gateway.http.answers import WorkerAnswers
from gateway.http.server import HttpServer
from gateway.mqtt.login import Login
from gateway.mqtt.orphans import Orphans
from gateway.mqtt.renewal import Renewals
from gateway.mqtt.retry import Siblings
from gateway.worker.facts import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import timedelta

    from bridge.certificate import Validity
    from bridge.interceptors import Chains
    from bridge.produce.accumulator import Accumulator, Slot
    from bridge.produce.batch import Batch
    from bridge.wire import DeadLetterReason
    from config.settings import Settings
    from gateway.base.instruments import Cell, Histogram
    from gateway.base.lifecycle import Component
    from gateway.base.reload_state import ConfigState
    from gateway.data_dir.lost_sessions import LostSession
    from gateway.data_dir.session_registry import SessionRecord
    from gateway.health.diagnosis import Diagnosis
    from gateway.mqtt.orphans import OrphanSession
    from gateway.mqtt.session import Session
    from gateway.supervisor.member import Membership

    Meters = tuple[Cell, Cell, Cell, Histogram, Histogram, Histogram, Histogram]

log = structlog.get_logger("worker")

FIRST_ANSWER_S = 3.0  # a Kafka that lives answers a start in a tenth of that


class Worker:
    """Everything one process needs, made from settings; ``service`` runs it. Make it inside the running event loop.

    ``retiring``: it takes up no sessions of its own, but drains and ends those that exist for its slot, and then stops
    and gives the slot up.

    Raises ConfigError for routes and files that cannot be used.
    """

    def __init__(
        self, settings: Settings, stop: StopRequest, membership: Membership | None = None, *, retiring: bool = False
    ) -> None:
        self.settings = settings
        self._retiring = retiring or (membership is not None and membership.retiring)
        self._stop = stop
        self._meters: dict[Slot, Meters] = {}
        self.metrics = Metrics(settings)
        if membership is not None:
            self.metrics.leave_reloads_to_supervisor()
        self.router = Router(settings.routes, instance=settings.instance, reserved_topics=settings.own_topics)
        self.chains = load_chains(settings)
        self.kafka_client_id = settings.kafka.client_id.replace("${instance}", settings.instance).replace(
            "${worker}", str(settings.worker)
        )
        self.identity = Identity(settings.data_dir, settings.instance, settings.worker, self._ending)
        self.outward = Outward(settings)
        self.kafka_login = KafkaLogin(settings.kafka, self.outward.kafka, self._kafka_not_renewed)
        self.mqtt_login = Login(settings.mqtt, self.outward.mqtt)
        self.topics = Topics(settings.kafka, self.kafka_client_id, self.kafka_login)
        self.topic_watch = TopicWatch(
            self.kafka_producer,
            self.topics if settings.kafka.topics.create else None,
            time.monotonic_ns,
            self.fail,
            interval_s=settings.kafka.metadata_max_age.total_seconds(),
            pinned=self._pinned,
        )
        self.partitions = Partitions()
        self.contacts = Contacts()
        self.kafka_problem: str | None = None  # why it could not be reached at the start
        self.ledger = Ledger(self._in_flight)
        limit = DeadLetterLimit.from_settings(settings.dead_letter)
        self.route_stops = RouteStops(limit, time.monotonic_ns, self.fail)
        policy = SenderPolicy(
            delivery_timeout_ns=_ns(settings.kafka.delivery_timeout), settle_ns=2 * _ns(settings.kafka.request_timeout)
        )
        self.sender = Sender(self.partitions, self._make_producer, policy, self, time.monotonic_ns, self.fail)
        self._kafka_started = asyncio.Event()
        self._late: asyncio.Task[None] | None = None  # sees to the topics of a Kafka that was away at the start
        self.spooling: Spooling | None = None
        self.config: ConfigState | None = None  # where this process reads the settings
        self._buried: DeadLetters | None = None  # of what comes back from the spool
        # Switched off, it still delivers what it holds.
        if settings.spool.enabled or spool_path(settings.data_dir, settings.worker).exists():
            self.spooling = Spooling(
                settings, self.sender, self.ledger, lambda: self._stop.verb, self.fail, self.topic_watch.preset
            )
            self._bury_from(self.spooling.spooler.accumulator)
            self.route_stops.watch_returns(self.spooling.spooler.replay)
        self.lost_sessions = LostSessions(
            lost_sessions_path(settings.data_dir, settings.worker),
            found=self._session_lost,
            recorded=lambda: self.identity.registry.records,
        )
        self.ledger_log = LedgerLog(settings, LedgerSource(self.ledger, self.started_producer, self.sender.renew))
        shared = Shared(
            self.router,
            self.sender,
            self.ledger,
            self.metrics,
            topics=self,
            verb=lambda: self._stop.verb,
            failed=self.fail,
            registry=self.identity.registry,
            lost=self.lost_sessions,
            login=self.mqtt_login,
            siblings=Siblings(),
            filtered=self._count_filtered,
            chains=self.chains,
            dead_letter_made=self._dead_letter_made,
        )
        self._shared = shared
        self.groups = [SessionGroup(plan, shared, number) for number, plan in enumerate(group_plans(settings))]
        self._own_sessions = [session for group in self.groups for session in group.sessions]
        self.sessions = [] if self._retiring else self._own_sessions
        for group in self.groups:
            group.hold_to(self.route_stops)
        self.orphans = Orphans()
        self._orphan_group: SessionGroup | None = None
        self._retirement: asyncio.Task[None] | None = None
        self.observation = Observation(self, self.fail)
        lifecycle = Lifecycle()
        self.lookouts = Lookouts(self, lifecycle)
        self.observation.sources += [self.lost_sessions.problems, self.lookouts.problems]
        self.answers = WorkerAnswers(
            settings,
            metrics=self.metrics,
            lifecycle=lifecycle,
            ledger=self.ledger,
            snapshot=self.snapshot,
            facts=lambda: facts(self, self.diagnosis.document(), self.lookouts.facts()),
        )
        self.http = HttpServer(settings.http, self.answers, page=True) if membership is None else None
        self.service = Service(
            core=self._core(membership),
            recover=self._recover,
            intake=[
                *self.sessions,
                self.orphans,
                Renewals(self.mqtt_login, lambda: self.sessions, self.metrics),
                *self.lookouts.intake,
            ],
            shutdown_timeout_ns=_ns(settings.shutdown_timeout),
            lifecycle=lifecycle,
        )
        self._watch_metrics()

    def _core(self, membership: Membership | None) -> tuple[Component, ...]:
        """What is started before the sessions, in order, and stopped after them in reverse.

        Alone: the identity before anything is seen outside; then the port, so that /readyz says why a start takes
        long. Under a supervisor: whatever does not need the slot first, since another process may have it still; the
        slot is free again before what takes long to close.
        """
        probe = EventLoopProbe(self.metrics.event_loop_delay.child())
        spool = () if self.spooling is None else (self.spooling, _KafkaOrSpool(self))
        kafka = (self.observation.vitals, self.outward, _Kafka(self), self.topic_watch)
        last = (*spool, self.lost_sessions, _Ledger(self), self.route_stops, probe, *self.lookouts.core, _Rest(self))
        if membership is not None:
            return (*kafka, membership, self.identity, *last)
        assert self.http is not None
        return (self.identity, self.http, *kafka, *last)

    def _bury_from(self, accumulator: Accumulator) -> None:
        """Give an accumulator that no session group has the dead letters of its records."""
        settings = self.settings
        self._buried = DeadLetters(
            accumulator,
            settings.dead_letter.topic,
            instance=settings.instance,
            partition_count=self.partition_count,
            max_record_bytes=settings.kafka.max_record_bytes,
            routes=settings.routes,
            made=self._dead_letter_made,
            withholds=self.route_stops.rests,
        )

    async def _recover(self) -> None:
        """What an earlier life left behind. The MQTT sessions are written down before the first of them connects."""
        # Importing the HTTP library takes 0.3 s of CPU: beside the first messages, a backlog of 100,000 would pay 3 µs
        # each for it.
        if self.http is not None:
            await self.http.answering()
        records = [session.record for session in self._own_sessions]
        registry, lost = self.identity.registry, self.lost_sessions
        lost.begins(record.client_id for record in records if registry.get(record.client_id) is None)
        self.orphans.recall(self.identity, records, self.settings, self._make_orphan, retiring=self._retiring)
        lost.keeps(record.client_id for record in registry.records)
        if self._retiring:
            self._retirement = asyncio.create_task(self._retire(), name="retire")

    def _make_orphan(self, record: SessionRecord, turns: asyncio.Semaphore, ended: Callable[[], None]) -> OrphanSession:
        if self._orphan_group is None:
            self._orphan_group = SessionGroup(orphan_plan(self.settings), self._shared)
            self._orphan_group.hold_to(self.route_stops)
            self.groups.append(self._orphan_group)
        return self._orphan_group.make_orphan(record, turns, ended)

    async def _retire(self) -> None:
        """Nothing waits for this slot any more: the worker may go."""
        await self.orphans.wait_ended()
        if self.spooling is not None:
            await self.spooling.spooler.drained()
        self._stop.request(StopVerb.RETIRE)

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """Judges the worker's health. Loaded when somebody asks."""
        from gateway.health.diagnosis import Diagnosis

        return Diagnosis(self, self.observation)

    def show_config(self, config: ConfigState) -> None:
        """Tell where this process reads the settings, and what is wrong with them, from now on."""
        self.config = config
        self.observation.sources.append(config.problems)

    # --- topics (bridge.produce.parking.TopicLocator)
    # -------------------------------------------------------------------------------------

    def partition_count(self, topic: str) -> int | None:
        if not self.sender.started:
            return self.topic_watch.pinned(topic)
        return self.topic_watch.partition_count(topic)

    def _pinned(self, topic: str, count: int) -> None:
        if self.spooling is not None:
            self.spooling.remember(topic, count)

    def started_producer(self) -> KafkaProducer | None:
        return self.kafka_producer() if self.sender.started else None

    def _broker_certificates(self) -> Iterable[Validity]:
        return self.kafka_producer().certificates() if self.sender.started else ()

    def kafka_producer(self) -> KafkaProducer:
        producer = self.sender.producer
        assert isinstance(producer, KafkaProducer)
        return producer

    async def locate(self, topic: str) -> int:
        if not self.sender.started:
            raise RetriableError(f"Kafka has not answered yet; where topic {topic} is will be seen then.")
        await self.topics.ensure(self.kafka_producer(), [topic])
        count = self.partition_count(topic)
        if count is None:
            raise RetriableError(f"Kafka lists no partitions of topic {topic} yet.")
        return count

    def routed_topics(self) -> list[str]:
        return sorted(self.router.kafka_topics.union(self.settings.dead_letter_topics))

    def _make_producer(self) -> KafkaProducer:
        topics = {*self.routed_topics(), *self.settings.own_topics, *(topic for topic, _ in self.partitions.queues)}
        return KafkaProducer(
            self.settings.kafka,
            self.kafka_client_id,
            topics,
            self.identity.confirm_cluster,
            self.batch_retried,
            self.kafka_login,
            self.contacts,
            self._throttled,
        )

    async def start_kafka(self) -> None:
        """Connect to Kafka and see that the topics are there. A Kafka that cannot be reached is tried until it can;
        where there is a spool, behind our back."""
        backoff = Backoff(500_000_000, 10_000_000_000)
        while True:
            try:
                # A frozen Kafka is waited for behind our back: meanwhile the MQTT broker's queue would overflow.
                async with asyncio.timeout(FIRST_ANSWER_S if self.settings.spool.enabled else None):
                    await self.sender.start()
                break
            except TimeoutError:
                sentence = f"Kafka has not answered within {FIRST_ANSWER_S:g} s; it goes on being asked."
                self._go_on_without_kafka(sentence, backoff)
                return
            except RetriableError as error:
                if self.settings.spool.enabled:
                    self._go_on_without_kafka(str(error), backoff)
                    return
                await self._wait_for_kafka(error, backoff)
        await self._ensure_topics(backoff)

    def _go_on_without_kafka(self, sentence: str, backoff: Backoff) -> None:
        log.warning("kafka_not_ready", error=sentence)
        self.kafka_problem = sentence
        self.sender.start_later()
        self._late = asyncio.create_task(self._ensure_topics(backoff))
        self._late.add_done_callback(self._ensured)

    async def wait_for_kafka_or_spool(self) -> None:
        """Return when messages can be taken: Kafka is there, or it is known where they go once it is."""
        if self._late is None:
            return
        assert self.spooling is not None
        if self.spooling.pin_all(self.routed_topics()):
            log.warning("kafka_away", consequence="messages go to the spool until it answers")
        else:
            log.warning("kafka_away", consequence="waiting: it was never asked how many partitions its topics have")
            await asyncio.shield(self._late)

    def _ensured(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    async def _ensure_topics(self, backoff: Backoff) -> None:
        await self._kafka_started.wait()
        while True:
            try:
                await self.topics.ensure(self.kafka_producer(), self.routed_topics())
                await self.ledger_log.ensure(self.topics, self.kafka_producer())
            except RetriableError as error:
                await self._wait_for_kafka(error, backoff)
            else:
                self.topic_watch.pin(self.routed_topics())
                return

    async def close_late(self) -> None:
        """Ask no more for topics."""
        if self._late is not None:
            self._late.cancel()
            await asyncio.wait([self._late])

    async def _wait_for_kafka(self, error: BridgeError, backoff: Backoff) -> None:
        delay_ns = backoff.next_ns(time.monotonic_ns())
        log.warning("kafka_not_ready", error=str(error), retry_in_s=round(delay_ns / 1e9, 1))
        self.kafka_problem = str(error)
        await asyncio.sleep(delay_ns / 1e9)

    # --- what is counted (bridge.produce.sender.SenderObserver)
    # ----------------------------------------------------------------------------

    def batch_stored(self, batch: Batch, partition: int, offset: int, now_ns: int) -> None:
        self.ledger_log.intervals.stored(batch, partition, offset)
        slot = batch.slot
        if slot.route in self.chains.listening and not slot.dead_letter:
            self.chains.stored(slot.route, RecordMetadata(slot.queue.topic, partition, offset, batch.count))
        meters = self._meters.get(slot)
        if meters is None:
            meters = self._meters[slot] = self._make_meters(slot)
        records, last_ack, size, produce, end_to_end, batch_records, batch_bytes = meters
        count = batch.count
        records.value += count
        last_ack.value = time.time()
        size.value += batch.size
        produce.observe_many(now_ns - batch.sent_ns, count)
        end_to_end.observe_many(now_ns - batch.opened_ns, count)
        batch_records.observe_many(count, 1)
        batch_bytes.observe_many(batch.size, 1)
        if slot.dead_letter:
            self._count_dead_letters(batch)

    def _make_meters(self, slot: Slot) -> Meters:
        """The series a slot's batches count in, looked up once: a tenth of what a small batch costs."""
        metrics = self.metrics
        return (
            metrics.kafka_records_sent.child(slot.queue.topic),
            metrics.last_ack_timestamp.child(slot.queue.topic),
            metrics.kafka_sent_bytes.child(),
            metrics.kafka_produce_seconds.child(),
            metrics.end_to_end_seconds.child(slot.route),
            metrics.kafka_batch_records.child(),
            metrics.kafka_batch_bytes.child(),
        )

    def batch_failed(self, batch: Batch, partition: int, error: BridgeError) -> None:
        reason, retriable = send_failure_labels(error)
        topic = batch.slot.queue.topic
        self.metrics.kafka_send_failures.child(topic, reason, retriable).value += 1
        if isinstance(error, PoisonedError):
            # Where Kafka names no record, a larger batch is split until the record is alone.
            count = len(error.records) or int(batch.count == 1)
            if count and not batch.slot.dead_letter:
                self.chains.given_up(batch.slot.route, RecordMetadata(topic, partition, -1, count), error)
        else:
            self.metrics.kafka_retries.child().value += 1
            if isinstance(error, TimestampError) and not batch.restamped:
                self.metrics.timestamps_replaced.child("kafka").value += len(error.records) or batch.count
        log.warning(
            "batch_failed",
            topic=topic,
            partition=partition,
            records=batch.messages,
            error=str(error),
            repeat_key=(topic, reason),
        )

    def batch_retried(self, topic: str, error: BridgeError) -> None:
        """A batch is sent again by the same producer."""
        reason, retriable = send_failure_labels(error)
        self.metrics.kafka_send_failures.child(topic, reason, retriable).value += 1
        self.metrics.kafka_retries.child().value += 1
        if isinstance(error, LeaderMissingError) and self.topics.is_settling(topic):
            log.info("batch_retried", topic=topic, error=str(error), repeat_key=(topic, reason, "settling"))
        else:
            log.warning("batch_retried", topic=topic, error=str(error), repeat_key=(topic, reason))

    def incarnation_started(self, number: int) -> None:
        self._kafka_started.set()
        self.metrics.kafka_incarnations.child().value = number
        if number > 1:
            log.info("producer_replaced", incarnation=number)

    def _throttled(self, milliseconds: int) -> None:
        self.metrics.kafka_throttle_seconds.child().observe(milliseconds * 1_000_000)

    def _dead_letter_made(
        self, route: str, reason: DeadLetterReason, error: BaseException, topic: str | None = None
    ) -> None:
        self.observation.note_dead_letter(route, reason, error, topic)
        self.route_stops.made(route, reason, error)

    def _kafka_not_renewed(self) -> None:
        self.metrics.kafka_renewal_failures.child().value += 1

    def _count_dead_letters(self, batch: Batch) -> None:
        """Kafka has them. Reading them again costs what only dead letters pay, and the spool's count like the rest."""
        for route, reason in stored_letters(self.sender.producer.records(batch.builder)):
            self.metrics.dlq_records.child(reason).value += 1
            self.observation.dead_letter_stored(route, reason)

    def _session_lost(self, loss: LostSession) -> None:
        self.ledger_log.intervals.session_lost(SessionLoss(loss.session, loss.client_id, loss.left_ms, loss.at_ms))

    def _count_filtered(self, route: str, reason: str) -> None:
        self.metrics.messages_filtered.child(route, reason).value += 1

    def _watch_metrics(self) -> None:
        metrics = self.metrics
        metrics.watch_ledger(self.ledger)
        metrics.watch_chains(self.chains)
        metrics.watch_routes(self.ledger_log.intervals)
        metrics.ledger_waiting.watch(lambda: self.ledger_log.waiting)
        metrics.watch_lifecycle(self.service.lifecycle)
        metrics.kafka_partitions_unused.watch_rows(
            lambda: {(state.name,): state.unused for state in self.topic_watch.states()}
        )
        if self.spooling is not None:
            self.spooling.watch_metrics(metrics, self.settings.spool.max_bytes)
        self.observation.watch_metrics(metrics)
        # Asked for the diagnosis at a scrape, not now.
        metrics.kafka_broker_silence.watch_rows(lambda: self.diagnosis.broker_silence())  # noqa: PLW0108
        metrics.kafka_broker_mute.watch_rows(lambda: self.diagnosis.broker_muteness())  # noqa: PLW0108
        metrics.kafka_broker_up.watch_rows(lambda: self.diagnosis.brokers_up())  # noqa: PLW0108
        metrics.problems.watch_rows(lambda: self.diagnosis.problem_rows())  # noqa: PLW0108
        metrics.oldest_unacked_age.watch(lambda: (self._oldest_age_ns() or 0) / 1e9)
        metrics.mqtt_messages_received.watch_rows(self.received_rows)
        metrics.mqtt_acks.watch(lambda: sum(session.acknowledged for session in self.all_sessions()))
        metrics.mqtt_received_bytes.watch(lambda: sum(session.received_bytes for session in self.all_sessions()))
        metrics.mqtt_retained.watch(lambda: sum(session.retained for session in self.all_sessions()))
        metrics.mqtt_redelivered.watch(lambda: sum(session.redelivered for session in self.all_sessions()))
        metrics.timestamps_replaced.watch(lambda: sum(group.dispatcher.clamped for group in self.groups), "interceptor")
        metrics.mqtt_lost_sessions.watch(lambda: len(self.lost_sessions.open()))
        metrics.mqtt_orphan_sessions.watch(lambda: self.orphans.left)
        metrics.last_shutdown_unclean.watch(lambda: self.identity.last_ending is Ending.UNCLEAN)
        watch_outward(metrics, self.outward, self.sessions, self.kafka_login, self._broker_certificates)
        self._watch_routes()
        for session in self.sessions:
            metrics.mqtt_connected.watch(partial(_subscribed, session), session.plan.name)
            metrics.mqtt_unacked.watch(partial(_unacked, session), session.plan.name)

    def _watch_routes(self) -> None:
        metrics = self.metrics
        for route in self.settings.routes:
            metrics.route_stopped.watch(partial(_stopped, self.route_stops, route.name), route.name)
            metrics.route_held_messages.watch(partial(self._held, route.name), route.name)

    # --- other settings (gateway.worker.reload)
    # ----------------------------------------------------------------------------------------

    def adopt(self, settings: Settings, router: Router, chains: Chains) -> tuple[str, ...]:
        """Go on with other settings from the next message on, in one step of the event loop. They may differ in what
        ``config.loading.live`` calls live. Returns the routes that were stopped: what is held of them is the caller's
        to let
        go."""
        self.settings = settings
        self.router = router
        self.chains = chains
        self._shared = replace(self._shared, router=router, chains=chains)
        self.kafka_login.adopt(settings.kafka)
        self.mqtt_login.adopt(settings.mqtt)
        self.topics.adopt(settings.kafka)
        self.ledger_log.adopt(settings)
        stopped = self.route_stops.begin_anew(DeadLetterLimit.from_settings(settings.dead_letter))
        plans = group_plans(settings)
        for group in self.groups:
            group.adopt(orphan_plan(settings) if group is self._orphan_group else plans[group.number], self._shared)
            group.hold_to(self.route_stops)
        if self._buried is not None:
            self._buried.adopt(settings.dead_letter.topic, settings.routes)
        if self.spooling is not None:
            self.spooling.adopt(settings)
            self.metrics.spool_limit_bytes.child().value = settings.spool.max_bytes
            self.metrics.buffer_limit_bytes.child("disk").value = settings.spool.max_bytes
        if self.http is not None:
            self.http.adopt(settings.http)
        self.service.allow(_ns(settings.shutdown_timeout))
        self.answers.adopt(settings)
        self.observation.adopt(settings)
        self.metrics.adopt(settings)
        self.metrics.watch_chains(chains)
        self._watch_routes()
        logs.set_level(settings.log.level)
        return stopped

    def _held(self, route: str) -> int:
        return sum(group.dispatcher.holding.messages(route) for group in self.groups)

    def all_sessions(self) -> Iterator[Session]:
        """Those of the settings, and those of earlier ones."""
        yield from self.sessions
        yield from self.orphans.sessions

    def received_rows(self) -> dict[tuple[str, ...], float]:
        """Messages taken in by route and QoS."""
        rows = self.chains.filtered_rows()  # what a chain dropped entered no slot
        for group in self.groups:
            for slot in group.accumulator.slots:
                key = (slot.route, str(slot.qos))
                rows[key] = rows.get(key, 0) + slot.taken
        return rows

    def _oldest_age_ns(self) -> int | None:
        waiting = [oldest_ns for group in self.groups if (oldest_ns := group.accumulator.oldest_ns())]
        return time.monotonic_ns() - min(waiting) if waiting else None

    def _in_flight(self) -> int:
        """What is held, counted where it waits: in batches, or durable behind older messages."""
        held = self.partitions.messages() + sum(group.accumulator.settled() for group in self.groups)
        return held if self.spooling is None else held + self.spooling.spooler.messages()

    def snapshot(self) -> ReadinessSnapshot:
        """What /readyz decides from. Does not block."""
        producer = self.kafka_producer()
        refreshed_ns = producer.metadata_refreshed_ns() if self.sender.started else 0
        topics = []
        used = {state.name: state for state in self.topic_watch.states()}
        now_ns, silent = time.monotonic_ns(), dict[str, list[tuple[int, int]]]()
        for queue in self.partitions.queues.values():
            if silent_ns := self.observation.silent_ns(queue, now_ns):
                silent.setdefault(queue.topic, []).append((queue.partition, silent_ns))
        for name in sorted({*self.routed_topics(), *used}) if refreshed_ns else []:
            count = producer.partition_count(name) or 0
            leaderless = tuple(n for n in range(count) if not producer.has_leader(name, n))
            state = used.get(name)
            problem = state.problem if state is not None else None
            topics.append(
                TopicView(
                    name,
                    count,
                    leaderless,
                    problem or producer.trouble(name),
                    state.used if state else None,
                    tuple(silent.get(name, ())),
                )
            )
        return ReadinessSnapshot(
            state=self.service.lifecycle.state,
            sessions=tuple(
                SessionView(s.plan.name, s.connected, s.subscribed, s.unacked, s.problem, s.plan.client_id, s.window)
                for s in self.sessions
            ),
            metadata_age_ns=time.monotonic_ns() - refreshed_ns if refreshed_ns else None,
            topics=tuple(topics),
            oldest_unacked_age_ns=self._oldest_age_ns(),
            stopped_routes=tuple(self.route_stops.stopped.values()),
        )

    def progress(self) -> tuple[object, ...]:
        """Changes while a start or a step of a reload gets on: components, Kafka, sessions, messages, the spool's
        opening. What only repeats, such as an attempt to connect or a ping's answer, changes nothing."""
        ledger = self.ledger
        return (
            self.service.begun,
            self.sender.started,
            self.metrics.mqtt_connects.child().value,
            ledger.received,
            ledger.delivered,
            self.spooling and self.spooling.store.opening_steps,
        )

    def refused_topics(self) -> tuple[str, ...]:
        """Topics in use to which Kafka does not let us write, or that it does not let us see."""
        if not self.sender.started:
            return ()
        producer = self.kafka_producer()
        return tuple(name for name in self._topics_in_use() if producer.refuses(name))

    def _topics_in_use(self) -> list[str]:
        return sorted({*self.routed_topics(), *(state.name for state in self.topic_watch.states())})

    def _ending(self) -> Ending:
        """Asked by the identity, which stops last."""
        if self._stop.forced or self._stop.error is not None or not self.service.stops_cleanly:
            return Ending.UNCLEAN
        left = self.spooling is not None and self.spooling.store.batches
        return Ending.RETIRED if self._stop.verb is StopVerb.RETIRE and not left else Ending.CLEAN

    def fail(self, error: BaseException) -> None:
        if isinstance(error, GatewayError):  # a sentence for people, and no defect of ours
            log.critical("worker_failed", error=str(error))
        else:
            log.critical("worker_failed", error=repr(error), exc_info=error)
        self._stop.fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))


class _Kafka:
    """The producer, as a component of the service."""

    name = "kafka"

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def start(self) -> None:
        await self._worker.start_kafka()

    async def stop(self, deadline_ns: int) -> None:
        left_s = max(0.1, (deadline_ns - time.monotonic_ns()) / 1e9)
        for group in self._worker.groups:
            await group.close()
        await self._worker.close_late()
        await self._worker.ledger_log.stop(deadline_ns)  # nothing is sent any more, and the producer still stands
        await self._worker.sender.close(patience_s=min(left_s, 2.0))


class _KafkaOrSpool:
    """No session before messages can be taken."""

    name = "kafka or spool"

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def start(self) -> None:
        await self._worker.wait_for_kafka_or_spool()

    async def stop(self, deadline_ns: int) -> None:
        """There is nothing to let go of."""


class _Ledger:
    """The begin of the account's writing, which needs the slot. Its end is the producer's: it may take as long as Kafka
    does, and the next worker must not wait for it."""

    name = "ledger"

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def start(self) -> None:
        await self._worker.ledger_log.start()
        if self._worker.ledger_log.follows_a_crash:
            self._worker.lost_sessions.announce_again()

    async def stop(self, deadline_ns: int) -> None:
        """There is nothing to do yet."""


class _Rest:
    """What nobody waits for an acknowledgement of: messages of QoS 0, delivered before anything closes."""

    name = "rest"

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def start(self) -> None:
        """There is nothing to do."""

    async def stop(self, deadline_ns: int) -> None:
        """Until the deadline cuts it short."""
        if time.monotonic_ns() < deadline_ns:
            for group in self._worker.groups:
                await group.drained()


def _subscribed(session: Session) -> int:
    return int(session.subscribed)


def _stopped(stops: RouteStops, route: str) -> int:
    return int(route in stops.stopped)


def _unacked(session: Session) -> int:
    return session.unacked


def _ns(length: timedelta) -> int:
    return round(length.total_seconds() * 1e9)
