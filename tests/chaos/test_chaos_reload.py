"""Settings change while messages flow: nobody is disconnected, nothing is lost, no order either, and what cannot be
taken changes nothing."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.brokers.scripted_rules import Rules
from tests.chaos.harness import FULL, Gateway, account, wait_until
from tests.chaos.publisher import Publishers
from tests.chaos.threaded import ThreadedBroker

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.local.embedded.kafka import KafkaCluster
    from tests.brokers.mosquitto import Mosquitto
    from tests.chaos.fixtures import MakeGateway

pytestmark = pytest.mark.slow

ONE_PARTITION = {"topics": {"create": True, "partitions": 1, "replication": 1}}


def route(topic: str, name: str = "telemetry", **more: Any) -> dict[str, Any]:
    return {"name": name, "filters": ["devices/#"], "topic": topic, **more}


def reload(gateway: Gateway, *words: str, **tables: Any) -> tuple[int, str]:
    gateway.configure(**tables)
    return gateway.command("reload", *words)


def finish(broker: ThreadedBroker, gateway: Gateway, kafka: str, topic: str, *, copies: bool = False) -> None:
    published = broker.stop_load()
    wait_until(broker.drained, f"everything is acknowledged; {gateway.tail()}")
    wait_until(gateway.settled, f"nothing is in flight; {gateway.status()['ledger']}")
    assert gateway.imbalance() == 0
    assert broker.dropped() == 0
    assert broker.unrouted() == 0
    found = account(kafka, topic, published)
    assert not found.missing, str(found)
    assert not found.strangers, str(found)
    assert not found.out_of_order, str(found)
    assert copies or found.copies == 0, str(found)


def test_routes_limits_and_interceptors_change_under_load(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """An EMQX at its defaults, 2,000 msg/s over four sessions of two workers; into one partition, which shows the order
    of every device whatever its key."""
    with ThreadedBroker(Rules(strategy="hash_clientid")) as broker:
        gateway = make_gateway(
            broker.port, kafka.bootstrap, unique, workers=2, mqtt={"sessions": 2}, kafka=ONE_PARTITION,
            routes=[route(unique)],
        )  # fmt: skip
        gateway.start()
        absences = broker.watch_absences()
        connects = gateway.metric("gateway_mqtt_connects_total")
        pids = gateway.pids()
        broker.start_load(2000)
        first = {"name": "first", "filters": ["devices/+/telemetry"], "topic": unique}
        steps: list[dict[str, Any]] = [
            {"flow": {"linger_max": "50ms", "route_cache_entries": 20}, "log": {"level": "debug"}},
            {"routes": [route(unique, key="${topic[1]}")]},
            {"routes": [{**first, "key": "${payload.device}"}, route(unique)]},
            {"routes": [route(unique, interceptors=[{"use": "headers", "add": {"site": "north"}}])]},
            {},
            {"routes": [route(unique, name="other", key="")], "dead_letter": {"max_share": 0.5}},
            {"routes": [route(unique)], "flow": {"linger_max": "20ms", "route_cache_entries": 1000}},
        ]
        for step in steps * (4 if FULL else 1):
            status, said = reload(gateway, **step)
            assert status == 0, said + gateway.tail()
            assert ("taken by all 2 running workers, no session disconnected." if step else "No setting") in said
        finish(broker, gateway, kafka.bootstrap, unique)
        assert not absences, "no session was away"
        assert gateway.metric("gateway_mqtt_connects_total") == connects
        assert gateway.pids() == pids
        assert gateway.samples("gateway_config_reload_success") == {"": 1}
        config = gateway.status()["config"]
        assert config["last_reload"]["ok"]
        assert config["file"].endswith("gateway.toml")


def test_filters_change_under_load(kafka: KafkaCluster, make_gateway: MakeGateway, unique: str) -> None:
    """Wider, narrower, others: subscribed before what is left, so that nothing is published to nobody. While a message
    matches both filters it comes twice."""
    with ThreadedBroker(Rules(strategy="hash_clientid")) as broker:
        gateway = make_gateway(
            broker.port, kafka.bootstrap, unique, workers=1, mqtt={"sessions": 1}, routes=[route(unique)]
        )
        gateway.start()
        absences = broker.watch_absences()
        broker.start_load(1000)
        for filters in (["devices/+/telemetry"], ["devices/+/+", "sites/#"], ["+/+/telemetry"], ["devices/#"]):
            status, said = reload(gateway, routes=[{"name": "telemetry", "filters": filters, "topic": unique}])
            assert status == 0, said + gateway.tail()
            (session,) = broker.call(lambda: [list(one.filters) for one in broker.broker.sessions.values()])
            assert session == [f"$share/gateway/{text}" for text in filters]
        finish(broker, gateway, kafka.bootstrap, unique, copies=True)
        assert not absences


def test_what_cannot_be_taken_changes_nothing(kafka: KafkaCluster, make_gateway: MakeGateway, unique: str) -> None:
    """A file that cannot be read, a template that cannot be right, a topic that is not there, settings that need a
    restart, a broker that refuses the new filter: each is named, and the messages go where they went."""
    with ThreadedBroker(Rules(strategy="hash_clientid")) as broker:
        gateway = make_gateway(
            broker.port, kafka.bootstrap, unique, workers=2, mqtt={"sessions": 1}, kafka=ONE_PARTITION,
            routes=[route(unique)],
        )  # fmt: skip
        status, said = gateway.command("reload")
        assert status == 4, said
        gateway.start()
        absences = broker.watch_absences()
        broker.start_load(500)

        status, said = reload(gateway, routes=[route(unique, key="${topc}")])
        assert status == 78
        assert "did you mean ${topic}" in said
        gateway.process.signal(signal.SIGHUP)
        wait_until(lambda: gateway.samples("gateway_config_reload_success") == {"": 0}, "the metric says it failed")
        assert not gateway.status()["config"]["last_reload"]["ok"]

        elsewhere = route(f"{unique}-absent")
        status, said = reload(gateway, routes=[elsewhere], mqtt={"keepalive": "40s"}, kafka={"compression": "none"})
        assert status == 78
        assert "mqtt.keepalive, kafka.compression cannot change while the workers run" in said
        assert '! mqtt.keepalive: "30s" → "40s"' in said
        assert gateway.status()["workers"][0]["routes"].keys() == {"telemetry"}

        gateway.configure(mqtt={"keepalive": "30s"}, kafka={"compression": "zstd"})
        status, said = reload(gateway, "--dry-run")
        assert status == 0, said
        assert f"Topic {unique}-absent would be made." in said
        assert f'  routes[telemetry].topic: "{unique}" → "{unique}-absent"' in said

        broker.call(lambda: setattr(broker.broker.rules, "refuse_subscribe", 0x87))
        status, said = reload(gateway, routes=[{**elsewhere, "topic": unique, "filters": ["devices/#", "more/#"]}])
        assert status == 1, said
        assert "refused to subscribe" in said
        broker.call(lambda: setattr(broker.broker.rules, "refuse_subscribe", None))
        filters = broker.call(lambda: [list(one.filters) for one in broker.broker.sessions.values()])
        assert filters == [["$share/gateway/devices/#"]] * 2

        status, said = reload(gateway, "--partial", "--json", routes=[route(unique, key="")], mqtt={"keepalive": "50s"})
        assert status == 5, said
        assert "mqtt.keepalive" in json.loads(said)["sentence"]
        finish(broker, gateway, kafka.bootstrap, unique)
        assert not absences


def test_a_worker_that_dies_afterwards_has_the_new_settings(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """And a worker without a supervisor takes them as well."""
    with ThreadedBroker(Rules(strategy="hash_clientid", queue=1_000_000)) as broker:
        for workers in (1, 0):
            gateway = make_gateway(
                broker.port, kafka.bootstrap, unique, workers=workers, mqtt={"sessions": 1}, routes=[route(unique)],
                instance=f"gateway{workers}",
            )  # fmt: skip
            gateway.start()
            status, said = reload(gateway, routes=[route(unique, name="renamed")])
            assert status == 0, said + gateway.tail()
            assert gateway.samples("gateway_config_reload_success") == {"": 1}
            if workers:
                (pid,) = gateway.pids()
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda: gateway.pids() not in ([pid], [None]), "another is started")  # noqa: B023
                gateway.wait_ready()
            assert "renamed" in gateway.status()["routes"]
            assert gateway.status()["config"]["last_reload"]["ok"]
            gateway.stop()


def test_at_a_real_broker(
    kafka: KafkaCluster, make_mosquitto: Callable[..., Mosquitto], make_gateway: MakeGateway, unique: str
) -> None:
    """mosquitto sees no connection end, and everything it acknowledged is in Kafka."""
    broker = make_mosquitto()
    gateway = make_gateway(
        broker.port, kafka.bootstrap, unique, workers=1, mqtt={"sessions": 2}, routes=[route(unique)]
    )
    gateway.start()
    connects = gateway.metric("gateway_mqtt_connects_total")
    with Publishers(broker.port, rate=500) as publishers:
        for filters in (["devices/+/#"], ["+/+/telemetry", "devices/+"], ["devices/#"]):
            status, said = reload(gateway, routes=[{"name": "telemetry", "filters": filters, "topic": unique}])
            assert status == 0, said + gateway.tail()
        published = publishers.stop()
    wait_until(gateway.settled, "nothing is in flight")
    assert gateway.imbalance() == 0
    assert gateway.metric("gateway_mqtt_connects_total") == connects
    assert not sum(gateway.samples("gateway_mqtt_disconnects_total").values())
    found = account(kafka.bootstrap, unique, published)
    assert not found.missing, str(found)
    assert not found.strangers, str(found)
