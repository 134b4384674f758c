"""What a worker says of itself beside its metrics: on ``/status``, and at its end."""

from __future__ import annotations

__all__ = ["facts", "say_what_is_left"]

from typing import TYPE_CHECKING, Any

import structlog

from gateway.base.metrics import versions

if TYPE_CHECKING:
    from gateway.components.worker_view import WorkerView

log = structlog.get_logger("worker")


def facts(worker: WorkerView, judged: dict[str, Any], outside: dict[str, object]) -> dict[str, object]:
    """Who it is, what runs, and what of earlier lives it still has to do. ``judged`` is what its diagnosis says,
    ``outside`` what its lookouts do. Does not block."""
    identity, settings = worker.identity, worker.settings
    brokers = judged.pop("brokers")
    return {
        "instance": settings.instance,
        "instance_id": identity.instance_id or None,
        "worker": settings.worker,
        "last_shutdown": identity.last_ending.value if identity.last_ending is not None else None,
        "versions": versions(),
        "kafka": {
            "cluster_id": worker.sender.producer.cluster_id() or identity.cluster_id,
            "incarnation": int(worker.metrics.kafka_incarnations.child().value),
            "brokers": brokers,
        },
        "spool": worker.spooling.facts() if worker.spooling is not None else None,
        "orphan_sessions": [
            {
                "client_id": orphan.plan.client_id,
                "connected": orphan.connected,
                "unacked": orphan.unacked,
                "problem": orphan.problem,
            }
            for orphan in worker.orphans.sessions
            if not orphan.gone
        ],
        "lost_sessions": worker.lost_sessions.facts(),
        **outside,
        "routes": _routes(worker),
        **judged,
        **({} if worker.config is None else {"config": worker.config.as_dict()}),
    }


def _routes(worker: WorkerView) -> dict[str, dict[str, int]]:
    """What became of each route's messages; the empty name is where no route took them."""
    intervals = worker.ledger_log.intervals
    terms = ("received", "delivered", "filtered", "dead_lettered")
    rows = {route.name: dict.fromkeys(terms, 0) for route in worker.settings.routes}

    def add(route: str, term: str, count: float) -> None:
        row = rows.setdefault(route, dict.fromkeys(terms, 0))
        row[term] += int(count)

    for (route, _qos), count in worker.received_rows().items():
        add(route, "received", count)
    for route, count in intervals.messages(dead_letter=False).items():
        add(route, "delivered", count)
    for route, count in intervals.messages(dead_letter=True).items():
        add(route, "dead_lettered", count)
    for (route, _reason), count in worker.metrics.messages_filtered.read().items():
        if count:
            add(route, "filtered", count)
    return rows


def say_what_is_left(worker: WorkerView) -> None:
    """After a stop: what was taken and is not acknowledged by MQTT session, and not written by Kafka topic."""
    sessions = {s.plan.client_id: s.left_unacked for s in worker.all_sessions() if s.left_unacked}
    topics: dict[str, int] = {}
    for (topic, _), queue in worker.partitions.queues.items():
        if waiting := queue.messages():
            topics[topic] = topics.get(topic, 0) + waiting
    if sessions or topics:
        log.warning(
            "stopped_undrained",
            unacknowledged_by_session=sessions,
            unwritten_by_topic=topics,
            consequence="the broker delivers again what was not acknowledged; what was of QoS 0 is lost",
        )
