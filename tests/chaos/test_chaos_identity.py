"""Whole gateways and their data directories: whose they are, how lives end, and what earlier settings left behind."""

import os
import re
import shutil
import signal
from collections.abc import Callable

import pytest

from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.client import Client
from tests.brokers.scripted_rules import Rules
from tests.chaos.case import data_of, judge
from tests.chaos.fixtures import MakeCase, MakeGateway
from tests.chaos.harness import Gateway, account, payload
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

INCOMPLETE = 5
CONFIG = 78
UNDRAINED = 75


def ends_with(gateway: Gateway) -> tuple[int, str]:
    """Start it, and wait for its end: status and last words."""
    gateway.start(ready=False)
    return gateway.process.wait(30), gateway.tail(3)


def stopped(gateway: Gateway) -> None:
    assert gateway.stop() == -signal.SIGTERM, gateway.tail()


def meta_line(gateway: Gateway, name: str) -> str:
    found = re.search(rf"^{re.escape(name)}=(.*)$", (data_of(gateway) / "meta.properties").read_text(), re.MULTILINE)
    assert found is not None, f"no {name} in meta.properties"
    return found[1]


def orphans_end(gateway: Gateway) -> None:
    wait_until(lambda: gateway.metric("gateway_mqtt_orphan_sessions") == 0, f"the orphans end; {gateway.tail()}")


# --- sessions of earlier settings ---


