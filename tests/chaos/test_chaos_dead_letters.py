"""Everything of a route turns bad: a whole gateway stops the route, says so, loses nothing, and goes on."""

import asyncio
import json

from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.client import Client
from tests.brokers.kafka_backend import read_topic
from tests.brokers.mosquitto import Mosquitto
from tests.brokers.topics import alter_topic, create_topic
from tests.chaos.fixtures import MakeGateway
from tests.chaos.harness import Gateway
from tests.waiting import wait_until

BAD, GOOD = 50, 30


def read(bootstrap: str, topic: str) -> list[bytes | None]:
    return [record.value for log in read_topic(bootstrap, topic) for record in log]


def held(gateway: Gateway) -> float:
    return gateway.metric("gateway_route_held_messages")


def test_a_route_where_all_turns_bad_is_stopped_survives_a_kill_and_is_replayed(
    kafka: KafkaCluster, mosquitto: Mosquitto, make_gateway: MakeGateway, unique: str
) -> None:
    made = {
        "name": "made", "filters": ["devices/#"], "topic": f"{unique}-${{payload.kind}}", "allowed_topics": ".*-[a-z]+"
    }  # fmt: skip
    other = {"name": "other", "filters": ["other/#"], "topic": f"{unique}-other"}
    gateway = make_gateway(
        mosquitto.port,
        kafka.bootstrap,
        unique,
        mqtt={"sessions": 2},
        routes=[made, other],
        dead_letter={"topic": f"{unique}-dead", "min_messages": BAD, "max_share": 0.2, "retry_after": "1h"},
    )
    gateway.start()
    good = [json.dumps({"kind": "good", "n": number}).encode() for number in range(GOOD)]
    bad = [json.dumps({"kind": f"BAD-{number}"}).encode() for number in range(BAD)]
    with Client(mosquitto.port) as client:
        for payload in bad:
            client.publish("devices/1", payload)
        wait_until(gateway.reasons, "the route is stopped")
        for payload in good:
            client.publish("devices/1", payload)
        client.publish("other/1", b"of another route")
        wait_until(lambda: held(gateway) == GOOD, "what comes is held")
    (reason,) = [text for text in gateway.reasons() if "is stopped" in text]
    assert f"Route 'made' is stopped: {BAD} of {BAD} messages" in reason
    assert "gateway dlq list --route made" in reason
    (line,) = gateway.events("route_stopped")
    assert (line["level"], line["alarm"]) == ("error", reason)
    assert gateway.samples("gateway_route_stopped") == {'{route="made"}': 1, '{route="other"}': 0}
    wait_until(lambda: read(kafka.bootstrap, f"{unique}-other"), "the other route goes on to Kafka")
    dead = f"{unique}-dead"
    wait_until(
        lambda: sorted(read(kafka.bootstrap, dead)) == sorted(bad), "all that is bad is there; no more: it stopped"
    )
    assert gateway.imbalance() == 0
    assert gateway.status()["ledger"]["in_flight"] >= GOOD

    gateway.kill()
    gateway.start()  # nothing bad comes any more: the count begins afresh
    wait_until(lambda: set(good) == set(read(kafka.bootstrap, f"{unique}-good")), "what was held came again")
    wait_until(gateway.settled, "and nothing is in flight")
    assert gateway.samples("gateway_route_stopped") == {'{route="made"}': 0, '{route="other"}': 0}
    assert gateway.imbalance() == 0

    letters = json.loads(gateway.commanded("dlq", "list", "--json", "--route", "made"))["dead_letters"]
    assert {one["reason"] for one in letters} == {"invalid_topic"}
    # What the killed gateway had not acknowledged came again, and became a dead letter again.
    count = len(letters)
    assert BAD <= count <= 2 * BAD
    status, text = gateway.command("dlq", "replay", "--route", "made", "--dry-run")
    assert (status, f"{count} refused" in text) == (5, True), text
    gateway.configure(routes=[{**made, "topic": f"{unique}-mended"}, other])
    gateway.commanded("dlq", "replay", "--route", "made")
    mended = read(kafka.bootstrap, f"{unique}-mended")
    assert (set(mended), len(mended)) == (set(bad), count)
    status, text = gateway.command("dlq", "replay", "--route", "made")
    assert (status, f"{count} skipped" in text) == (5, True), text
    assert gateway.stop() == -15


