"""``gateway doctor`` at a real Kafka, a real MQTT broker beside: well, refusing, stalled; what stays behind."""

import asyncio
import contextlib
import json
import re
import struct
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import paho.mqtt.client as paho
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from paho.mqtt.enums import CallbackAPIVersion

from bridge.kafka.login import KafkaLogin
from bridge.kafka.session import open_connection
from config.settings import KafkaSettings
from gateway.cli.main import main
from gateway.local.embedded.kafka import KafkaCluster
from gateway.tools.doctor.model import Severity
from tests.brokers.fixtures import MakeTopic
from tests.brokers.kafka_backend import KafkaBackend
from tests.brokers.mosquitto import Mosquitto
from tests.brokers.secured import SecuredKafka
from tests.brokers.topics import admin_client
from tests.chaos.fixtures import MakeGateway
from tests.doctor_looks import ACL, USERS, look, mqtt
from tests.servers.playing import PlayedServer
from tests.toml_text import to_toml
from tests.waiting import wait_until


async def kafka_contents(bootstrap: str, own: Iterable[str]) -> tuple[set[Any], dict[TopicPartition, int]]:
    """What a visitor could leave: topics and groups, of which those of earlier tests may go meanwhile; and the end
    offsets of its own topics."""
    async with admin_client(bootstrap) as admin:
        found = {*await admin.list_topics(), *await admin.list_consumer_groups()}
    places = [TopicPartition(name, number) for name in own for number in range(3)]
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    await consumer.start()
    try:
        return found, await consumer.end_offsets(places)
    finally:
        await consumer.stop()


