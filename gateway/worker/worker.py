"""One worker: MQTT sessions, the data path and a Kafka producer on one event loop, wired together."""

from __future__ import annotations

import asyncio
import time
from functools import cached_property, partial
from typing import TYPE_CHECKING

import structlog

from bridge.dead_letters.limit import DeadLetterLimit
from bridge.dead_letters.route_stops import RouteStops
from bridge.intercept.loading import load_chains
from bridge.kafka.login import KafkaLogin
from bridge.ledger import Ledger
from bridge.ledger_topic.intervals import SessionLoss
from bridge.routing.router import Router
from bridge.spool.spool import spool_path
from bridge.waiting import report_failure
from config.errors import GatewayError
from config.values.grammar import nanoseconds
from gateway.base import logs
from gateway.base.instruments import EventLoopProbe
from gateway.base.lifecycle import Component, Lifecycle, Service, State, Step, StopRequest, StopVerb
from gateway.base.metrics import Metrics
from gateway.base.readiness import ReadinessSnapshot, SessionView
from gateway.components.kafka_side import KafkaSide, Reports
from gateway.components.mqtt_side import MqttSide
from gateway.components.outward import Outward, watch_outward
from gateway.components.send_counts import SendCounts
from gateway.components.session_group import Shared
from gateway.components.spooling import Spooling
from gateway.data_dir.directory import lost_sessions_path
from gateway.data_dir.identity import Ending, Identity
from gateway.data_dir.ledger_log import LedgerLog
from gateway.data_dir.lost_sessions import LostSession, LostSessions
from gateway.health.lookouts import Lookouts
from gateway.health.observation import Observation
from gateway.http.answers import WorkerAnswers
from gateway.http.server import HttpServer
from gateway.mqtt.login import Login
from gateway.mqtt.retry import Siblings
from gateway.worker.facts import facts

if TYPE_CHECKING:
    from bridge.interceptors import Chains
    from bridge.ports import BatchBuilder, Producer, StoredRecord
    from bridge.wire import DeadLetterReason
    from config.settings import Settings
    from gateway.base.reload_state import ConfigState
    from gateway.components.commanding import Commanding
    from gateway.health.diagnosis import Diagnosis
    from gateway.supervisor.member import Membership

log = structlog.get_logger("worker")


