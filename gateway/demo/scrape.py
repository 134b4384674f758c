"""Reads what the demo shows out of the gateway's ``/metrics`` page."""

from __future__ import annotations

__all__ = ["read_counts"]

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from gateway.demo.state import GatewayCounts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.samples import Sample


def read_counts(page: str, *, route: str, topic: str) -> GatewayCounts:
    """The counts of one telemetry route and its Kafka topic; what the page does not have is 0."""
    samples: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)

    def total(name: str, **labels: str) -> int:
        return int(sum(sample.value for sample in _matching(samples.get(name, ()), labels)))

    return GatewayCounts(
        received=total("gateway_mqtt_messages_received_total", route=route),
        acknowledged=total("gateway_mqtt_acks_total"),
        unacked=total("gateway_mqtt_unacked"),
        in_flight=total("gateway_ledger_in_flight"),
        records_sent=total("gateway_kafka_records_sent_total", topic=topic),
        redelivered=total("gateway_mqtt_redelivered_total"),
        imbalance=total("gateway_ledger_imbalance"),
        dead_letters=total("gateway_dlq_records_total"),
    )


def _matching(samples: Iterable[Sample], labels: dict[str, str]) -> Iterable[Sample]:
    return (s for s in samples if all(s.labels.get(name) == value for name, value in labels.items()))
