"""A worker's health, judged when somebody asks: its parts as plain values, what is wrong with them, and what /status
says. Loaded at the first question, since a worker that nobody asks needs none of it."""

from __future__ import annotations

__all__ = ["Diagnosis"]

import time
from typing import TYPE_CHECKING, Any, Final

from gateway.health import problems
from gateway.health_kafka import broker_health, broker_silence_ns, partition_health
from gateway.health_model import (
    BrokerView,
    CredentialView,
    HealthLimits,
    HealthSnapshot,
    PartitionView,
    ProcessView,
    SpoolView,
)
from gateway.machine_facts import descriptors, memory
from gateway.metrics import LATENCIES
from gateway.observation import MOST_PARTITIONS
from gateway.vitals import quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bridge.contacts import Contact
    from config.settings import Settings
    from gateway.observation import Observation
    from gateway.vitals import Window
    from gateway.worker import Worker

    Rows = dict[tuple[str, ...], float]

SCRAPE_NS: Final = 500_000_000  # a scrape asks for several metrics, and looks once


class Diagnosis:
    """Of one worker, from its observation. Belongs to the event loop's thread; none of its methods blocks."""

    def __init__(self, worker: Worker, seen: Observation) -> None:
        self._worker = worker
        self._seen = seen
        self._limits = HealthLimits.from_settings(worker.settings)
        self._shown: tuple[BrokerView, ...] = ()
        self._shown_ns = -SCRAPE_NS

    def snapshot(self) -> HealthSnapshot:
        """Everything known at this moment."""
        worker = self._worker
        now_ns, stalls = time.monotonic_ns(), self._seen.vitals.stalls
        metrics = worker.metrics
        blocked, blocked_ns = stalls.blocked(now_ns)
        used, allowed = memory()
        opened, most = descriptors()
        partitions = self._partitions(now_ns)
        last = self._seen.last[-1] if self._seen.last else None
        return HealthSnapshot(
            readiness=worker.snapshot(),
            in_state_ns=worker.service.lifecycle.in_state_ns,
            kafka_addresses=worker.settings.kafka.bootstrap_servers,
            kafka_problem=worker.kafka_problem,
            brokers=self._brokers(partitions, now_ns),
            partitions=tuple(partitions),
            refused_topics=worker.refused_topics(),
            disconnected=self._seen.disconnected.lengths(now_ns, stalls),
            saturated=self._seen.saturated.lengths(now_ns, stalls),
            leaderless=self._seen.leaderless.lengths(now_ns, stalls),
            buffer_bytes=sum(group.accumulator.buffered_bytes for group in worker.groups),
            buffer_limit_bytes=worker.settings.flow.memory_bytes,
            spool=self._spool(),
            dead_letters=round(self._seen.buried.growth().get("all", 0)),
            last_dead_letter="" if last is None else _dead_letter(last),
            imbalance=self._seen.imbalance(),
            orphans=tuple((o.plan.client_id, o.problem) for o in worker.orphans.sessions if not o.gone),
            credentials=tuple(self._credentials(metrics.credential_expiry.read(), now_ns)),
            process=ProcessView(blocked, blocked_ns, used, allowed, opened, most),
            said=tuple(problem for source in self._seen.sources for problem in source()),
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
            "latency": {"produce": _latency(self._seen.produce), "end_to_end": _latency(self._seen.end_to_end)},
            "rates": self._seen.rates.per_second(time.monotonic_ns()),
            "dead_letters": {
                "total": self._seen.dead_letters(),
                "by_reason": {
                    reason: int(count) for (reason,), count in self._worker.metrics.dlq_records.read().items() if count
                },
                "last": list(reversed(self._seen.last)),
            },
        }

    def adopt(self, settings: Settings) -> None:
        """Judge by other limits from now on."""
        self._limits = HealthLimits.from_settings(settings)

    def broker_silence(self) -> Rows:
        """For the metric: seconds without acknowledgement while records wait, by broker."""
        return {(str(broker.id),): broker.silent_ns / 1e9 for broker in self._look_at_brokers()}

    def broker_muteness(self) -> Rows:
        """For the metric: seconds for which a broker has owed any answer."""
        return {(str(b.id),): 0.0 if b.parted else b.mute_ns / 1e9 for b in self._look_at_brokers()}

    def brokers_up(self) -> Rows:
        """For the metric: 1 by broker that answers."""
        return {(str(b.id),): float(b.mute_ns < self._limits.mute_ns) for b in self._look_at_brokers()}

    def _look_at_brokers(self) -> tuple[BrokerView, ...]:
        now_ns = time.monotonic_ns()
        if now_ns - self._shown_ns > SCRAPE_NS:
            self._shown, self._shown_ns = self._brokers(self._partitions(now_ns), now_ns), now_ns
        return self._shown

    def _partitions(self, now_ns: int) -> list[PartitionView]:
        producer = self._worker.kafka_producer()
        refused = frozenset(self._worker.refused_topics())
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
                    silent_ns=self._seen.silent_ns(queue, now_ns),
                    spooling=queue.backlog is not None and queue.backlog.spooling and queue.backlog.holds,
                    held=queue.holds and (queue.not_before_ns > now_ns or queue.topic in refused),
                    trouble=producer.trouble_of(queue.topic, queue.partition),
                    waited_for=self._seen.waited_for(queue, now_ns),
                )
            )
        return views

    def _brokers(self, partitions: list[PartitionView], now_ns: int) -> tuple[BrokerView, ...]:
        led: dict[int, list[PartitionView]] = {}
        for partition in partitions:
            if partition.leader is not None:
                led.setdefault(partition.leader, []).append(partition)
        contacts = sorted(self._worker.contacts, key=lambda contact: contact.broker)
        mute = {c.broker for c in contacts if self._seen.past(c.asked_ns, now_ns) >= self._limits.mute_ns}
        return tuple(
            self._broker(
                contact, led.get(contact.broker, []), broker_silence_ns(contact.broker, partitions, mute), now_ns
            )
            for contact in contacts
        )

    def _broker(self, contact: Contact, led: list[PartitionView], silent_ns: int, now_ns: int) -> BrokerView:
        ages = [p.last_ack_age_ns for p in led if p.last_ack_age_ns is not None]
        age_ns = min(ages, default=None)
        mute_ns = self._seen.past(contact.asked_ns, now_ns)
        mine = set(_names(led))
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
            connected=self._worker.kafka_producer().connected(contact.broker),
            refuses=contact.refuses,
            accepts=contact.accepts,
            problem=contact.problem,
        )

    def _spool(self) -> SpoolView | None:
        spooling = self._worker.spooling
        if spooling is None:
            return None
        store, spooler = spooling.store, spooling.spooler
        return SpoolView(store.bytes, store.max_bytes, spooler.messages(), spooler.trouble, spooler.full)

    def _credentials(self, expiry: Mapping[tuple[str, ...], float], now_ns: int) -> Iterable[CredentialView]:
        failing = self._seen.failing.lengths(now_ns, self._seen.vitals.stalls)
        now_s = time.time()
        for side in ("mqtt", "kafka"):
            for kind in ("certificate", "token"):
                ends_s = expiry.get((f"{side}_{kind}",), 0.0)
                failing_ns = failing.get(side, 0) if kind == "token" else 0
                if ends_s or failing_ns:
                    setting = f"{side}.tls.certificate_file" if kind == "certificate" else _token_setting(side)
                    yield CredentialView(setting, kind, ends_s - now_s if ends_s else None, failing_ns)


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


def _dead_letter(last: dict[str, object]) -> str:
    """What became of the last one; a template that made no name has no topic that it was meant for."""
    meant = f", for {last['topic']}" if last["topic"] else ""
    return f"{last['reason']}{meant}: {last['text']}"
