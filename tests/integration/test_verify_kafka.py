"""`gateway verify` beside a real gateway and a real Kafka: what is there, missing, double, expired, and unaccounted."""

import asyncio
import json
import signal
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bridge import wire
from config.errors import ExitStatus
from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.topics import (
    alter_topic,
    consumer_groups,
    create_topic,
    delete_before,
    delete_topics,
    produce,
    topic_names,
)
from tests.chaos.fixtures import MakeGateway
from tests.chaos.harness import Gateway, run_to_end
from tests.chaos.threaded import ThreadedBroker
from tests.command_line import run_gateway
from tests.waiting import wait_until

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
                    "metadata_headers": ["topic", "gateway"],
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
        ended = run_gateway("verify", "--config", self.gateway._config, *options)
        assert "Traceback" not in ended.stderr, ended.stderr
        return ended.returncode, ended.stdout or ended.stderr

    def total(self, document: dict[str, Any], name: str) -> int:
        return sum(place[name] for place in document["partitions"])

    def delete_before(self, offset: int, partition: int) -> None:
        delete_before(self.kafka.bootstrap, self.topic, partition, offset)

    def busiest(self, document: dict[str, Any]) -> dict[str, Any]:
        return max(document["partitions"], key=lambda place: int(place["acknowledged"]))

    def produce(self, values: list[bytes], *, tag: bool, partition: int) -> None:
        headers = [(wire.GATEWAY_ID, INSTANCE.encode())] if tag else []
        options = {"key": b"k", "partition": partition, "headers": headers, "timestamp": 1}
        produce(self.kafka.bootstrap, self.topic, values, **options)


@pytest.fixture
def site(make_gateway: MakeGateway, kafka: KafkaCluster, unique: str) -> Iterator[Site]:
    with ThreadedBroker() as mqtt:
        yield Site(make_gateway, kafka, mqtt, unique)
    asyncio.run(delete_topics(kafka.bootstrap, [unique, f"{unique}-dead", f"{unique}-ledger"]))


def test_everything_is_there_and_copies_and_others_are_told_apart(site: Site) -> None:
    groups = consumer_groups(site.kafka.bootstrap)
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
    assert "Everything that the ledger has as acknowledged is in Kafka" in text
    status, text = site.command("--until", "2020-01-01T00:00Z")
    assert status == ExitStatus.UNJUDGED == 6
    assert "NOT JUDGED: the ledger topic has no record of gateway 'plant-7' in the span." in text
    assert consumer_groups(site.kafka.bootstrap) <= groups, "it makes no group"


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

    alter_topic(site.kafka.bootstrap, site.topic, "retention.bytes", 1_000_000_000)
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
    producer.init_transactions(60)
    for _ in range(3):
        # Each transaction ends with a marker, which has an offset and is no record.
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(site.topic, b"in a transaction", b"k", partition)
        producer.commit_transaction(60)
    site.run(300)
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce(site.topic, b"in a transaction", b"k", partition)
    producer.abort_transaction(60)
    status, document = site.verify()
    assert status == 0, document
    assert site.total(document, "found") == site.total(document, "acknowledged")


def test_a_killed_gateways_open_interval_is_unaccounted_and_not_lost(site: Site) -> None:
    gateway = site.gateway
    gateway.start()
    site.mqtt.start_load(2000)
    wait_until(lambda: gateway.metric("gateway_messages_delivered_total") > 3000, "messages flow")

    def stands_behind_its_ledger() -> bool:
        """Frozen with records in Kafka that no entry of its ledger counts: thawed again if there are none."""
        gateway.process.signal(signal.SIGSTOP)
        if site.total(site.verify()[1], "open") > 0:
            return True
        gateway.process.signal(signal.SIGCONT)
        return False

    wait_until(stands_behind_its_ledger, "records that the ledger does not have yet")
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
        return sum(consumer.get_watermark_offsets(TopicPartition(site.topic, n), timeout=60)[1] for n in (0, 1))
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
    names = topic_names(site.kafka.bootstrap)
    assert site.topic in names
    assert f"{site.topic}-ledger" not in names
    status, said = site.command()
    assert status == ExitStatus.CONFIG
    assert "writes no ledger" in said
