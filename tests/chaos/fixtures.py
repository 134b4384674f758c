"""A factory of gateway processes, for failure tests and whoever needs a whole gateway.

A test module or a conftest imports it by name; it builds on ``tests.brokers.fixtures``.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from tests.brokers.proxy import Weather
from tests.brokers.scripted_rules import Rules

__all__ = ["MakeCase", "MakeGateway", "make_case", "make_gateway"]

import contextlib
from typing import Any, Protocol

import pytest

from tests.brokers.proxy import FaultyProxy
from tests.chaos.case import Case, in_order
from tests.chaos.harness import Gateway
from tests.chaos.threaded import ThreadedBroker


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


class MakeCase(Protocol):
    """A scripted broker with these rules, and a gateway at it; ``tables`` are settings beside the usual ones.

    ``rate``: load that starts at once; ``bootstrap``: of another Kafka than the shared one; ``weather``: of a link
    between broker and gateway, ``Case.proxy``.
    """

    def __call__(
        self, rules: Rules | None = None, *, rate: int = 0, start: bool = True, bootstrap: str = "",
        weather: Weather | None = None, **tables: Any,
    ) -> Case: ...  # fmt: skip


@pytest.fixture
def make_case(request: pytest.FixtureRequest, make_gateway: MakeGateway, unique: str) -> Iterator[MakeCase]:
    """A factory of cases; without rules at an EMQX that keeps the order and has a large queue."""
    with contextlib.ExitStack() as stack:

        def make(
            rules: Rules | None = None, *, rate: int = 0, start: bool = True, bootstrap: str = "",
            weather: Weather | None = None, **tables: Any,
        ) -> Case:  # fmt: skip
            bootstrap = bootstrap or request.getfixturevalue("kafka").bootstrap
            broker = stack.enter_context(ThreadedBroker(rules or in_order()))
            link = None if weather is None else stack.enter_context(FaultyProxy(broker.port, weather))
            gateway = make_gateway((link or broker).port, bootstrap, unique, **tables)
            case = Case(broker, gateway, unique, bootstrap, link)
            if start:
                gateway.start()
            if rate:
                broker.start_load(rate)
            return case

        yield make
