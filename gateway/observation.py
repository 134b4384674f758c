"""What a worker's health is judged from, gathered from its parts, and what /status and the metrics say of it."""

from __future__ import annotations

__all__ = ["MOST_PARTITIONS", "Observation"]

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from bridge.interceptors import InterceptorError
from config.errors import GatewayError
from gateway.health import problems
from gateway.health_kafka import broker_health, partition_health
from gateway.health_model import (
    BrokerView,
    CredentialView,
    HealthLimits,
    HealthSnapshot,
    PartitionView,
    ProcessView,
    SpoolView,
)
from gateway.machine_facts import descriptors, memory, sockets
from gateway.metrics import LATENCIES
from gateway.vitals import Lasting, Rates, Vitals, Window, quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from bridge.contacts import Contact
    from bridge.partitions import PartitionQueue
    from bridge.wire import DeadLetterReason
    from config.settings import Settings
    from gateway.health_model import Problem
    from gateway.metrics import Metrics
    from gateway.worker import Worker

SECOND_NS: Final = 1_000_000_000
MOST_PARTITIONS: Final = 2000  # in /status and in the metrics; the worst come first
QUARTER_NS: Final = 900 * SECOND_NS
SUSPECT_NS: Final = 2 * SECOND_NS  # records have waited for so long: is their broker there?
LED_NS: Final = SECOND_NS
SCRAPE_NS: Final = SECOND_NS // 2
SATURATED: Final = 0.9
TEXT: Final = 300
LAST: Final = 10


