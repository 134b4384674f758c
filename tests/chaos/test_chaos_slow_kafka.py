"""A Kafka that is far away: slow answers, and a link that loses packets. Nothing fails; it only takes longer."""

from collections.abc import Iterator

import pytest

from tests.brokers.emqx_rest import EmqxRest
from tests.brokers.kafka_cluster import ClusterAdmin, proxied_kafka
from tests.brokers.proxy import FaultyProxy, Weather
from tests.brokers.scripted_rules import Rules
from tests.chaos.cluster_case import ClusterCase
from tests.chaos.fixtures import MakeGateway
from tests.chaos.harness import FULL, account
from tests.chaos.threaded import ThreadedBroker
from tests.waiting import passes, wait_until

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
    [(SLOW, 1000, 1000), (LOSSY, 1000, 1000), (SLOW, 32, 100)],
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
    with ClusterCase(admin, make_gateway, unique, window=window, rate=rate, replicas=ONE_NODE, kafka=kafka) as case:
        proxy.weather = weather
        passes(SECONDS)
        assert case.gateway.ready(), case.gateway.reasons()
        wait_until(lambda: behind(case) < 4 * rate * max(weather.rtt_s, 0.5), "what is under way stays bounded")
        proxy.weather = Weather()
        found = case.finish()
        assert found.taken.gap_s() < 15, str(found)
        assert case.gateway.metric("gateway_kafka_producer_incarnations_total") == 1
        assert case.gateway.metric("gateway_kafka_retries_total") == 0


def test_what_emqx_drops_meanwhile_is_counted_named_and_told(
    proxied: tuple[ClusterAdmin, FaultyProxy], make_gateway: MakeGateway, unique: str
) -> None:
    """A queue of 50 behind windows of 32, and half a second to Kafka: more comes than goes. What EMQX drops never
    reaches the gateway, whose own account balances; metric, problem, /status, log and verify have EMQX's count."""
    admin, proxy = proxied
    proxy.weather = SLOW
    with ThreadedBroker(Rules(queue=50, strategy="hash_clientid")) as broker:
        rest = EmqxRest(broker.broker)
        broker.run(rest.start())
        gateway = make_gateway(
            broker.port, f"127.0.0.1:{proxy.port}", unique,
            emqx={"url": rest.url, "api_key": "key", "api_secret": "secret", "interval": "1s", "timeout": "1s"},
            ledger={"topic": f"{unique}-ledger"},  # other tests' gateways have the same name
        )  # fmt: skip
        gateway.start()
        wait_until(lambda: gateway.metric("gateway_emqx_up") == 1, "EMQX is looked at")
        assert gateway.status()["emqx"]["dropped"] == 0
        assert set(gateway.samples("gateway_emqx_queue_limit").values()) == {50}
        broker.start_load(2000)
        wait_until(lambda: gateway.metric("gateway_emqx_dropped_total") > 500, "drops are seen")
        published = broker.stop_load()
        proxy.weather = Weather()
        wait_until(broker.drained, f"everything that EMQX kept is acknowledged; {gateway.tail()}")
        dropped = broker.dropped()
        wait_until(lambda: gateway.metric("gateway_emqx_dropped_total") == dropped, f"all {dropped} are counted")
        wait_until(gateway.settled, "nothing is in flight")
        assert gateway.imbalance() == 0
        found = account(admin.cluster.bootstrap, unique, published, deadline_s=0)
        assert len(found.missing) == dropped, f"what is missing is what EMQX dropped; {found}"
        status = gateway.status()
        assert status["emqx"]["dropped"] == dropped
        (problem,) = [problem for problem in status["problems"] if problem["id"] == "emqx-queue-dropping"]
        assert f"EMQX has dropped {dropped} messages from the full queues of 4 sessions" in problem["text"]
        assert "(gateway-0-0)" in problem["text"]
        assert len(gateway.events("emqx_dropped")) == 4, "a line for each session, not for each look"
        said = gateway.commanded("verify")
        assert f"BEFORE THE GATEWAY: EMQX has dropped {dropped} messages of 4 of our 4 sessions" in said
        assert gateway.ready(), gateway.reasons()
        broker.run(rest.stop())


def behind(case: ClusterCase) -> int:
    """Messages that the MQTT broker holds: sent and not acknowledged, or not even sent."""
    sessions = case.broker.broker.sessions.values()
    return case.broker.call(lambda: sum(len(session.flying) + len(session.queue) for session in sessions))
