"""Records that Kafka will never take, among good ones under load; and a right to write that is lost and comes back.

The first are dead-lettered, each with its reason, and nothing else is; the second is no record's fault.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.brokers.kafka_backend import SECURED, KafkaBackend, read_topic
from tests.brokers.kafka_cluster import ClusterAdmin
from tests.brokers.packets import Message
from tests.brokers.secured import SecuredKafka
from tests.chaos.cluster_case import ClusterCase
from tests.chaos.fixtures import MakeGateway
from tests.chaos.harness import FULL, payload
from tests.waiting import passes, wait_until

pytestmark = pytest.mark.slow

ONE_NODE = [[1]] * 6
BAD = 40 if FULL else 15  # of each kind
NO_CEILING = {"max_per_second": 1_000_000, "max_share": 1}


@pytest.fixture(scope="module")
def admin() -> Iterator[ClusterAdmin]:
    with SecuredKafka(sasl=True, settings=SECURED) as cluster:
        yield ClusterAdmin(cluster)


def publish(case: ClusterCase, topic: str, device: str, number: int, size: int = 60) -> None:
    message = Message(topic, payload(device, number, size), 1, publisher=device)
    case.broker.call(lambda: case.broker.broker.publish(message))


def test_records_that_kafka_will_not_take(admin: ClusterAdmin, make_gateway: MakeGateway, unique: str) -> None:
    """Too large by the settings, too large for the topic, an invalid topic, no key for a compacted one."""
    compacted, refused = f"{unique}-compacted", f"{unique}-dead"
    admin.create(compacted, [[1]], cleanup_policy="compact")
    admin.create(refused, [[1]])
    routes = [
        {"name": "keyless", "filters": ["state/#"], "topic": compacted, "key": ""},
        {"name": "template", "filters": ["room/#"], "topic": f"{unique}-${{topic[1]}}"},
        {"name": "telemetry", "filters": ["devices/#"], "topic": unique},
    ]
    with ClusterCase(
        admin, make_gateway, unique, replicas=ONE_NODE, config={"max_message_bytes": "4000"}, routes=routes,
        kafka={"compression": "none", "max_record_bytes": 20_000, "batch_bytes": 3_000,
               "topics": {"create": True, "partitions": 1, "replication": 1}},
        dead_letter={"topic": refused, **NO_CEILING},
    ) as case:  # fmt: skip
        for number in range(BAD):
            publish(case, "devices/larger/telemetry", "larger", number, 10_000)
            publish(case, "devices/largest/telemetry", "largest", number, 30_000)
            publish(case, "state/keyless", "keyless", number)
            publish(case, "room/not a topic/x", "nowhere", number)
            publish(case, "room/kitchen/x", "kitchen", number)
            case.lasts(0.1)
        found = case.finish()
        assert found.account.found == found.account.published
        assert admin.read(f"{unique}-kitchen").partitions == [[("kitchen", number) for number in range(BAD)]]
        dead = dead_letters(admin, refused)
        assert dead == Counter(
            {
                ("larger", "too_large"): BAD,
                ("largest", "too_large"): BAD,
                ("keyless", "invalid_record"): BAD,
                ("nowhere", "invalid_topic"): BAD,
            }
        )
        assert case.gateway.metric("gateway_dlq_records_total") == sum(dead.values())
        assert case.gateway.metric("gateway_kafka_producer_incarnations_total") == 1


def dead_letters(admin: ClusterAdmin, topic: str) -> Counter[tuple[str, str]]:
    """How many whole dead letters there are of each device and reason; each number of a device once and in order."""
    counts: Counter[tuple[str, str]] = Counter()
    numbers: dict[str, list[int]] = {}
    values: dict[bytes | None, bytes] = {}
    for record in read_topic(admin.cluster.bootstrap, topic)[0]:
        headers = dict(record.headers)
        values[record.key] = values.get(record.key, b"") + (record.value or b"")
        part, _, parts = (headers.get("dlq.part") or b"1/1").partition(b"/")
        if part != parts:
            continue  # a large one comes in parts, those of a key one after the other
        document = json.loads(values.pop(record.key))
        numbers.setdefault(document["device"], []).append(document["seq"])
        counts[document["device"], (headers["dlq.reason"] or b"").decode()] += 1
    for device, found in numbers.items():
        assert found == sorted(set(found)), f"{device}: {found}"
    return counts


@pytest.mark.parametrize("right", ["write", "describe"])
def test_a_right_taken_away_and_given_back(
    right: str, admin: ClusterAdmin, make_gateway: MakeGateway, unique: str, free_ports: Callable[[int], list[int]]
) -> None:
    """Its messages are held, and nothing is dead-lettered; what is allowed goes on as far as the windows let it."""
    backend = KafkaBackend(admin.cluster, unique, free_ports(1)[0])
    kafka: dict[str, Any] = {
        "bootstrap_servers": admin.cluster.sasl_bootstrap.split(","),
        "security": "SASL_PLAINTEXT",
        "sasl": {"username": "gateway", "password": "gateway-secret", "mechanism": "SCRAM-SHA-512"},
        "topics": {"create": True, "partitions": 6, "replication": 1},
    }
    with ClusterCase(admin, make_gateway, unique, replicas=ONE_NODE, kafka=kafka) as case:
        for _ in range(2 if FULL else 1):
            asyncio.run(backend.forbid(unique) if right == "write" else backend.hide(unique))
            wait_until(lambda: not case.gateway.ready(), "/readyz turns red")
            wait_until(
                lambda: any("ACLs" in reason for reason in case.gateway.reasons()),
                f"the reason is given; {case.gateway.reasons()}",
            )
            before = case.sent()
            passes(20 if FULL else 4)
            assert case.sent() == before
            asyncio.run(backend.forbid(unique, forbidden=False))
            case.gateway.wait_ready()
            case.lasts(1)
        case.finish()
        assert case.gateway.metric("gateway_dlq_records_total") == 0
        assert case.gateway.metric("gateway_kafka_producer_incarnations_total") == 1
        assert not case.gateway.events("topic_gone")
