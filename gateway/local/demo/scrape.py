"""Asks the gateway's HTTP port what the demo shows: whether it is ready, and its counts out of ``/metrics``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from gateway.local.demo.options import ROUTE
from gateway.local.demo.state import GatewayCounts

if TYPE_CHECKING:
    from prometheus_client.samples import Sample


_TIMEOUT_S = 5.0


class WorkerFacts(NamedTuple):
    """A supervisor's one worker."""

    pid: int | None
    serves: bool
    """Whether it answers, and has all of its MQTT sessions."""


class GatewayClient:
    """The HTTP side of a gateway on this machine. Create it on a running loop; :meth:`close` when done."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))

    async def is_ready(self) -> bool:
        """Whether it listens and says that it is ready."""
        try:
            async with self._session.get(f"{self._url}/readyz") as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def counts(self) -> GatewayCounts | None:
        """Its counts now; None if it does not answer."""
        try:
            async with self._session.get(f"{self._url}/metrics") as response:
                response.raise_for_status()
                return read_counts(await response.text())
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def worker(self) -> WorkerFacts | None:
        """What the supervisor says of its one worker; None if it does not answer."""
        try:
            async with self._session.get(f"{self._url}/status") as response:
                return read_worker(await response.json())
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def close(self) -> None:
        await self._session.close()


def read_counts(page: str) -> GatewayCounts:
    """The counts of the telemetry route; what the page does not have is 0."""
    samples: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)

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


def read_worker(status: Mapping[str, Any]) -> WorkerFacts:
    """The one worker in a supervisor's ``/status``."""
    (worker,) = status["workers"]
    sessions = worker.get("sessions", ())
    return WorkerFacts(worker["pid"], bool(sessions) and all(session["subscribed"] for session in sessions))