def test_a_stopped_route_tries_a_few_by_itself_and_goes_on_when_they_are_good(
    kafka: KafkaCluster, mosquitto: Mosquitto, make_gateway: MakeGateway, unique: str
) -> None:
    """The dead letters here are records that Kafka itself refuses: without a key, for a compacted topic."""
    gateway = make_gateway(
        mosquitto.port,
        kafka.bootstrap,
        unique,
        mqtt={"sessions": 1},
        kafka={
            "topics": {
                "create": True, "partitions": 3, "replication": 1,
                "declare": [{"name": unique, "cleanup_policy": "compact", "partitions": 3, "replication": 1}],
            }
        },
        routes=[{"name": "state", "filters": ["devices/#"], "topic": unique, "key": "${payload.id}"}],
        dead_letter={"topic": f"{unique}-dead", "min_messages": 20, "max_share": 0.2, "retry_after": "1s"},
    )  # fmt: skip
    gateway.start()
    good = [json.dumps({"id": f"d{number}"}).encode() for number in range(200)]
    with Client(mosquitto.port) as client:
        for number in range(20):
            client.publish("devices/1", b"without an id %d" % number)
        wait_until(lambda: gateway.events("route_stopped"), "the route is stopped")
        for number in range(20, 23):
            client.publish("devices/1", b"without an id %d" % number)
        for payload in good:
            client.publish("devices/1", payload)
    wait_until(lambda: gateway.events("route_resumed"), "a trial is good")
    wait_until(lambda: set(read(kafka.bootstrap, unique)) == set(good), "all that is good is written")
    wait_until(gateway.settled, "nothing is in flight")
    assert len(gateway.events("route_stopped")) == 1
    assert gateway.events("route_trial_failed")
    assert [record for log in read_topic(kafka.bootstrap, unique) for record in log if record.key is None] == []
    assert len(read(kafka.bootstrap, f"{unique}-dead")) == 23
    assert gateway.reasons() == []
    assert gateway.imbalance() == 0
    assert gateway.stop() == -15


def test_a_dead_letter_that_its_topic_refuses_is_none_until_kafka_has_it(
    kafka: KafkaCluster, mosquitto: Mosquitto, make_gateway: MakeGateway, unique: str
) -> None:
    dead = f"{unique}-dead"

    def limit(size: int) -> None:
        alter_topic(kafka.bootstrap, dead, "max.message.bytes", size)

    asyncio.run(create_topic(kafka.bootstrap, dead))
    limit(100)
    route = {
        "name": "made",
        "filters": ["devices/#"],
        "topic": f"{unique}-${{payload.kind}}",
        "allowed_topics": "[a-z]+",
    }
    gateway = make_gateway(mosquitto.port, kafka.bootstrap, unique, routes=[route], dead_letter={"topic": dead})
    gateway.start()
    bad = [json.dumps({"kind": f"BAD-{number}"}).encode() for number in range(3)]
    with Client(mosquitto.port) as client:
        for payload in bad:
            client.publish("devices/1", payload)

    def problems() -> dict[str, str]:
        return {problem["id"]: problem["text"] for problem in gateway.problems()}

    wait_until(lambda: "dead-letters-refused" in problems(), "the page says who refuses what")
    gateway.kill()
    gateway.start(ready=False)  # they come again, from the broker or from the spool
    wait_until(gateway.running, "it runs again")
    wait_until(lambda: "dead-letters-refused" in problems(), "and says so again")
    assert dead in problems()["dead-letters-refused"]
    assert "dead-letters" not in problems()
    assert gateway.metric("gateway_dlq_records_total") == 0
    assert read(kafka.bootstrap, dead) == []
    assert gateway.imbalance() == 0
    limit(1 << 20)
    wait_until(lambda: gateway.metric("gateway_dlq_records_total") == len(bad), "it goes on by itself")
    assert sorted(read(kafka.bootstrap, dead)) == sorted(bad)
    wait_until(lambda: "dead-letters-refused" not in problems(), "and is well again")
    assert "dead-letters" in problems()
    assert gateway.imbalance() == 0
