"""The way to the MQTT broker fails: half-open, reset, away, slow, lossy, a message at a time."""

from collections.abc import Callable

import pytest

from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers import packets
from tests.brokers.proxy import Weather
from tests.chaos.case import QUICK, ROUNDS, in_order
from tests.chaos.fixtures import MakeCase
from tests.chaos.gap import Gap
from tests.chaos.harness import FULL, account, in_full_form, payload
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

WINDOWS = 4 * 32  # what four sessions may have unacknowledged


@pytest.mark.parametrize(
    "direction", ["both", pytest.param("to_server", marks=in_full_form), pytest.param("to_client", marks=in_full_form)]
)
def test_a_half_open_connection_is_noticed_by_its_silence(direction: str, make_case: MakeCase) -> None:
    """The peer is gone without a word, as behind a firewall that forgot the connection; the broker does not know
    either, and has its old connection taken over."""
    case = make_case(rate=500, weather=Weather(), mqtt={**QUICK, "keepalive": "2s"})
    gateway, proxy = case.gateway, case.proxy
    case.flows(200)
    gaps_s = []
    with case.watch(), Gap(case.bootstrap, case.topic) as gap:
        for _ in range(ROUNDS):
            case.flows(300)
            ended = gateway.metric("gateway_mqtt_disconnects_total")
            proxy.swallow(to_server=direction != "to_client", to_client=direction != "to_server")
            proxy.swallow(False)
            wait_until(lambda n=ended: gateway.metric("gateway_mqtt_disconnects_total") >= n + 4, "all four notice")
            case.all_back()
            gaps_s.append(gap.restart())
        case.flows(300)
    assert {line["reason"] for line in gateway.events("mqtt_disconnected")} == {"keepalive"}
    assert min(gaps_s) < 8, "a keepalive of 2 s, a wait and a reconnect"
    # What was sent into the void, at most.
    case.finish(copies=32 * gateway.metric("gateway_mqtt_disconnects_total"))


def test_connections_reset_in_the_middle_of_packets(make_case: MakeCase) -> None:
    """A link that is always full of 5 kB packets: a cut falls into one. What came whole before it is used."""
    case = make_case(weather=Weather(rtt_s=0.02, to_client_rate=500_000), mqtt=QUICK)
    case.broker.start_load(600, size=5000)
    with case.watch():
        for _ in range(5 * ROUNDS):
            case.flows(100)
            case.unacknowledged += WINDOWS
            case.proxy.cut()
            case.all_back()
        case.proxy.weather.to_client_rate = None
        case.flows(200)
    assert case.gateway.metric("gateway_mqtt_redelivered_total") > 0
    case.finish()


@pytest.mark.parametrize("slow_start", [False, True], ids=["window 1", "one until the first acknowledgement"])
def test_a_window_of_one_message(slow_start: bool, make_case: MakeCase) -> None:
    """Whoever waits for a batch to fill up stands still: each message is flushed and acknowledged by itself."""
    window, receive_maximum = (32, 1000) if slow_start else (1, 1)
    rules = in_order(slow_start=slow_start, max_inflight=window)
    case = make_case(rules, mqtt={**QUICK, "receive_maximum": receive_maximum})
    with case.watch():
        case.broker.start_load(200)
        case.flows(2000 if FULL else 600)
        if slow_start:
            case.end_links()  # a new connection starts slowly again
        case.all_back()
        case.flows(200)
    case.finish(copies=4 * window)


def test_150_ms_away_with_one_percent_loss(make_case: MakeCase) -> None:
    """Window 32, four sessions, 150 ms: 850 messages a second at most. Losses delay, and nothing else happens."""
    case = make_case(rate=400, weather=Weather(rtt_s=0.15, loss=0.01))
    case.flows(200)
    with case.watch(), Gap(case.bootstrap, case.topic) as gap:
        case.flows(8000 if FULL else 1600)
    assert gap.longest_s < 15
    case.finish()
    assert not case.gateway.events("mqtt_disconnected")


@pytest.mark.parametrize("direction", ["to_server_rate", "to_client_rate"])
def test_a_slow_link(direction: str, make_case: MakeCase) -> None:
    """Acknowledgements that trickle, or messages that do, more than fit: back-pressure, no break, no growth."""
    case = make_case(weather=Weather(), mqtt={"keepalive": "2s"})
    # 100 acknowledgements of 4 bytes, or messages of some 400, per second and session; 600 per second are offered.
    setattr(case.proxy.weather, direction, 400 if direction == "to_server_rate" else 40_000)
    case.broker.start_load(600, size=300)
    ended = [1]
    with case.watch():
        while ended[-1] and len(ended) < 4:  # a broker that gets no time for two seconds is silent indeed
            before = len(case.gateway.events("mqtt_disconnected"))
            case.flows(3000 if FULL else 1000)
            ended.append(len(case.gateway.events("mqtt_disconnected")) - before)
        setattr(case.proxy.weather, direction, None)
        case.flows(500)
    case.finish(copies=32 * len(case.gateway.events("mqtt_disconnected")))
    assert not ended[-1], f"slow is not dead; {ended[1:]}"


def test_a_broker_that_gives_up_on_a_gateway_that_does_not_read(
    make_kafka: Callable[..., KafkaCluster], make_case: MakeCase
) -> None:
    """Kafka frozen, memory full, reading paused: EMQX ends a connection that takes nothing for 15 s (here 2). The
    sessions come back, wait for Kafka, and QoS 1 is complete."""
    kafka = make_kafka()
    # A mailbox that holds what comes meanwhile: at its default of 1000 EMQX would kill the session with all it holds.
    case = make_case(
        in_order(send_timeout_s=2.0, max_mailbox=100_000), rate=300, bootstrap=kafka.bootstrap, mqtt=QUICK,
        flow={"memory_bytes": 4 << 20}, spool={"enabled": False},
    )  # fmt: skip
    broker = case.broker
    case.flows(100)
    kafka.freeze()

    def pour() -> None:
        for number in range(100):
            value = payload(f"flood-{number % 8}", 0, 20_000)
            broker.broker.publish(packets.Message(f"devices/flood-{number % 8}/x", value, 0, publisher="f"))

    with case.watch(4):
        for _ in range(15):  # 30 MB: more than memory and sockets hold
            broker.call(pour)
        wait_until(lambda: broker.call(lambda: broker.broker.blocked) >= 1, "the broker gives it up")
        kafka.thaw()
        case.all_back()
        case.flows(500)
    published = broker.stop_load()
    wait_until(broker.drained, f"everything is acknowledged; {case.gateway.tail()}")
    wait_until(case.gateway.settled, "nothing is in flight")
    assert case.gateway.imbalance() == 0
    found = account(case.bootstrap, case.topic, published)
    assert not found.missing, str(found)
    assert not found.out_of_order, str(found)
    assert {device for device, _ in found.strangers} <= {f"flood-{number}" for number in range(8)}