async def test_healthy_brokers_are_all_well_and_nothing_stays_behind(
    make_mosquitto: Callable[..., Mosquitto],
    kafka: KafkaCluster,
    make_topic: MakeTopic,
    tmp_path: Path,
    unique: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the command, as an operator runs it: every check of MQTT and Kafka is ok, or skipped with a reason."""
    broker = make_mosquitto(users=USERS, acl=ACL)
    topics = {name: await make_topic(f"{unique}-{name}", partitions=3) for name in ("records", "dead", "ledger")}
    config = tmp_path / "gateway.toml"
    config.write_text(
        to_toml(
            {
                "instance": "plant",
                "data_dir": str(tmp_path / "data"),
                "workers": 1,
                "mqtt": mqtt(broker),
                "kafka": {"bootstrap_servers": [kafka.bootstrap]},
                "dead_letter": {"topic": topics["dead"]},
                "ledger": {"topic": topics["ledger"]},
                "routes": [{"name": "t", "filters": ["devices/#"], "topic": topics["records"]}],
            }
        )
    )
    before, ends_before = await kafka_contents(kafka.bootstrap, topics.values())
    arguments = ["doctor", "--config", str(config), "--json", "--only", "mqtt", "--only", "kafka", "--only", "config"]
    status = await asyncio.to_thread(main, arguments)
    report = json.loads(capsys.readouterr().out)
    wrong = [check for check in report["checks"] if check["severity"] in {"FAIL", "warn"}]
    # Kafka of one node makes topics by itself, as its default is; the shared one is not ours to change.
    assert [check["name"] for check in wrong if check["name"] != "auto_create"] == [], wrong
    assert status == 0 == report["status"]
    assert report["schema"] == 1
    assert report["counts"]["ok"] > 25
    made = {check["name"] for check in report["checks"] if check["severity"] == "ok"}
    assert made >= {
        "routes", "identity", "dns", "tcp", "login", "version", "shared", "qos", "window", "session_expiry",
        "packet_size", "retain", "anonymous", "wrong_password", "produce", "topics", "leaders",
        "replicas", "replication", "leader_balance", "controller", "quorum", "request_size", "message_size", "log_dirs",
    }  # fmt: skip
    (produce,) = (check for check in report["checks"] if check["name"] == "produce")
    assert produce["facts"]["partitions"] == 9, "each partition was asked, through a produce request"

    after, ends_after = await kafka_contents(kafka.bootstrap, topics.values())
    assert after - before == set()
    assert ends_after == ends_before
    assert not (tmp_path / "data").exists()
    log = broker.log()
    visitors = set(re.findall(r"as (plant-doctor-\w+)", log))
    assert len(visitors) == 3, "a login, a look at the subscriptions, a look at the version"
    for visitor in visitors:
        wait_until(
            lambda visitor=visitor: f"Client {visitor} disconnected." in broker.log(), f"{visitor} says farewell"
        )
    subscribed = re.findall(r"(plant-doctor-\w+) \d (\S+)", log)
    assert subscribed
    assert all(not name.startswith("$share/gateway/") for _, name in subscribed), "never in the gateway's own group"
    assert not any(has_session(broker.port, visitor) for visitor in visitors)


def has_session(port: int, client_id: str) -> bool:
    """Whether a client that comes back with this id finds a session."""
    present: list[bool] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5)
    client.username_pw_set("gateway", USERS["gateway"])
    client.on_connect = lambda _client, _data, flags, _reason, _properties: present.append(flags.session_present)
    client.connect("127.0.0.1", port, clean_start=False)
    deadline = time.monotonic() + 60
    while not present:
        assert time.monotonic() < deadline, "no CONNACK"
        client.loop(0.1)
    client.disconnect()
    return present[0]


def test_a_wrong_password_is_named_and_so_is_a_wrong_one_at_kafka(
    make_mosquitto: Callable[..., Mosquitto], secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    broker = make_mosquitto(users=USERS)
    looked = look(
        tmp_path,
        "mqtt",
        "kafka",
        mqtt=mqtt(broker, "secret-that-is-wrong"),
        kafka={
            "bootstrap_servers": [secured_kafka.sasl_bootstrap],
            "security": "SASL_PLAINTEXT",
            "sasl": {"username": "gateway", "password": "secret-that-is-wrong"},
        },
    )
    logins = looked.all("login")
    assert [check.severity for check in logins] == [Severity.FAIL, Severity.FAIL]
    assert "refused us as 'gateway'" in logins[0].text
    assert "mqtt.password" in logins[0].fix
    assert "refuses the gateway as 'gateway'" in logins[1].text
    assert looked.status == 77
    assert looked.one("version").severity is Severity.SKIPPED
    assert "login" in looked.one("version").text
    assert looked.one("topics").severity is Severity.SKIPPED
    assert looked.one("anonymous").severity is Severity.OK, "that is told although we are not let in"
    assert not [check for check in looked.report.checks if "secret-that-is-wrong" in f"{check}"]


async def test_a_secured_cluster_is_well(backend: KafkaBackend, tmp_path: Path) -> None:
    topic, cluster = await backend.topic(2), backend.cluster
    looked = await asyncio.to_thread(
        look,
        tmp_path,
        "kafka",
        kafka={
            "bootstrap_servers": [cluster.sasl_tls_bootstrap],
            "security": "SASL_SSL",
            "tls": {"ca_file": str(cluster.certificates.ca_file)},
            "sasl": {"username": "gateway", "password": "gateway-secret"},
            "topics": {"create": True},
        },
        routes=[{"name": "one", "filters": ["one/#"], "topic": topic}],
    )
    assert not looked.of(Severity.FAIL)
    for name in ("dns", "tcp", "tls", "certificate", "login", "produce", "controller", "request_size", "log_dirs"):
        assert looked.one(name).severity is Severity.OK, looked.of(*Severity)
    assert looked.one("produce").facts["partitions"] == 2


async def test_a_secured_connection_is_closed_when_its_event_loop_ends(backend: KafkaBackend) -> None:
    certificates = backend.cluster.certificates
    host, _, port = backend.cluster.sasl_tls_bootstrap.partition(":")
    settings = KafkaSettings.model_validate(
        {
            "bootstrap_servers": [backend.cluster.sasl_tls_bootstrap],
            "security": "SASL_SSL",
            "tls": {"ca_file": str(certificates.ca_file)},
            "sasl": {"username": "gateway", "password": "gateway-secret"},
        }
    )

    async def open_and_close() -> asyncio.Transport:
        connection = await open_connection(host, int(port), client_id="test", **KafkaLogin(settings).options())
        transport: asyncio.Transport = connection._writer.transport._ssl_protocol._transport
        connection.close()  # and nobody waits for it
        return transport

    transport = await asyncio.to_thread(asyncio.run, open_and_close())
    assert transport._sock is None  # type: ignore[attr-defined]


class Relay:
    """Stands before a Kafka broker and swallows the requests of some kinds, as a broker does whose threads hang."""

    def __init__(self, port: int) -> None:
        self.target = 0
        self.swallowed: set[int] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._server = PlayedServer(self._carry, port=port)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result(10)
        return self

    def __exit__(self, *_error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self.target)
        answers = asyncio.ensure_future(self._pump(back, writer))
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(size)
                if struct.unpack_from(">h", request)[0] not in self.swallowed:
                    forth.write(struct.pack(">i", size) + request)
        finally:
            answers.cancel()
            forth.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)


PRODUCE, DESCRIBE_CONFIGS = 0, 32


async def test_a_broker_that_answers_logins_and_takes_no_records_is_stalled(
    make_topic: MakeTopic, free_ports: Callable[[int], list[int]], tmp_path: Path, unique: str
) -> None:
    (port,) = free_ports(1)
    settings = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with KafkaCluster(settings=settings) as cluster, Relay(port) as relay:
        relay.target = int(cluster.bootstrap.rpartition(":")[2])
        await make_topic("telemetry", partitions=3, cluster=cluster)
        tables = {
            "kafka": {"bootstrap_servers": [f"127.0.0.1:{port}"], "topics": {"create": True}},
            "dead_letter": {"topic": f"{unique}-dead"},
        }
        looked = await asyncio.to_thread(look, tmp_path, "kafka", **tables)
        deadline = time.monotonic() + 60
        while [check.severity for check in looked.all("produce")] != [Severity.OK]:  # a new leader, told before it is
            assert time.monotonic() < deadline, looked.bad
            looked = await asyncio.to_thread(look, tmp_path, "kafka", **tables)
        relay.swallowed = {PRODUCE}
        looked = await asyncio.to_thread(look, tmp_path, "kafka", **tables)
        stalled = looked.one("produce")
        assert stalled.severity is Severity.FAIL
        assert stalled.facts["state"] == "stalled"
        assert stalled.facts["stalled"] == ["telemetry/0", "telemetry/1", "telemetry/2"]
        assert looked.one("login").severity is Severity.OK
        assert looked.one("leaders").severity is Severity.FAIL, "a leader that takes nothing is none"
        relay.swallowed = {DESCRIBE_CONFIGS}
        looked = await asyncio.to_thread(look, tmp_path, "kafka", **tables)
        assert looked.one("produce").severity is Severity.OK
        assert looked.one("min_insync").severity is Severity.SKIPPED, "who does not tell is not accused"


async def test_a_right_that_is_missing_is_named_with_user_and_topic(backend: KafkaBackend, tmp_path: Path) -> None:
    topic, hidden = await backend.topic(2), await backend.topic()
    await backend.forbid(topic)
    await backend.hide(hidden)
    looked = await asyncio.to_thread(
        look,
        tmp_path,
        "kafka",
        kafka={
            "bootstrap_servers": [backend.cluster.sasl_bootstrap],
            "security": "SASL_PLAINTEXT",
            "sasl": {"username": "gateway", "password": "gateway-secret"},
            "topics": {"create": True},
        },
        routes=[
            {"name": "one", "filters": ["one/#"], "topic": topic},
            {"name": "two", "filters": ["two/#"], "topic": hidden},
        ],
    )
    refused = [check for check in looked.all("produce") if check.severity is Severity.FAIL]
    assert len(refused) == 1
    assert "user 'gateway'" in refused[0].text
    assert f"{topic}/0, 1" in refused[0].text
    assert looked.one("topics", hidden).severity is Severity.FAIL
    assert looked.status == 77


async def test_beside_a_running_gateway_nothing_is_disturbed_and_its_word_comes_first(
    make_mosquitto: Callable[..., Mosquitto], kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    broker = make_mosquitto(users=USERS)
    gateway = make_gateway(broker.port, kafka.bootstrap, unique, mqtt=mqtt(broker), ledger={"topic": f"{unique}-l"})

    def work() -> tuple[int, dict[str, Any]]:
        gateway.start()
        status, text = gateway.command("doctor", "--json")
        return status, json.loads(text)

    status, report = await asyncio.to_thread(work)
    checks = {(check["group"], check["name"]): check for check in report["checks"]}
    assert checks["running", "process"]["severity"] == "ok"
    assert checks["running", "ready"]["severity"] == "ok", report
    assert checks["kafka", "produce"]["severity"] == "ok"
    assert checks["config", "identity"]["facts"]["cluster_id"] == checks["kafka", "identity"]["facts"]["cluster_id"]
    assert status == 0, [check for check in report["checks"] if check["severity"] == "FAIL"]
    assert not gateway.events("mqtt_disconnected"), "its sessions are its own"
    assert gateway.status()["ledger"]["received"] == 0, "no look is taken for a message"
