"""A factory of gateway processes, for failure tests and whoever needs a whole gateway.

A test module or a conftest imports it by name; it builds on ``tests.brokers.fixtures``.
"""

from __future__ import annotations

__all__ = ["MakeGateway", "make_gateway"]

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.chaos.harness import Gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class MakeGateway(Protocol):
    """Make a gateway between an MQTT port and a Kafka; ``tables`` are settings beside the usual ones."""

    def __call__(self, mqtt_port: int, bootstrap: str, topic: str, **tables: Any) -> Gateway: ...


@pytest.fixture
def make_gateway(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Iterator[MakeGateway]:
    """A factory of gateways, not started; they are killed at the end. Topics are created as needed."""
    with contextlib.ExitStack() as stack:
        made = 0

        def make(mqtt_port: int, bootstrap: str, topic: str, **tables: Any) -> Gateway:
            nonlocal made
            made += 1
            settings: dict[str, Any] = {
                "mqtt": {"addresses": [f"mqtt://127.0.0.1:{mqtt_port}"]},
                "kafka": {
                    "bootstrap_servers": [bootstrap],
                    "topics": {"create": True, "partitions": 6, "replication": 1},
                },
                "dead_letter": {"topic": f"{topic}-dead"},
                "routes": [{"name": "telemetry", "filters": ["devices/#"], "topic": topic}],
            }
            for name, table in tables.items():
                settings[name] = {**settings.get(name, {}), **table} if isinstance(table, dict) else table
            (port,) = free_ports(1)
            return stack.enter_context(Gateway(tmp_path / f"gateway-{made}", port, settings))

        yield make
