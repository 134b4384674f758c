"""A Kafka that is far away: slow answers, and a link that loses packets. Nothing fails; it only takes longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.brokers.kafka_cluster import ClusterAdmin, proxied_kafka
from tests.brokers.proxy import FaultyProxy, Weather
from tests.chaos.cluster_case import Case, passes
from tests.chaos.harness import FULL, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.fixtures import MakeGateway

pytestmark = pytest.mark.slow

ONE_NODE = [[1]] * 6
SECONDS = 60 if FULL else 8
SLOW = Weather(rtt_s=0.5)
# 1 % lost on a round trip of 150 ms. TCP then sends no more than segment / RTT · 1.22 / √loss (Mathis et al., 1997),
# 118 kB/s, whatever the link could carry: the proxy holds to that as it delays what was lost and all behind it.
LOSSY = Weather(rtt_s=0.15, loss=0.01, to_server_rate=118_000, to_client_rate=118_000)


@pytest.fixture(scope="module")
def proxied() -> Iterator[tuple[ClusterAdmin, FaultyProxy]]:
    with proxied_kafka() as (cluster, proxy):
        yield ClusterAdmin(cluster), proxy


@pytest.mark.parametrize(
    ("weather", "window", "rate"),
    [(SLOW, 1000, 1000), (LOSSY, 1000, 1000), (SLOW, 32, 150)],
    ids=["500 ms", "150 ms and 1 % loss", "500 ms at the window of EMQX's defaults"],
)
def test_a_distant_kafka(
    weather: Weather, window: int, rate: int, proxied: tuple[ClusterAdmin, FaultyProxy], make_gateway: MakeGateway,
    unique: str,
) -> None:  # fmt: skip
    """The load is kept up with: the windows hold what is on the way, rate times round trip, and nothing stays in the
    broker's queues. No time-out fires, so nothing is sent twice."""
    admin, proxy = proxied
    proxy.weather = Weather()
    kafka = {
        "bootstrap_servers": [f"127.0.0.1:{proxy.port}"],
        "topics": {"create": True, "partitions": 6, "replication": 1},
    }
    with Case(admin, make_gateway, unique, window=window, rate=rate, replicas=ONE_NODE, kafka=kafka) as case:
        proxy.weather = weather
        passes(SECONDS)
        assert case.gateway.ready(), case.gateway.reasons()
        wait_until(lambda: behind(case) < 4 * rate * max(weather.rtt_s, 0.5), "what is under way stays bounded", 20)
        proxy.weather = Weather()
        found = case.finish()
        assert found.taken.gap_s() < 3, str(found)
        assert case.gateway.metric("gateway_kafka_producer_incarnations_total") == 1
        assert case.gateway.metric("gateway_kafka_retries_total") == 0


def behind(case: Case) -> int:
    """Messages that the MQTT broker holds: sent and not acknowledged, or not even sent."""
    sessions = case.broker.broker.sessions.values()
    return case.broker.call(lambda: sum(len(session.flying) + len(session.queue) for session in sessions))