class Observation:
    """Looks at a worker once a second (``vitals``), and tells what it is like. Belongs to the event loop's thread; none
    of its methods blocks."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._limits = HealthLimits.from_settings(worker.settings)
        self.vitals = Vitals(worker.fail)
        self.sources: list[Callable[[], Iterable[Problem]]] = []  # of problems that others find
        self._disconnected = Lasting()
        self._saturated = Lasting()
        self._leaderless = Lasting()
        self._failing = Lasting()  # tokens
        self._unbalanced = 0  # looks in a row with the same imbalance
        self._imbalance = 0
        self._brokers_seen: tuple[BrokerView, ...] = ()
        self._brokers_at_ns = -SCRAPE_NS
        self._last: deque[dict[str, object]] = deque(maxlen=LAST)
        metrics = worker.metrics
        self._rates = Rates(self._totals)
        self._buried = Rates(lambda: {"all": self._dead_letters()}, QUARTER_NS)
        self._produce = Window(lambda: [metrics.kafka_produce_seconds.child()])
        self._end_to_end = Window(lambda: [metrics.end_to_end_seconds.child(r.name) for r in worker.settings.routes])
        self.vitals.looks += [self._look_at_kafka, self._look_at_sessions, self._look_at_account, self._rates.look]
        self.vitals.seldom += [self._produce.look, self._end_to_end.look]
        self.vitals.minutely += [self._buried.look]

    def adopt(self, settings: Settings) -> None:
        """Judge by other limits from now on."""
        self._limits = HealthLimits.from_settings(settings)

    # --- once a second -----------------------------------------------------------------------------

    def _look_at_kafka(self, now_ns: int) -> None:
        worker = self._worker
        worker.partitions.look(now_ns)
        if not worker.sender.started:
            return
        producer = worker.kafka_producer()
        suspects: set[int] = set()
        for queue in worker.partitions.queues.values():
            since_ns = queue.unanswered_since_ns()
            if since_ns and now_ns - since_ns > SUSPECT_NS:
                leader = producer.leader(queue.topic, queue.partition)
                suspects.update(producer.replicas(queue.topic, queue.partition)[1])
                if leader is not None:
                    suspects.add(leader)
        for contact in worker.contacts:
            if contact.asked_ns and not contact.led and now_ns - contact.asked_ns > LED_NS:
                contact.led = tuple(
                    place for place in worker.partitions.queues if producer.leader(*place) == contact.broker
                )
        for contact in worker.contacts.due(suspects):
            producer.probe(contact)
        self._leaderless.look((t.name for t in worker.snapshot().topics if t.leaderless), now_ns)

    def _look_at_sessions(self, now_ns: int) -> None:
        sessions = self._worker.sessions
        self._disconnected.look((s.plan.name for s in sessions if not s.subscribed), now_ns)
        full = (s.plan.name for s in sessions if s.window and s.unacked >= SATURATED * s.window)
        self._saturated.look(full, now_ns)
        sources = self._worker.outward.sources
        self._failing.look((side for side, source in sources.items() if source.failing), now_ns)

    def _look_at_account(self, _now_ns: int) -> None:
        imbalance = self._worker.ledger.imbalance()
        self._unbalanced = self._unbalanced + 1 if imbalance and imbalance == self._imbalance else 0
        self._imbalance = imbalance

    def note_dead_letter(self, route: str, reason: DeadLetterReason, error: BaseException, topic: str | None) -> None:
        """A message became a dead letter: remember the last few, without what was in them."""
        text = str(error)
        cause = error.__cause__
        if isinstance(error, InterceptorError) and cause is not None and not isinstance(cause, GatewayError):
            # What somebody's own code raises may quote the payload.
            text = text.replace(str(cause), type(cause).__name__) if str(cause) else text
        self._last.append(
            {
                "at": _moment(time.time()),
                "reason": reason.value,
                "topic": topic,
                "route": route,
                "text": text if len(text) <= TEXT else f"{text[:TEXT]}…",
            }
        )

    # --- the judgement -----------------------------------------------------------------------------

    def snapshot(self) -> HealthSnapshot:
        """Everything known at this moment."""
        worker = self._worker
        now_ns, stalls = time.monotonic_ns(), self.vitals.stalls
        metrics = worker.metrics
        blocked, blocked_ns = stalls.blocked(now_ns)
        used, allowed = memory()
        opened, most = descriptors()
        partitions = self._partitions(now_ns)
        last = self._last[-1] if self._last else None
        return HealthSnapshot(
            readiness=worker.snapshot(),
            in_state_ns=worker.service.lifecycle.in_state_ns,
            kafka_addresses=worker.settings.kafka.bootstrap_servers,
            brokers=self._brokers(partitions, now_ns),
            partitions=tuple(partitions),
            refused_topics=worker.refused_topics(),
            disconnected=self._disconnected.lengths(now_ns, stalls),
            saturated=self._saturated.lengths(now_ns, stalls),
            leaderless=self._leaderless.lengths(now_ns, stalls),
            buffer_bytes=sum(group.accumulator.buffered_bytes for group in worker.groups),
            buffer_limit_bytes=worker.settings.flow.memory_bytes,
            spool=self._spool(),
            dead_letters=round(self._buried.growth().get("all", 0)),
            last_dead_letter="" if last is None else f"{last['reason']}, for {last['topic']}: {last['text']}",
            imbalance=self._imbalance if self._unbalanced >= 2 else 0,
            orphans=tuple((o.plan.client_id, o.problem) for o in worker.orphans.sessions if not o.gone),
            credentials=tuple(self._credentials(metrics.credential_expiry.read(), now_ns)),
            process=ProcessView(blocked, blocked_ns, used, allowed, opened, most),
            said=tuple(problem for source in self.sources for problem in source()),
        )

    def document(self) -> dict[str, Any]:
        """What /status adds: brokers, partitions, problems, latencies, rates, dead letters."""
        snapshot = self.snapshot()
        brokers = {broker.id: broker for broker in snapshot.brokers}
        rows = [(partition, partition_health(partition, brokers, self._limits)) for partition in snapshot.partitions]
        rows.sort(key=lambda row: (-row[0].silent_ns, row[1] in {"ok", "idle"}, row[0].topic, row[0].partition))
        return {
            "brokers": [_broker_row(broker, broker_health(broker, self._limits)) for broker in snapshot.brokers],
            "partitions": [_partition_row(*row) for row in rows[:MOST_PARTITIONS]],
            "partitions_total": len(rows),
            "problems": [problem.as_dict() for problem in problems(snapshot, self._limits)],
            "latency": {"produce": _latency(self._produce), "end_to_end": _latency(self._end_to_end)},
            "rates": self._rates.per_second(time.monotonic_ns()),
            "dead_letters": {
                "total": self._dead_letters(),
                "by_reason": {
                    reason: int(count) for (reason,), count in self._worker.metrics.dlq_records.read().items() if count
                },
                "last": list(reversed(self._last)),
            },
        }

    def silence_rows(self) -> dict[tuple[str, ...], float]:
        """For the metric: seconds of silence by topic and partition; of many, those that are silent first."""
        now_ns = time.monotonic_ns()
        rows = [(self._silent_ns(queue, now_ns), queue) for queue in self._worker.partitions.queues.values()]
        if len(rows) > MOST_PARTITIONS:
            rows.sort(key=lambda row: -row[0])  # stable: the others in the order they came into use
        return {(queue.topic, str(queue.partition)): silent / 1e9 for silent, queue in rows[:MOST_PARTITIONS]}

    def broker_rows(self, row: Callable[[BrokerView], float]) -> dict[tuple[str, ...], float]:
        """For the metrics: one value of each broker. A scrape asks for several, and looks once."""
        now_ns = time.monotonic_ns()
        if now_ns - self._brokers_at_ns > SCRAPE_NS:
            self._brokers_seen = self._brokers(self._partitions(now_ns), now_ns)
            self._brokers_at_ns = now_ns
        return {(str(broker.id),): row(broker) for broker in self._brokers_seen}

    def watch_metrics(self, metrics: Metrics) -> None:
        """Show what is seen here."""
        worker = self._worker
        metrics.kafka_partition_silence.watch_rows(self.silence_rows)
        mute_ns = self._limits.mute_ns
        metrics.kafka_broker_silence.watch_rows(lambda: self.broker_rows(lambda b: b.silent_ns / 1e9))
        metrics.kafka_broker_mute.watch_rows(lambda: self.broker_rows(lambda b: 0.0 if b.parted else b.mute_ns / 1e9))
        metrics.kafka_broker_up.watch_rows(lambda: self.broker_rows(lambda b: float(b.mute_ns < mute_ns)))
        metrics.kafka_partitions_leaderless.watch_rows(
            lambda: {(topic.name,): len(topic.leaderless) for topic in worker.snapshot().topics}
        )
        metrics.sockets.watch_rows(lambda: {(state,): count for state, count in sockets().items()})
        metrics.buffer_bytes.watch(lambda: sum(g.accumulator.buffered_bytes for g in worker.groups), "memory")
        metrics.buffer_records.watch(worker.partitions.messages, "memory")
        if worker.spooling is not None:
            spooling = worker.spooling
            metrics.buffer_bytes.watch(lambda: spooling.store.bytes, "disk")
            metrics.buffer_records.watch(spooling.spooler.messages, "disk")
            metrics.spool_segments.watch(lambda: spooling.store.segments)
            metrics.buffer_limit_bytes.child("disk").value = worker.settings.spool.max_bytes

    # --- views -------------------------------------------------------------------------------------

    def _silent_ns(self, queue: PartitionQueue, now_ns: int) -> int:
        return self._past(queue.unanswered_since_ns(), now_ns)

    def _past(self, since_ns: int, now_ns: int) -> int:
        """How long ago a moment was, without what we stood still ourselves; 0 for none."""
        return max(0, now_ns - since_ns - self.vitals.stalls.since(since_ns, now_ns)) if since_ns else 0

    def _partitions(self, now_ns: int) -> list[PartitionView]:
        producer = self._worker.kafka_producer()
        views = []
        for queue in self._worker.partitions.queues.values():
            replicas, in_sync = producer.replicas(queue.topic, queue.partition)
            acknowledged_ns = queue.last_acknowledged_ns
            views.append(
                PartitionView(
                    queue.topic,
                    queue.partition,
                    producer.leader(queue.topic, queue.partition),
                    replicas,
                    in_sync,
                    waiting=queue.messages() if queue.holds else 0,
                    waiting_bytes=queue.bytes() if queue.holds else 0,
                    spooled=queue.spooled(),
                    last_ack_age_ns=now_ns - acknowledged_ns if acknowledged_ns else None,
                    silent_ns=self._silent_ns(queue, now_ns),
                    spooling=queue.backlog is not None and queue.backlog.spooling and queue.backlog.holds,
                    held=queue.not_before_ns > now_ns and queue.holds,
                    trouble=producer.trouble_of(queue.topic, queue.partition),
                )
            )
        return views

    def _brokers(self, partitions: list[PartitionView], now_ns: int) -> tuple[BrokerView, ...]:
        led: dict[int, list[PartitionView]] = {}
        for partition in partitions:
            if partition.leader is not None:
                led.setdefault(partition.leader, []).append(partition)
        producer = self._worker.kafka_producer()
        return tuple(
            self._broker(contact, led.get(contact.broker, []), producer.connected(contact.broker), now_ns)
            for contact in sorted(self._worker.contacts, key=lambda contact: contact.broker)
        )

    def _broker(self, contact: Contact, led: list[PartitionView], connected: bool, now_ns: int) -> BrokerView:
        ages = [p.last_ack_age_ns for p in led if p.last_ack_age_ns is not None]
        age_ns = min(ages, default=None)
        silent_ns = max((p.silent_ns for p in led), default=0)
        mine = set(_names(led))
        return BrokerView(
            contact.broker,
            contact.host,
            contact.port,
            leads=len(led),
            waiting=sum(p.waiting + p.spooled for p in led if p.silent_ns),
            last_ack_age_ns=age_ns,
            silent_ns=silent_ns if age_ns is None else min(silent_ns, age_ns),
            mute_ns=self._past(contact.asked_ns, now_ns),
            written_age_ns=now_ns - contact.written_ns if contact.written_ns else None,
            lost=tuple(name for name in (f"{t}/{n}" for t, n in contact.led) if name not in mine),
            away_ns=now_ns - contact.left_ns if contact.left_ns else 0,
            connected=connected,
            refuses=contact.refuses,
            accepts=contact.accepts,
            problem=contact.problem,
        )

    def _spool(self) -> SpoolView | None:
        spooling = self._worker.spooling
        if spooling is None:
            return None
        store, spooler = spooling.store, spooling.spooler
        return SpoolView(store.bytes, store.max_bytes, spooler.messages(), spooler.problem, spooler.full)

    def _credentials(self, expiry: Mapping[tuple[str, ...], float], now_ns: int) -> Iterable[CredentialView]:
        failing = self._failing.lengths(now_ns, self.vitals.stalls)
        now_s = time.time()
        for side in ("mqtt", "kafka"):
            for kind in ("certificate", "token"):
                ends_s = expiry.get((f"{side}_{kind}",), 0.0)
                failing_ns = failing.get(side, 0) if kind == "token" else 0
                if ends_s or failing_ns:
                    setting = f"{side}.tls.certificate_file" if kind == "certificate" else _token_setting(side)
                    yield CredentialView(setting, kind, ends_s - now_s if ends_s else None, failing_ns)

    # --- counters ----------------------------------------------------------------------------------

    def _dead_letters(self) -> int:
        return int(sum(self._worker.metrics.dlq_records.read().values()))

    def _totals(self) -> dict[str, float]:
        worker = self._worker
        ledger = worker.ledger
        return {
            "received_per_second": ledger.received,
            "delivered_per_second": ledger.delivered,
            "filtered_per_second": ledger.filtered,
            "dead_lettered_per_second": ledger.dead_lettered,
            "received_bytes_per_second": sum(session.received_bytes for session in worker.all_sessions()),
            "sent_bytes_per_second": worker.metrics.kafka_sent_bytes.child().value,
        }


def _names(partitions: Iterable[PartitionView]) -> Iterable[str]:
    return (partition.name for partition in partitions)


def _token_setting(side: str) -> str:
    return "mqtt.token" if side == "mqtt" else "kafka.sasl.token"


def _latency(window: Window) -> dict[str, object]:
    counts = window.counts()
    return {
        "p50": _rounded(quantile(counts, LATENCIES, 0.5)),
        "p99": _rounded(quantile(counts, LATENCIES, 0.99)),
        "buckets": counts,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 5)


def _broker_row(broker: BrokerView, health: str) -> dict[str, object]:
    return {
        "id": broker.id,
        "host": broker.host,
        "port": broker.port,
        "leads": broker.leads,
        "waiting": broker.waiting,
        "connected": broker.connected,
        "last_ack_age_seconds": _age(broker.last_ack_age_ns),
        "silent_seconds": round(max(broker.silent_ns, broker.mute_ns if broker.waiting else 0) / 1e9, 3),
        "mute_seconds": round(broker.mute_ns / 1e9, 3),
        "health": health,
    }


def _partition_row(partition: PartitionView, health: str) -> dict[str, object]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "leader": partition.leader,
        "waiting": partition.waiting,
        "waiting_bytes": partition.waiting_bytes,
        "spooled": partition.spooled,
        "last_ack_age_seconds": _age(partition.last_ack_age_ns),
        "silent_seconds": round(partition.silent_ns / 1e9, 3),
        "health": health,
    }


def _age(age_ns: int | None) -> float | None:
    return None if age_ns is None else round(age_ns / 1e9, 3)


def _moment(unix_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))
