"""The judgement of a worker's health, on request: its parts as plain values, its problems, its part of /status.

The module is loaded with the first question, since an unasked worker needs none of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from gateway.base.process.machine_facts import descriptors, memory, sockets
from gateway.base.vitals import LATENCIES, latency, quantile
from gateway.health.kafka import broker_health, broker_silence_ns, partition_health
from gateway.health.model import (
    BrokerView,
    CredentialView,
    HealthLimits,
    HealthSnapshot,
    PartitionView,
    ProcessView,
    SpoolView,
)
from gateway.health.observation import MOST_PARTITIONS, Observation
from gateway.health.verdicts import problems
from gateway.supervisor.cpu import worker_count

if TYPE_CHECKING:
    from bridge.kafka.contacts import Contact
    from gateway.components.worker_view import WorkerView

    Rows = dict[tuple[str, ...], float]

FEW_WRITES: Final = 3  # in a minute; fewer say nothing about the disk
SCRAPE_NS: Final = 500_000_000  # the metrics of one scrape share a look


class Diagnosis:
    """Judges one worker from its observation. Belongs to the event loop's thread; no method blocks."""

    def __init__(self, worker: WorkerView, seen: Observation) -> None:
        self._worker = worker
        self._seen = seen
        self._shown: tuple[list[PartitionView], tuple[BrokerView, ...]] = ([], ())
        self._shown_ns = -SCRAPE_NS

    @property
    def _limits(self) -> HealthLimits:
        return HealthLimits.from_settings(self._worker.settings)

    def snapshot(self, *, for_scrape: bool = False) -> HealthSnapshot:
        """Everything known at this moment. ``for_scrape``: partitions and brokers are those of the scrape's first
        look."""
        worker = self._worker
        now_ns, stalls = time.monotonic_ns(), self._seen.vitals.stalls
        metrics = worker.metrics
        blocked, blocked_ns = stalls.blocked(now_ns)
        used, allowed = memory()
        opened, most = descriptors()
        partitions, brokers = self._look_for_scrape() if for_scrape else self._look(now_ns)
        last = self._seen.last[-1] if self._seen.last else None
        return HealthSnapshot(
            readiness=worker.snapshot(),
            in_state_ns=worker.service.lifecycle.in_state_ns,
            kafka_addresses=worker.settings.kafka.bootstrap_servers,
            kafka_problem=worker.kafka.problem,
            brokers=brokers,
            partitions=tuple(partitions),
            refused_topics=worker.kafka.refused_topics(),
            disconnected=self._seen.disconnected.lengths(now_ns, stalls),
            saturated=self._seen.saturated.lengths(now_ns, stalls),
            unanswered=self._seen.unanswered.lengths(now_ns, stalls),
            overrun={session.plan.name: session.overrun for session in worker.mqtt.sessions if session.overrun},
            leaderless=self._seen.leaderless.lengths(now_ns, stalls),
            buffer_bytes=worker.mqtt.buffered_bytes(),
            buffer_limit_bytes=worker.settings.flow.memory_bytes,
            spool=self._spool(),
            dead_letters=round(self._seen.buried.growth().get("all", 0)),
            last_dead_letter="" if last is None else _dead_letter(last),
            imbalance=self._seen.imbalance(),
            orphans=tuple((o.plan.client_id, o.problem) for o in worker.mqtt.orphans.sessions if not o.gone),
            credentials=tuple(self._credentials(metrics.credential_expiry.read(), now_ns)),
            process=ProcessView(blocked, blocked_ns, used, allowed, opened, most),
            ways=self._seen.pace.ways(now_ns),
            budget=self._seen.pace.budget(),
            cpu=self._seen.pace.cpu(),
            workers=max(1, worker_count(worker.settings)),
            ten_minutes=self._seen.counts.ten_minutes(),
            quarter=self._seen.counts.quarter(),
            failing_ns=self._seen.counts.failing_ns(now_ns, stalls),
            intervals_waiting=int(metrics.ledger_waiting.read().get((), 0)),
            half_closed=sockets()["close_wait"],
            said=tuple(problem for source in self._seen.sources for problem in source()),
        )

    def document(self) -> dict[str, Any]:
        """The part of /status with brokers, partitions, problems, latencies, rates and dead letters."""
        snapshot = self.snapshot()
        brokers = {broker.id: broker for broker in snapshot.brokers}
        rows = [(partition, partition_health(partition, brokers, self._limits)) for partition in snapshot.partitions]
        rows.sort(key=lambda row: (-row[0].silent_ns, row[1] in {"ok", "idle"}, row[0].topic, row[0].partition))
        return {
            "brokers": [_broker_row(broker, broker_health(broker, self._limits)) for broker in snapshot.brokers],
            "partitions": [_partition_row(*row) for row in rows[:MOST_PARTITIONS]],
            "partitions_total": len(rows),
            "problems": [problem.as_dict() for problem in problems(snapshot, self._limits)],
            "latency": {
                "produce": latency(self._seen.produce.counts(), LATENCIES),
                "end_to_end": latency(self._seen.end_to_end.counts(), LATENCIES),
            },
            "rates": self._seen.rates.per_second(time.monotonic_ns()),
            "dead_letters": {
                "total": self._seen.dead_letters(),
                "by_reason": {
                    reason: int(count) for (reason,), count in self._worker.metrics.dlq_records.read().items() if count
                },
                "last": list(reversed(self._seen.last)),
            },
        }

    def problem_rows(self) -> Rows:
        """For the metric: the number of problems by name and severity. An absent problem has no series."""
        rows: Rows = {}
        for problem in problems(self.snapshot(for_scrape=True), self._limits):
            labels = (problem.id, problem.severity)
            rows[labels] = rows.get(labels, 0.0) + 1.0
        return rows

    def broker_silence(self) -> Rows:
        """For the metric: seconds without acknowledgement while records wait, by broker."""
        return {(str(broker.id),): broker.silent_ns / 1e9 for broker in self._look_for_scrape()[1]}

    def broker_muteness(self) -> Rows:
        """For the metric: seconds for which a broker has owed an answer, by broker."""
        return {(str(b.id),): 0.0 if b.parted else b.mute_ns / 1e9 for b in self._look_for_scrape()[1]}

    def brokers_up(self) -> Rows:
        """For the metric: 1 for a broker that the cluster lists and that answers, by broker. One that left before this
        process began is known by its replicas alone."""
        partitions, brokers = self._look_for_scrape()
        rows: Rows = {(str(replica),): 0.0 for partition in partitions for replica in partition.replicas}
        return rows | {(str(b.id),): float(not b.away_ns and b.mute_ns < self._limits.mute_ns) for b in brokers}

    def _look_for_scrape(self) -> tuple[list[PartitionView], tuple[BrokerView, ...]]:
        now_ns = time.monotonic_ns()
        if now_ns - self._shown_ns > SCRAPE_NS:
            self._shown, self._shown_ns = self._look(now_ns), now_ns
        return self._shown

    def _look(self, now_ns: int) -> tuple[list[PartitionView], tuple[BrokerView, ...]]:
        partitions = self._partitions(now_ns)
        return partitions, self._brokers(partitions, now_ns)

    def _partitions(self, now_ns: int) -> list[PartitionView]:
        """Every partition in use."""
        producer = self._worker.kafka.producer()
        refused = frozenset(self._worker.kafka.refused_topics())
        views = []
        for queue in self._worker.kafka.partitions.queues.values():
            replicas, in_sync = producer.replicas(queue.topic, queue.partition)
            acknowledged_ns = queue.last_acknowledged_ns
            views.append(
                PartitionView(
                    queue.topic,
                    queue.partition,
                    producer.leader(queue.topic, queue.partition),
                    replicas,
                    in_sync,
                    waiting=queue.messages() if queue.has_records else 0,
                    waiting_bytes=queue.bytes() if queue.has_records else 0,
                    spooled=queue.spooled(),
                    last_ack_age_ns=now_ns - acknowledged_ns if acknowledged_ns else None,
                    silent_ns=self._seen.silent_ns(queue, now_ns),
                    led_ns=self._seen.led_ns(queue, now_ns),
                    spooling=queue.backlog is not None and queue.backlog.is_spooling and queue.backlog.has_batches,
                    held=queue.has_records
                    and (queue.not_before_ns > now_ns or queue.topic in refused or queue.clock_refused),
                    clock_refused=queue.clock_refused,
                    dead_letters_refused=queue.dead_letters_refused,
                    trouble=producer.trouble_of(queue.topic, queue.partition),
                    waited_for=self._seen.waited_for(queue, now_ns),
                )
            )
        return views

    def _brokers(self, partitions: list[PartitionView], now_ns: int) -> tuple[BrokerView, ...]:
        """Every broker of the cluster, with the silence for which it is the cause."""
        led: dict[int, list[PartitionView]] = {}
        for partition in partitions:
            if partition.leader is not None:
                led.setdefault(partition.leader, []).append(partition)
        contacts = sorted(self._worker.kafka.contacts, key=lambda contact: contact.broker)
        mute = {c.broker for c in contacts if self._seen.past(c.asked_ns, now_ns) >= self._limits.mute_ns}
        throttled = self._seen.throttled.growth()
        return tuple(
            self._broker(
                contact,
                led.get(contact.broker, []),
                broker_silence_ns(contact.broker, partitions, mute),
                round(throttled.get(str(contact.broker), 0)),
                now_ns,
            )
            for contact in contacts
        )

    def _broker(
        self, contact: Contact, led: list[PartitionView], silent_ns: int, throttled_ns: int, now_ns: int
    ) -> BrokerView:
        """A broker; ``led`` are the partitions that it leads, ``silent_ns`` and ``throttled_ns`` as in BrokerView."""
        ages = [p.last_ack_age_ns for p in led if p.last_ack_age_ns is not None]
        age_ns = min(ages, default=None)
        mute_ns = self._seen.past(contact.asked_ns, now_ns)
        mine = {partition.name for partition in led}
        return BrokerView(
            contact.broker,
            contact.host,
            contact.port,
            leads=len(led),
            waiting=sum(p.waiting + p.spooled for p in led if p.silent_ns),
            last_ack_age_ns=age_ns,
            silent_ns=silent_ns if age_ns is None else min(silent_ns, age_ns),
            mute_ns=mute_ns,
            written_age_ns=now_ns - contact.written_ns if contact.written_ns else None,
            lost=tuple(name for name in (f"{t}/{n}" for t, n in contact.led) if name not in mine),
            away_ns=now_ns - contact.left_ns if contact.left_ns else 0,
            connected=self._worker.kafka.producer().connected(contact.broker),
            refuses=contact.refuses,
            accepts=contact.accepts,
            problem=contact.problem,
            throttled_ns=throttled_ns,
        )

    def _spool(self) -> SpoolView | None:
        """The spool; None without one."""
        spooling = self._worker.spooling
        if spooling is None:
            return None
        store, spooler = spooling.store, spooling.spooler
        writes = self._seen.fsync.counts()
        fsync_s = quantile(writes, LATENCIES, 0.5) if sum(writes) >= FEW_WRITES else None
        age_s = spooling.oldest_age_s()
        return SpoolView(
            store.bytes, store.max_bytes, spooler.messages(), spooler.trouble, spooler.full, age_s, fsync_s
        )

    def _credentials(self, expiry: Mapping[tuple[str, ...], float], now_ns: int) -> Iterable[CredentialView]:
        """Own certificates and tokens, and the brokers' certificates; ``expiry``: their ends in seconds since 1970, by
        label."""
        failing = self._seen.failing.lengths(now_ns, self._seen.vitals.stalls)
        now_s = time.time()
        for side in ("mqtt", "kafka"):
            for kind in ("certificate", "token"):
                ends_s = expiry.get((f"{side}_{kind}",), 0.0)
                failing_ns = failing.get(side, 0) if kind == "token" else 0
                if ends_s or failing_ns:
                    token = "mqtt.token" if side == "mqtt" else "kafka.sasl.token"
                    setting = f"{side}.tls.certificate_file" if kind == "certificate" else token
                    yield CredentialView(setting, kind, ends_s - now_s if ends_s else None, failing_ns)
            if ends_s := expiry.get((f"{side}_server_certificate",), 0.0):
                name = "the MQTT broker" if side == "mqtt" else "a Kafka broker"
                yield CredentialView(name, "server_certificate", ends_s - now_s)


def _broker_row(broker: BrokerView, health: str) -> dict[str, object]:
    """A broker as /status shows it. It is mute while it owes an answer, and silent while records wait for it too."""
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
    """A partition as /status shows it."""
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


def _dead_letter(last: dict[str, object]) -> str:
    """The last dead letter in words. A template without a result leaves it without a topic."""
    meant = f", for {last['topic']}" if last["topic"] else ""
    return f"{last['reason']}{meant}: {last['text']}"
