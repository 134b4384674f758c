"""`gateway verify` beside a real gateway and a real Kafka: what is there, missing, double, expired, and unaccounted."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bridge import wire
from config.errors import ExitStatus
from tests.brokers.topics import create_topic, delete_topics
from tests.chaos.fixtures import *  # noqa: F403 - a fixture is taken from the module that uses it
from tests.chaos.harness import ROOT, run_to_end, wait_until
from tests.chaos.threaded import ThreadedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.local.embedded.kafka import KafkaCluster
    from tests.chaos.fixtures import MakeGateway
    from tests.chaos.harness import Gateway

INSTANCE = "plant-7"


class Site:
    """A gateway with records that are tagged, and `gateway verify` beside it."""

    def __init__(self, make_gateway: MakeGateway, kafka: KafkaCluster, mqtt: ThreadedBroker, topic: str) -> None:
        self.topic = topic
        self.kafka = kafka
        self.mqtt = mqtt
        self.gateway: Gateway = make_gateway(
            mqtt.port,
            kafka.bootstrap,
            topic,
            instance=INSTANCE,
            ledger={"topic": f"{topic}-ledger", "interval": "1s"},
            kafka={"topics": {"create": True, "partitions": 2, "replication": 1}},
            mqtt={"sessions": 1},
            routes=[
                {
                    "name": "telemetry", "filters": ["devices/#"], "topic": topic,
                    "metadata_headers": [*wire.DEFAULT_METADATA_HEADERS, "gateway"],
                }
            ],
        )  # fmt: skip

    def run(self, messages: int = 2000) -> None:
        """One life, with some intervals of messages, that ends in good order."""
        self.gateway.start()
        before = self.gateway.metric("gateway_messages_delivered_total")
        self.mqtt.start_load(messages)
        wait_until(lambda: self.gateway.metric("gateway_messages_delivered_total") - before >= messages, "delivered")
        self.mqtt.stop_load()
        wait_until(self.gateway.settled, "settled")
        status = self.gateway.status()
        route, ledger = status["routes"]["telemetry"], status["ledger"]
        assert route == {name: ledger[name] for name in ("received", "delivered", "filtered", "dead_lettered")}
        assert self.gateway.stop() == -signal.SIGTERM

    def verify(self, *options: str) -> tuple[int, dict[str, Any]]:
        """Exit status and the JSON object."""
        status, text = self.command("--json", *options)
        return status, json.loads(text)

    def command(self, *options: str) -> tuple[int, str]:
        ended = subprocess.run(
            [sys.executable, "-m", "gateway.cli.main", "verify", "--config", str(self.gateway._config), *options],
            capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
        )  # fmt: skip
        assert "Traceback" not in ended.stderr, ended.stderr
        return ended.returncode, ended.stdout or ended.stderr

    def total(self, document: dict[str, Any], name: str) -> int:
        return sum(place[name] for place in document["partitions"])

    def delete_before(self, offset: int, partition: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap, "log_level": 0})
        for future in admin.delete_records([TopicPartition(self.topic, partition, offset)]).values():
            future.result(20)

    def busiest(self, document: dict[str, Any]) -> dict[str, Any]:
        return max(document["partitions"], key=lambda place: int(place["acknowledged"]))

    def produce(self, values: list[bytes], *, tag: bool, partition: int) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "log_level": 0})
        for value in values:
            headers = [(wire.GATEWAY_ID, INSTANCE.encode())] if tag else []
            producer.produce(self.topic, value, b"k", partition, headers=headers, timestamp=1)
        assert producer.flush(20) == 0


@pytest.fixture
def site(make_gateway: MakeGateway, kafka: KafkaCluster, unique: str) -> Iterator[Site]:
    with ThreadedBroker() as mqtt:
        yield Site(make_gateway, kafka, mqtt, unique)
    names = [unique, f"{unique}-dead", f"{unique}-ledger"]
    asyncio.run(delete_topics(kafka.bootstrap, names))


def test_everything_is_there_and_copies_and_others_are_told_apart(site: Site) -> None:
    site.run()
    status, document = site.verify()
    assert status == 0, document
    assert site.total(document, "found") == site.total(document, "acknowledged") >= 2000
    assert site.total(document, "missing") == site.total(document, "surplus") == 0
    (worker,) = document["workers"]
    assert worker["ending"] == "stopped"
    assert worker["terms"]["delivered"] == worker["terms"]["received"] == site.total(document, "messages")
    assert all(place["routes"] == {"telemetry": place["acknowledged"]} for place in document["partitions"])

    partition = site.busiest(document)["partition"]
    site.produce([b"a copy", b"another"], tag=True, partition=partition)
    site.produce([b"somebody else's"], tag=False, partition=partition)
    status, document = site.verify()
    assert (status, site.total(document, "surplus"), site.busiest(document)["state"]) == (0, 2, "surplus")

    status, text = site.command("--last", "1h")
    assert status == 0
    assert "Everything that was acknowledged is in Kafka" in text
    status, text = site.command("--until", "2020-01-01T00:00Z")
    assert status == ExitStatus.UNJUDGED == 6
    assert "NOT JUDGED: the ledger topic has no record of gateway 'plant-7' in the span." in text
    groups = AdminClient({"bootstrap.servers": site.kafka.bootstrap}).list_consumer_groups().result(20)
    assert not [group.group_id for group in groups.valid if "verify" in group.group_id or INSTANCE in group.group_id]


def test_records_that_were_deleted_are_missing_until_retention_explains_it(site: Site) -> None:
    site.run(500)
    _, document = site.verify()
    place = site.busiest(document)
    partition, acknowledged = place["partition"], place["acknowledged"]
    site.delete_before(3, partition)
    status, text = site.command()
    assert status == ExitStatus.MISSING_MESSAGES == 3
    assert f"{site.topic}/{partition}: 3 of {acknowledged} acknowledged records are missing." in text
    assert "removed sooner than retention says" in text
    status, document = site.verify()
    assert (status, site.total(document, "missing")) == (3, 3)

    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    admin = AdminClient({"bootstrap.servers": site.kafka.bootstrap, "log_level": 0})
    entry = ConfigEntry("retention.bytes", "1000000000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, site.topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(20)
    status, document = site.verify()
    assert (status, site.total(document, "missing"), site.total(document, "expired")) == (0, 0, 3)
    assert site.busiest(document)["state"] == "expired"


def test_a_topic_made_anew_has_lost_what_the_old_one_had(site: Site) -> None:
    site.run(300)
    _, before = site.verify()
    asyncio.run(delete_topics(site.kafka.bootstrap, [site.topic]))
    wait_until(lambda: site.verify()[1]["partitions"][0]["missing"] > 0, "Kafka has deleted it")
    asyncio.run(create_topic(site.kafka.bootstrap, site.topic, partitions=2))
    status, document = site.verify()
    assert (status, site.total(document, "missing")) == (3, site.total(before, "acknowledged"))


def test_the_markers_of_others_transactions_leave_gaps_that_are_no_loss(site: Site) -> None:
    asyncio.run(create_topic(site.kafka.bootstrap, site.topic, partitions=2))
    producer = Producer({"bootstrap.servers": site.kafka.bootstrap, "transactional.id": site.topic, "log_level": 0})
    producer.init_transactions(20)
    for _ in range(3):
        # Each transaction ends with a marker, which has an offset and is no record.
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(site.topic, b"in a transaction", b"k", partition)
        producer.commit_transaction(20)
    site.run(300)
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce(site.topic, b"in a transaction", b"k", partition)
    producer.abort_transaction(20)
    status, document = site.verify()
    assert status == 0, document
    assert site.total(document, "found") == site.total(document, "acknowledged")


def test_a_killed_gateways_open_interval_is_unaccounted_and_not_lost(site: Site) -> None:
    gateway = site.gateway
    gateway.start()
    site.mqtt.start_load(400)
    wait_until(lambda: gateway.metric("gateway_messages_delivered_total") > 1000, "messages flow")
    gateway.kill()
    gateway.start()
    wait_until(lambda: gateway.metric("gateway_messages_delivered_total") > 400, "messages flow again")
    status, document = site.verify()
    assert status == 0, document
    site.mqtt.stop_load()
    wait_until(gateway.settled, "settled")
    assert gateway.stop() == -signal.SIGTERM
    status, document = site.verify()
    assert status == 0, document
    assert [worker["ending"] for worker in document["workers"]] == ["crashed", "stopped"]
    assert site.total(document, "missing") == 0
    assert site.total(document, "open") > 0
    in_kafka = site.total(document, "found") + site.total(document, "open") + site.total(document, "surplus")
    assert in_kafka == count(site)
    (begun,) = gateway.events("ledger_begun")
    assert begun["previous_clean"] is False
    status, text = site.command()
    assert "is unaccounted for, not lost" in text


def count(site: Site) -> int:
    """Records in the topic, by its offsets: nobody else writes to it."""
    consumer = Consumer({"bootstrap.servers": site.kafka.bootstrap, "group.id": uuid.uuid4().hex, "log_level": 0})
    try:
        return sum(consumer.get_watermark_offsets(TopicPartition(site.topic, n), timeout=20)[1] for n in (0, 1))
    finally:
        consumer.close()


def test_a_ledger_topic_that_is_missing_ends_the_start_with_the_way_out(
    kafka: KafkaCluster, tmp_path: Any, unique: str
) -> None:
    for name in (unique, f"{unique}-dead"):
        asyncio.run(create_topic(kafka.bootstrap, name))
    with ThreadedBroker() as broker:
        tables = {
            "mqtt": {"addresses": [f"mqtt://127.0.0.1:{broker.port}"]},
            "kafka": {"bootstrap_servers": [kafka.bootstrap]},
            "dead_letter": {"topic": f"{unique}-dead"},
            "ledger": {"topic": f"{unique}-ledger"},
            "http": {"port": 0},
            "routes": [{"name": "telemetry", "filters": ["devices/#"], "topic": unique}],
        }
        status, stderr = run_to_end(tmp_path, tables)
    assert status == ExitStatus.UNAVAILABLE
    assert f"Kafka has no topic {unique}-ledger" in stderr
    assert 'ledger.topic = "" runs without one' in stderr
    asyncio.run(delete_topics(kafka.bootstrap, [unique, f"{unique}-dead"]))


def test_without_a_ledger_nothing_is_written_and_verify_says_so(site: Site) -> None:
    text = site.gateway._config.read_text()
    site.gateway._config.write_text(text.replace(f'topic = "{site.topic}-ledger"', 'topic = ""'))
    site.run(200)
    names = AdminClient({"bootstrap.servers": site.kafka.bootstrap}).list_topics(timeout=20).topics
    assert site.topic in names
    assert f"{site.topic}-ledger" not in names
    status, said = site.command()
    assert status == ExitStatus.CONFIG
    assert "writes no account" in said