@pytest.mark.parametrize(("kind", "protocol"), [("mqtt_broker", "5"), ("mosquitto", "3.1.1")])
def test_real_brokers_give_up_what_orphans_hold(
    kind: str, protocol: str, kafka: KafkaCluster, make_gateway: MakeGateway, unique: str,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    """Also under another client id; and the ended sessions are ended: connecting with their ids finds none."""
    broker = request.getfixturevalue(f"make_{kind}")()
    gateway = make_gateway(broker.port, kafka.bootstrap, unique, mqtt={"sessions": 3, "protocol": protocol})
    gateway.start()
    stopped(gateway)
    published = {f"device-{number}": 40 for number in range(10)}
    with Client(broker.port) as devices:
        for number in range(40):
            for device in published:
                devices.publish(f"devices/{device}", payload(device, number), qos=1)
    gateway.configure(mqtt={"client_id": "renamed-${session}", "sessions": 1})
    gateway.start()
    orphans_end(gateway)
    judge(gateway, kafka.bootstrap, unique, published, copies=0)
    assert [line["session_present"] for line in gateway.events("orphan_session_ended")] == [True] * 3
    gateway.stop()
    gateway.configure(mqtt={"client_id": "${instance}-${worker}-${session}", "sessions": 3})
    gateway.start()
    assert [line["session_present"] for line in gateway.events("mqtt_subscribed")] == [False] * 3


def test_a_slot_that_does_not_run_is_retired_by_the_command(make_case: MakeCase) -> None:
    case = make_case(Rules())
    gateway, broker = case.gateway, case.broker
    gateway.kill()  # not even its end was orderly
    broker.start_load(400)
    wait_until(lambda: broker.call(lambda: broker.broker.published) > 200, "messages wait")
    published = broker.stop_load()
    assert "Worker 0 of instance gateway has retired; it did not run." in gateway.commanded("retire")
    wait_until(lambda: not case.client_ids, "all sessions have ended")
    found = account(case.bootstrap, case.topic, published)
    assert not found.missing, str(found)
    assert meta_line(gateway, "workers") == ""
    status, said = gateway.command("retire")
    assert status != 0
    assert "No gateway of instance 'gateway' runs" in said


# --- whose directory it is ---


def test_a_copy_is_refused_and_can_be_adopted(make_case: MakeCase, make_gateway: MakeGateway) -> None:
    case = make_case(Rules(), instance="plant-7")
    original = case.gateway
    stopped(original)
    restored = make_gateway(case.broker.port, case.bootstrap, case.topic, instance="plant-7")
    shutil.copytree(data_of(original), data_of(restored))
    status, said = ends_with(restored)
    assert status == CONFIG
    assert "is a copy of the directory of instance 'plant-7'" in said
    assert "place        not the original one" in restored.command("identity", "show")[1]
    assert "gets another id" in restored.commanded("identity", "adopt")
    restored.start()
    assert restored.status()["instance_id"] == meta_line(restored, "instance.id")
    assert meta_line(restored, "instance.id") != meta_line(original, "instance.id")
    status, said = restored.command("identity", "adopt")
    assert status == CONFIG, "not while it runs"
    assert f"process {restored.process.pid}" in said
    stopped(restored)


def test_another_cluster_is_refused_until_it_is_adopted(make_case: MakeCase) -> None:
    """The directory is another cluster's; no message is taken for this one."""
    case = make_case(Rules())
    gateway, broker = case.gateway, case.broker
    cluster = gateway.status()["kafka"]["cluster_id"]
    stopped(gateway)
    assert cluster == meta_line(gateway, "cluster.id")
    meta = data_of(gateway) / "meta.properties"
    meta.write_text(meta.read_text().replace(cluster, "a-cluster-that-was"))
    connects = broker.call(lambda: len(broker.broker.connects))
    status, said = ends_with(gateway)
    assert status == CONFIG
    assert f"belongs to Kafka cluster a-cluster-that-was, but kafka.bootstrap_servers lead to cluster {cluster}" in said
    assert broker.call(lambda: len(broker.broker.connects)) == connects, "MQTT was left alone"
    said = gateway.commanded("identity", "adopt")
    assert f"The Kafka cluster is now {cluster}, formerly a-cluster-that-was." in said
    gateway.start()
    stopped(gateway)


def test_adopting_without_kafka_says_that_the_cluster_stays(make_case: MakeCase) -> None:
    case = make_case(Rules())
    gateway = case.gateway
    stopped(gateway)
    gateway.configure(instance="renamed", kafka={"bootstrap_servers": ["127.0.0.1:1"]})
    status, said = gateway.command("identity", "adopt")
    assert status == INCOMPLETE
    assert "The instance is now 'renamed', formerly 'gateway'." in said
    assert "The recorded Kafka cluster was not changed, since Kafka gave no answer." in said
    # The renamed instance has other client ids; what waits under the old ones is fetched.
    gateway.configure(kafka={"bootstrap_servers": [case.bootstrap]})
    gateway.start()
    orphans_end(gateway)
    wait_until(lambda: case.client_ids == {f"renamed-0-{n}" for n in range(4)}, "the broker has ended them")
    stopped(gateway)


# --- how lives end ---


def test_a_crash_is_told_and_an_orderly_stop_is_not(make_case: MakeCase) -> None:
    gateway = make_case(Rules()).gateway

    def told() -> tuple[str | None, float, int]:
        last: str | None = gateway.status()["last_shutdown"]
        return last, gateway.metric("gateway_last_shutdown_unclean"), len(gateway.events("unclean_shutdown"))

    assert told() == (None, 0, 0)
    gateway.kill()
    gateway.start()
    assert told() == ("unclean", 1, 1)
    stopped(gateway)
    gateway.start()
    assert told() == ("clean", 0, 0)
    document = gateway.status()
    assert document["state"] == "RUNNING"
    assert [session["client_id"] for session in document["sessions"]] == [f"gateway-0-{n}" for n in range(4)]
    assert {session["window"] for session in document["sessions"]} == {32}
    assert document["kafka"]["incarnation"] == 1
    assert {"gateway", "python", "paho-mqtt", "aiokafka", "build"} == document["versions"].keys()
    stopped(gateway)


@pytest.mark.parametrize("second", [None, signal.SIGUSR1])
def test_what_a_stop_leaves_is_said_by_session_and_topic(
    second: signal.Signals | None, make_kafka: Callable[..., KafkaCluster], make_case: MakeCase
) -> None:
    """At its deadline, or at a second signal, whatever that is: Kafka is frozen, so nothing drains. The status says so,
    the next start too, and the messages come again."""
    kafka = make_kafka()
    timeout = "60s" if second else "2s"
    case = make_case(Rules(), bootstrap=kafka.bootstrap, shutdown_timeout=timeout, spool={"enabled": False})
    gateway = case.gateway
    kafka.freeze()
    case.broker.start_load(400)
    wait_until(lambda: gateway.status()["unacked"] == 4 * 32, "every window is full")
    published = case.broker.stop_load()
    gateway.terminate()
    if second:
        wait_until(lambda: gateway.events("stop_signal_received"), "it drains")
        os.kill(gateway.process.pid, second)
    assert gateway.process.wait(30) == UNDRAINED, gateway.tail()
    (left,) = gateway.events("stopped_undrained")
    assert left["unacknowledged_by_session"] == {f"gateway-0-{number}": 32 for number in range(4)}
    assert left["unwritten_by_topic"] == {case.topic: 4 * 32}
    assert case.broker.unacknowledged() == 4 * 32, "nothing was acknowledged that Kafka does not have"
    assert len(case.client_ids) == 4, "the sessions are kept"
    kafka.thaw()
    gateway.start()
    assert gateway.status()["last_shutdown"] == "unclean"
    case.finish(published, copies=4 * 32, ordered=False)
    stopped(gateway)
