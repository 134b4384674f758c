"""Somebody else ends our sessions: a second client with our id, an operator, a broker that sends us elsewhere."""

import pytest

from tests.brokers import packets
from tests.brokers.proxy import Weather
from tests.chaos.case import QUICK
from tests.chaos.fixtures import MakeCase, MakeGateway
from tests.chaos.gap import Gap
from tests.chaos.harness import FULL
from tests.waiting import passes, wait_until

pytestmark = pytest.mark.slow


def test_two_gateways_with_the_same_client_ids_do_not_fight_at_full_speed(
    make_case: MakeCase, make_gateway: MakeGateway
) -> None:
    """Each takes the other's sessions, with growing pauses, and says what is wrong. Nothing is lost meanwhile."""
    seconds = 20.0 if FULL else 6.0
    mqtt = {"reconnect_initial": "100ms", "reconnect_max": "5s"}
    case = make_case(rate=300, mqtt=mqtt)
    broker, first = case.broker, case.gateway
    second = make_gateway(broker.port, case.bootstrap, case.topic, mqtt=mqtt)
    case.flows(200)
    before = broker.call(lambda: len(broker.broker.connects))
    second.start(ready=False)
    wait_until(lambda: first.events("mqtt_disconnected"), "the sessions are taken over")
    passes(seconds)
    fights = (broker.call(lambda: len(broker.broker.connects)) - before) / 4
    print(f"{fights} connects per session in {seconds:g} s")
    # Two sides whose waits double from 0.1 s to 5 s: 2 x 6 while they grow, then two in 5 s, ± 20 % and change.
    assert fights < 2 * 8 + seconds / 5 * 2 * 1.5, "no fight at full speed"
    (reason, *_) = [line for line in first.events("mqtt_disconnected") if line["reason"] == "taken_over"]
    assert "same instance and worker" in reason["detail"], "what to look for is said"
    wait_until(second.settled, "what it took is in Kafka")
    assert second.imbalance() == 0
    by_second = second.metric("gateway_mqtt_redelivered_total")
    second.kill()
    case.all_back()
    case.finish(copies=by_second + first.metric("gateway_mqtt_redelivered_total") + 4 * 32)


def test_connections_ended_again_and_again_under_load(make_case: MakeCase) -> None:
    """By DISCONNECT 0x98 while the session is kept: copies are no more than what was unacknowledged."""
    case = make_case(rate=1500, mqtt=QUICK)
    with case.watch():
        for _ in range(20 if FULL else 6):
            case.flows(300)
            case.end_links(0x98)
            case.all_back()
    lines = case.gateway.events("mqtt_disconnected")
    assert {line["reason"] for line in lines} == {"administrative"}
    assert "EMQX discards the messages of a kicked session" in lines[0]["detail"]
    case.finish()


def test_sent_to_another_server_and_back_under_load(make_case: MakeCase) -> None:
    """A cluster of two doors: each empties itself in turn with DISCONNECT 0x9C and the other's address."""
    waits = {"reconnect_initial": "20s", "reconnect_max": "30s"}  # a redirection knows none
    case = make_case(rate=800, weather=Weather(), mqtt=waits)
    broker, proxy, gateway = case.broker, case.proxy, case.gateway
    doors = (broker.port, proxy.port)
    case.flows(200)
    with case.watch(), Gap(case.bootstrap, case.topic) as gap:
        for door in doors:
            case.flows(300)
            case.end_links(0x9C, packets.server_reference(f"nowhere.invalid:x 127.0.0.1:{door}"))
            wait_until(
                lambda to=f":{door}": (
                    len([line for line in gateway.events("mqtt_redirected") if line["to"].endswith(to)]) == 4
                ),
                f"all four go; {gateway.tail()}",
            )
            case.all_back()
            wait_until(lambda at=4 if door == proxy.port else 0: proxy.connections == at, "and none is left behind")
        case.flows(300)
    assert gap.longest_s < 15, "at once, without a wait"
    case.finish()
