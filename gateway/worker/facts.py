"""Facts of a worker beside its metrics: for ``/status``, and for the log at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from gateway.base.metrics import versions

if TYPE_CHECKING:
    from gateway.components.worker_view import WorkerView

log = structlog.get_logger("worker")


def facts(worker: WorkerView, judged: dict[str, Any], outside: dict[str, object]) -> dict[str, object]:
    """The ``/status`` document: who the worker is, what runs, what earlier lives left. Does not block.

    ``judged`` comes from its diagnosis, ``outside`` from its lookouts.
    """
    identity, settings = worker.identity, worker.settings
    brokers = judged.pop("brokers")
    return {
        "instance": settings.instance,
        "instance_id": identity.instance_id or None,
        "worker": settings.worker,
        "last_shutdown": identity.last_ending.value if identity.last_ending is not None else None,
        "versions": versions(),
        "kafka": {
            "cluster_id": worker.kafka.sender.producer.cluster_id() or identity.cluster_id,
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
            for orphan in worker.mqtt.orphans.sessions
            if not orphan.gone
        ],
        "lost_sessions": worker.lost_sessions.facts(),
        **({} if worker.commanding is None else {"commands": worker.commanding.facts()}),
        **outside,
        "routes": _routes(worker),
        **judged,
        **({} if worker.config is None else {"config": worker.config.as_dict()}),
    }


def _routes(worker: WorkerView) -> dict[str, dict[str, int]]:
    """Counts of each route's messages. The empty name counts messages without a route."""
    intervals = worker.ledger_log.intervals
    terms = ("received", "delivered", "filtered", "dead_lettered")
    rows = {route.name: dict.fromkeys(terms, 0) for route in worker.settings.routes}

    def add(route: str, term: str, count: float) -> None:
        row = rows.setdefault(route, dict.fromkeys(terms, 0))
        row[term] += int(count)

    for (route, _qos), received in worker.mqtt.received().items():
        add(route, "received", received)
    for route, count in intervals.messages(dead_letter=False).items():
        add(route, "delivered", count)
    for route, count in intervals.messages(dead_letter=True).items():
        add(route, "dead_lettered", count)
    for (route, _reason), filtered in worker.metrics.messages_filtered.read().items():
        if filtered:
            add(route, "filtered", filtered)
    return rows


def say_what_is_left(worker: WorkerView) -> None:
    """Log what a stop left: unacknowledged messages by session, unwritten ones by topic."""
    sessions, topics = worker.mqtt.unacked_by_client(), worker.kafka.waiting_by_topic()
    if sessions or topics:
        log.warning(
            "stopped_undrained",
            unacknowledged_by_session=sessions,
            unwritten_by_topic=topics,
            consequence="the broker sends unacknowledged messages again; those of QoS 0 are lost",
        )
