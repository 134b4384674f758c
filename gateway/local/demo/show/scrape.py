"""Asks HTTP ports what the demo shows: the counts in ``/metrics``, and the worker in ``/status``."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from config.settings import HttpSettings
from gateway.http.asking import ask
from gateway.local.demo.background import in_thread
from gateway.local.demo.options import ROUTE
from gateway.local.demo.show.state import GatewayCounts

if TYPE_CHECKING:
    from prometheus_client.samples import Sample


_TIMEOUT_S = 5.0


class WorkerFacts(NamedTuple):
    """A supervisor's one worker."""

    pid: int | None
    serves: bool
    """Whether it answers, and has all of its MQTT sessions."""


async def get(port: int, path: str) -> str | None:
    """What the service at a port of this machine answers; None if it does not, or not with status 200."""
    try:
        status, body = await in_thread(partial(ask, HttpSettings(port=port), path, timeout_s=_TIMEOUT_S))
    except OSError:
        return None
    return body.decode() if status == 200 else None


def read_samples(page: str) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)
    return samples


def read_counts(page: str) -> GatewayCounts:
    """The counts of the telemetry route; what the page does not have is 0."""
    samples = read_samples(page)

    def total(name: str, **labels: str) -> int:
        found = (s for s in samples.get(name, ()) if all(s.labels.get(label) == it for label, it in labels.items()))
        return int(sum(sample.value for sample in found))

    return GatewayCounts(
        received=total("gateway_mqtt_messages_received_total", route=ROUTE),
        acknowledged=total("gateway_mqtt_acks_total"),
        unacked=total("gateway_mqtt_unacked"),
        in_flight=total("gateway_ledger_in_flight"),
        redelivered=total("gateway_mqtt_redelivered_total"),
        imbalance=total("gateway_ledger_imbalance"),
        dead_letters=total("gateway_dlq_records_total"),
        spool_messages=total("gateway_spool_messages"),
        spool_bytes=total("gateway_spool_bytes"),
        restarts=total("gateway_worker_restarts_total"),
        up=all(sample.value for sample in samples.get("gateway_worker_up", ())),  # none without a supervisor
    )


def read_worker(status: str) -> WorkerFacts:
    (worker,) = json.loads(status)["workers"]
    sessions = worker.get("sessions", ())
    return WorkerFacts(worker["pid"], bool(sessions) and all(session["subscribed"] for session in sessions))
