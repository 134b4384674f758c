"""Operators change a topic under load: leaders given back, replicas moved, partitions added, the topic deleted."""

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.kafka_cluster import ClusterAdmin, Taken, rotated
from tests.chaos.cluster_case import ClusterCase
from tests.chaos.fixtures import MakeGateway
from tests.chaos.harness import FULL, payload
from tests.waiting import passes, wait_until

pytestmark = pytest.mark.slow

GAP_S = 2.0 if FULL else 12.0  # 0.8 s was measured; shorter than request_timeout


@pytest.fixture(scope="module")
def admin() -> Iterator[ClusterAdmin]:
    with KafkaCluster(3, heap_mib=256, settings={"auto.leader.rebalance.enable": "false"}) as cluster:
        yield ClusterAdmin(cluster)


def test_leaders_given_back_and_replicas_moved(admin: ClusterAdmin, make_gateway: MakeGateway, unique: str) -> None:
    """On two nodes, then with other leaders, then on the third; and back. Nothing but a moment's pause."""
    pairs = [[1, 2], [2, 1], [1, 2], [2, 1], [1, 2], [2, 1]]
    with ClusterCase(
        admin, make_gateway, unique, replicas=pairs, config={"min_insync_replicas": "1"},
        kafka={"request_timeout": "20s"},
    ) as case:  # fmt: skip
        for _ in range(5 if FULL else 2):
            for moved in ([[b, a] for a, b in pairs], [[3, a] for a, _ in pairs], pairs):
                admin.reassign(case.topic, moved)
                admin.elect_preferred(case.topic)
                wanted = {number: nodes[0] for number, nodes in enumerate(moved)}
                wait_until(lambda: admin.leaders(case.topic) == wanted, "all brokers know the leaders")  # noqa: B023
                case.lasts(0.5)
        found = case.finish()
        assert found.taken.gap_s() <= GAP_S, str(found)
        assert case.gateway.metric("gateway_kafka_producer_incarnations_total") == 1


def test_partitions_added(admin: ClusterAdmin, make_gateway: MakeGateway, unique: str) -> None:
    """The number first seen is kept, so no device changes its partition, and that is said; a restart takes the new."""
    with ClusterCase(admin, make_gateway, unique) as case:
        admin.grow(case.topic, 12)
        wait_until(lambda: case.gateway.metric("gateway_kafka_partitions_unused") == 6, "it is noticed")
        assert {"topic": case.topic, "partitions": 12, "used": 6} == {
            name: value for name, value in topic_status(case).items() if name in {"topic", "partitions", "used"}
        }
        assert case.gateway.ready(), case.gateway.reasons()
        case.lasts(2)
        (line,) = case.gateway.events("topic_has_more_partitions")
        assert (line["topic"], line["partitions"], line["used"]) == (case.topic, 12, 6)
        # Devices never heard of before, too: their topics are settled only now.
        case.broker.call(lambda: publish_some(case, "late"))
        found = case.finish(extra={f"late-{number:04}": 1 for number in range(100)})
        assert not any(found.taken.partitions[6:]), "the added partitions got something"
        case.gateway.stop()
        case.gateway.start()
        assert case.gateway.metric("gateway_kafka_partitions_unused") == 0
        case.broker.call(lambda: publish_some(case, "later"))
        wait_until(case.broker.drained, "everything is acknowledged")
        assert any(admin.read(case.topic).partitions[6:]), "the new number is taken at a start"


def topic_status(case: ClusterCase) -> dict[str, Any]:
    return next(topic for topic in case.gateway.status()["topics"] if topic["topic"] == case.topic)


def about_kafka(case: ClusterCase) -> set[tuple[str, str]]:
    """What /status says is wrong with Kafka, and of what; the load that it holds up meanwhile is no cause."""
    words = ("topic-", "partition-", "broker-", "kafka-")
    return {(one["id"], one["subject"]) for one in case.gateway.problems() if one["id"].startswith(words)}


def missing_topics(case: ClusterCase) -> dict[str, float]:
    """What GatewayTopicMissing fires by."""
    found = case.gateway.samples("gateway_kafka_topic_missing")
    return {labels.partition('topic="')[2].partition('"')[0]: value for labels, value in found.items()}


def publish_some(case: ClusterCase, kind: str) -> None:
    from tests.brokers.packets import Message

    for number in range(100):
        device = f"{kind}-{number:04}"
        case.broker.broker.publish(Message(f"devices/{device}/telemetry", payload(device, 0), 1, publisher=device))


@pytest.mark.parametrize("create", [True, False], ids=["made anew", "held"])
def test_deleted(create: bool, admin: ClusterAdmin, make_gateway: MakeGateway, unique: str) -> None:
    """What Kafka had is destroyed, to the message what the gateway had reported as sent; nothing else is missing."""
    kafka = {"topics": {"create": create, "partitions": 3, "replication": 3}}  # but it had 6, and has them again
    with ClusterCase(admin, make_gateway, unique, kafka=kafka, dead_letter={"topic": case_dead(admin, unique)}) as case:
        sent = delete(case)
        case.broker.call(lambda: publish_some(case, "late"))  # of which it never heard before
        if not create:
            wait_until(lambda: about_kafka(case) == {("topic-missing", case.topic)}, "the page names it alone")
            assert missing_topics(case)[case.topic] == 1
            status, said = case.gateway.command("doctor", "--only", "kafka", "--json")
            assert status, said
            assert "is not there, and kafka.topics.create is off" in said, said
            passes(15 if FULL else 2)
            assert about_kafka(case) == {("topic-missing", case.topic)}, "no broker is blamed"
            assert not admin.leaders(case.topic), "it was made anew"
            assert case.sent() == sent
            admin.create(case.topic)
        case.gateway.wait_ready()
        case.lasts(1)
        wait_until(lambda: not about_kafka(case), "all is well again")
        assert missing_topics(case)[case.topic] == 0
        assert len(admin.leaders(case.topic)) == 6
        published = case.drain() | {f"late-{number:04}": 1 for number in range(100)}
        assert destroyed(admin.read(case.topic), published) == sent
        assert case.gateway.metric("gateway_dlq_records_total") == 0
        assert case.gateway.metric("gateway_kafka_producer_incarnations_total") == 1


def delete(case: ClusterCase) -> float:
    """How many messages had been reported as sent to the topic that is deleted."""
    while True:
        said = len(case.gateway.events("topic_gone"))
        case.admin.delete(case.topic)
        wait_until(lambda n=said: len(case.gateway.events("topic_gone")) > n, "it is said")
        sent, reasons = case.sent(), case.gateway.reasons()
        if not case.admin.leaders(case.topic):
            assert any("does not exist" in reason for reason in reasons), reasons
            return sent
        case.lasts(1)  # it was made anew before this process came to look: once more


def case_dead(admin: ClusterAdmin, unique: str) -> str:
    """A dead-letter topic, made beforehand: not every case may create."""
    admin.heal()
    admin.create(f"{unique}-dead", rotated(1))
    return f"{unique}-dead"


def destroyed(taken: Taken, published: dict[str, int]) -> int:
    """How many messages are missing before each device's first in the new topic; from there on all must be there,
    once each and in order."""
    seen: dict[str, list[int]] = {}
    for partition in taken.partitions:
        for device, number in partition:
            seen.setdefault(device, []).append(number)
    assert seen.keys() == published.keys()
    for device, numbers in seen.items():
        assert numbers == list(range(numbers[0], published[device])), f"{device}: {numbers[:5]} … {numbers[-5:]}"
    return sum(numbers[0] for numbers in seen.values())