class Worker:
    """Everything one process needs, made from settings; ``service`` runs it. Make it inside the running event loop.

    A ``retiring`` worker starts no sessions. It drains and ends those of its slot, stops, and gives the slot up.

    Watchers see it as a ``gateway.components.worker_view.WorkerView``. Raises ConfigError for routes and files that
    cannot be used.
    """

    kafka_side = KafkaSide  # a trial has another

    def __init__(
        self, settings: Settings, stop: StopRequest, membership: Membership | None = None, *, retiring: bool = False
    ) -> None:
        self.settings = settings
        self._retiring = retiring or (membership is not None and membership.retiring)
        self._retirement: asyncio.Task[None] | None = None
        self._stop = stop
        self.metrics = Metrics(settings)
        if membership is not None:
            self.metrics.leave_reloads_to_supervisor()
        router = Router(settings.routes, instance=settings.instance, reserved_topics=settings.own_topics)
        chains = load_chains(settings)
        self.config: ConfigState | None = None  # where this process reads the settings
        self.identity = Identity(settings.data_dir, settings.instance, settings.worker, self._ending)
        self.outward = Outward(settings)
        self.observation = Observation(self, self.fail)
        self.ledger = Ledger(self._in_flight)
        self.ledger_log = LedgerLog(settings, self.ledger, self._started_producer, self._renew_producer)
        counts = SendCounts(
            self.metrics, chains, self.ledger_log.intervals, self._records, self.observation.dead_letter_stored
        )
        kafka_login = KafkaLogin(settings.kafka, self.outward.kafka, self._kafka_not_renewed)
        reports = Reports(self.fail, self._count_filtered, self._dead_letter_made)
        self.kafka = self.kafka_side(settings, router, kafka_login, counts, self.ledger_log, self.identity, reports)
        self.kafka.needs_kafka = membership is not None and membership.successor
        self.route_stops = RouteStops(DeadLetterLimit.from_settings(settings.dead_letter), time.monotonic_ns, self.fail)
        self.spooling = self._make_spooling()
        self.lost_sessions = LostSessions(
            lost_sessions_path(settings.data_dir, settings.worker),
            found=self._session_lost,
            recorded=lambda: self.identity.registry.records,
        )
        shared = Shared(
            router,
            self.kafka.pipeline,
            self.ledger,
            self.metrics,
            verb=lambda: stop.verb,
            failed=self.fail,
            registry=self.identity.registry,
            lost=self.lost_sessions,
            login=Login(settings.mqtt, self.outward.mqtt),
            siblings=Siblings(),
            chains=chains,
        )
        self.mqtt = MqttSide(settings, shared, self.route_stops, retiring=self._retiring)
        self.kafka.slots, self.kafka.released = self.mqtt.slots, self.mqtt.settle_afresh
        lifecycle = Lifecycle()
        self.lookouts = Lookouts(self, lifecycle)
        self.observation.sources += [self.lost_sessions.problems, self.lookouts.problems]
        self.commanding = self._make_commanding()
        self.observation.vitals.seldom.append(self.kafka.release_unused)
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
            intake=[*self.mqtt.intake, *self.lookouts.intake, *([self.commanding] if self.commanding else [])],
            shutdown_timeout_ns=nanoseconds(settings.shutdown_timeout),
            lifecycle=lifecycle,
        )
        self._watch_metrics()

    def _make_spooling(self) -> Spooling | None:
        """The spool; None if it is off and has no folder. One that is switched off still delivers what it holds."""
        settings = self.settings
        if not settings.spool.enabled and not spool_path(settings.data_dir, settings.worker).exists():
            return None
        kafka, verb = self.kafka, partial(_verb, self._stop)
        spooling = Spooling(
            settings, kafka.pipeline, self.ledger, verb, kafka.topic_watch.preset, self.route_stops.rests
        )
        self.route_stops.watch_returns(spooling.spooler.replay)
        kafka.spooling = spooling
        return spooling

    def _make_commanding(self) -> Commanding | None:
        """The way down to devices, or None. Its modules are loaded only where the settings have commands."""
        if not self.settings.commands or self._retiring:
            return None
        from gateway.components.commanding import Commanding

        commanding = Commanding(
            self, self._started_producer, self._renew_producer,
            is_retired=lambda: self._stop.verb is StopVerb.RETIRE,
            noted=self.observation.note_dead_letter,
        )  # fmt: skip
        self.observation.sources.append(commanding.problems)
        return commanding

    def _core(self, membership: Membership | None) -> tuple[Component, ...]:
        """Components that start before the sessions, in order. They stop after the sessions, in reverse.

        Alone: first the identity, then the port, so that /readyz says why a start takes long. With ``membership``:
        first whatever does not need the slot, since another process may still have it. So the slot is free again
        before whatever takes long to close.
        """
        probe = EventLoopProbe(self.metrics.event_loop_delay.child())
        waiting = Step("kafka or spool", self.kafka.wait_until_messages_can_be_taken)
        spool = () if self.spooling is None else (self.spooling, waiting)
        kafka = (self.observation.vitals, self.outward, self.kafka, self.mqtt, self.kafka.topic_watch)
        # The Kafka side ends the ledger: that may take as long as Kafka does, and the next worker must not wait for it.
        ledger = Step("ledger", self._begin_ledger)
        drain = Step("drain", at_stop=self.mqtt.drain)
        last = (*spool, self.lost_sessions, ledger, self.route_stops, probe, *self.lookouts.core, drain)
        if membership is not None:
            return (*kafka, membership, self.identity, *last)
        assert self.http is not None
        return (self.identity, self.http, *kafka, *last)

    async def _begin_ledger(self) -> None:
        """Begin the writing of the ledger, which needs the slot."""
        await self.ledger_log.start(spooled=self.spooling is not None and self.spooling.store.batches > 0)
        if self.ledger_log.follows_a_crash:
            self.lost_sessions.announce_again()

    async def _recover(self) -> None:
        """Take over what an earlier life left. Every MQTT session is recorded before the first one connects."""
        self.mqtt.recover(self.identity)
        if self._retiring:
            self._retirement = asyncio.create_task(self._retire(), name="retire")
            self._retirement.add_done_callback(report_failure(self.fail))

    async def _retire(self) -> None:
        """Drain the slot's leftover sessions and spool, then request RETIRE."""
        await self.mqtt.orphans.wait_ended()
        if self.spooling is not None:
            await self.spooling.spooler.drained()
        self._stop.request(StopVerb.RETIRE)

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """Judges the worker's health. Its module is loaded with the first question."""
        from gateway.health.diagnosis import Diagnosis

        return Diagnosis(self, self.observation)

    def show_config(self, config: ConfigState) -> None:
        """Show the source of this process's settings, and its problems, from now on."""
        self.config = config
        self.metrics.watch_config(config)
        self.observation.sources.append(config.problems)

    # --- reports of the parts ------------------------------------------------------------------------

    def _started_producer(self) -> Producer | None:
        return self.kafka.started_producer()

    def _renew_producer(self, reason: str) -> None:
        self.kafka.sender.renew(reason)

    def _records(self, builder: BatchBuilder) -> list[StoredRecord]:
        return self.kafka.sender.producer.records(builder)

    def _dead_letter_made(
        self, route: str, reason: DeadLetterReason, error: BaseException, topic: str | None = None
    ) -> None:
        self.observation.note_dead_letter(route, reason, error, topic)
        self.route_stops.made(route, reason, error)

    def _kafka_not_renewed(self) -> None:
        self.metrics.kafka_renewal_failures.child().value += 1

    def _session_lost(self, loss: LostSession) -> None:
        self.ledger_log.intervals.session_lost(SessionLoss(loss.session, loss.client_id, loss.left_ms, loss.at_ms))

    def _count_filtered(self, route: str, reason: str) -> None:
        self.metrics.messages_filtered.child(route, reason).value += 1

    def _watch_metrics(self) -> None:
        """Have the metrics read their values from the parts."""
        metrics = self.metrics
        metrics.watch_ledger(self.ledger)
        metrics.watch_chains(self.mqtt.chains)
        metrics.watch_routes(self.ledger_log.intervals)
        metrics.ledger_waiting.watch(lambda: self.ledger_log.waiting)
        metrics.watch_lifecycle(self.service.lifecycle)
        self.kafka.watch_metrics(metrics)
        if self.spooling is not None:
            self.spooling.watch_metrics(metrics, self.settings.spool.max_bytes)
        self.observation.watch_metrics(metrics)
        # Asked for the diagnosis at a scrape, not now.
        metrics.kafka_broker_silence.watch_rows(lambda: self.diagnosis.broker_silence())  # noqa: PLW0108
        metrics.kafka_broker_mute.watch_rows(lambda: self.diagnosis.broker_muteness())  # noqa: PLW0108
        metrics.kafka_broker_up.watch_rows(lambda: self.diagnosis.brokers_up())  # noqa: PLW0108
        metrics.problems.watch_rows(lambda: self.diagnosis.problem_rows())  # noqa: PLW0108
        self.mqtt.watch_metrics(metrics)
        metrics.mqtt_lost_sessions.watch(lambda: len(self.lost_sessions.open()))
        metrics.last_shutdown_unclean.watch(lambda: self.identity.last_ending is Ending.UNCLEAN)
        watch_outward(metrics, self.outward, self.mqtt.sessions, self.kafka.login, self.kafka.certificates)
        self._watch_routes()

    def _watch_routes(self) -> None:
        metrics = self.metrics
        for route in self.settings.routes:
            metrics.route_stopped.watch(partial(_stopped, self.route_stops, route.name), route.name)
            metrics.route_held_messages.watch(partial(self.mqtt.held, route.name), route.name)

    # --- reload (gateway.worker.reload) ------------------------------------------------------------

    @property
    def state(self) -> State:
        return self.service.lifecycle.state

    def adopt(self, settings: Settings, router: Router, chains: Chains) -> None:
        """Use other settings from the next message on, in one step of the event loop.

        They may differ in what ``config.loading.live`` calls live. Held routes stay held; the caller releases them.
        """
        self.settings = settings
        self.kafka.adopt(settings, router, chains)
        self.ledger_log.adopt(settings)
        self.route_stops.begin_anew(DeadLetterLimit.from_settings(settings.dead_letter))
        self.mqtt.adopt(settings, router, chains)
        if self.spooling is not None:
            self.spooling.adopt(settings)
            self.metrics.spool_limit_bytes.child().value = settings.spool.max_bytes
            self.metrics.buffer_limit_bytes.child("disk").value = settings.spool.max_bytes
        if self.http is not None:
            self.http.adopt(settings.http)
        self.service.allow(nanoseconds(settings.shutdown_timeout))
        self.answers.adopt(settings)
        self.observation.adopt(settings)
        self.metrics.adopt(settings)
        self.metrics.watch_chains(chains)
        self._watch_routes()
        logs.set_level(settings.log.level)

    async def finish_reload(self, before: Settings) -> None:
        """Replace the lookouts whose settings changed."""
        await self.lookouts.adopt(before)

    # --- facts ---------------------------------------------------------------------------------------

    def _in_flight(self) -> int:
        """Messages in batches, and durable ones behind older messages."""
        held = self.kafka.partitions.messages() + self.mqtt.settled()
        return held if self.spooling is None else held + self.spooling.spooler.messages()

    def snapshot(self) -> ReadinessSnapshot:
        """The facts that /readyz judges. Does not block."""
        age_ns = self.kafka.metadata_age_ns()
        return ReadinessSnapshot(
            state=self.state,
            sessions=tuple(
                SessionView(s.plan.name, s.connected, s.subscribed, s.unacked, s.problem, s.plan.client_id, s.window)
                for s in self.mqtt.sessions
            ),
            metadata_age_ns=age_ns,
            topics=() if age_ns is None else self.kafka.topic_views(self.observation.silent_ns),
            oldest_unacked_age_ns=self.mqtt.oldest_age_ns(),
            stopped_routes=tuple(self.route_stops.stopped.values()),
        )

    def progress(self) -> tuple[object, ...]:
        """A value that changes while a start or a reload step makes progress.

        It covers components, Kafka, sessions, messages and the spool. Repeated attempts to connect do not change it.
        """
        ledger = self.ledger
        return (
            self.service.begun,
            self.kafka.started,
            self.metrics.mqtt_connects.child().value,
            ledger.received,
            ledger.delivered,
            self.spooling and self.spooling.store.opening_steps,
        )

    def _ending(self) -> Ending:
        """How this life ends; the identity asks, as it stops last."""
        if self._stop.forced or self._stop.error is not None or not self.service.stops_cleanly:
            return Ending.UNCLEAN
        left = self.spooling is not None and self.spooling.may_hold_messages()
        return Ending.RETIRED if self._stop.verb is StopVerb.RETIRE and not left else Ending.CLEAN

    def fail(self, error: BaseException) -> None:
        """Stop the worker because of a failure that nothing repairs."""
        if isinstance(error, GatewayError):  # a sentence for people, and no defect of ours
            log.critical("worker_failed", error=str(error))
        else:
            log.critical("worker_failed", error=repr(error), exc_info=error)
        self._stop.fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))


def _verb(stop: StopRequest) -> StopVerb:
    return stop.verb


def _stopped(stops: RouteStops, route: str) -> int:
    return int(route in stops.stopped)
