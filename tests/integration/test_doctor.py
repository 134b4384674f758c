"""``gateway doctor`` at real brokers: healthy ones, such as refuse, hang, let all in; and what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import re
import socket
import ssl
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import paho.mqtt.client as paho
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from paho.mqtt.enums import CallbackAPIVersion

from bridge.filters import Subscription
from config.addresses import parse_mqtt_address
from gateway.cli.main import main
from gateway.doctor.model import Severity
from gateway.doctor.mqtt_facts import Device
from gateway.embedded.kafka import KafkaCluster
from gateway.mqtt.login import Shown
from gateway.mqtt.probe import visit
from tests.brokers import packets
from tests.brokers.emqx_rest import EmqxRest
from tests.brokers.packets import Message
from tests.brokers.raw import RawClient
from tests.brokers.rig import until
from tests.brokers.scripted import ScriptedBroker
from tests.brokers.scripted_rules import Rules
from tests.chaos.fixtures import *  # noqa: F403
from tests.chaos.harness import to_toml, wait_until
from tests.doctor_looks import look, settings_of
from tests.servers.authority import Authority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gateway.embedded.mqtt import MqttBroker
    from tests.brokers.fixtures import MakeTopic
    from tests.brokers.kafka_backend import KafkaBackend
    from tests.brokers.mosquitto import Mosquitto
    from tests.chaos.fixtures import MakeGateway

USERS = {"gateway": "gateway-secret", "sensor": "sensor-secret"}
ACL = "user gateway\ntopic readwrite #\n\nuser sensor\ntopic readwrite devices/sensor/#\n"


def mqtt(broker: Mosquitto, password: str = USERS["gateway"], **more: Any) -> dict[str, Any]:
    usual = {"addresses": [f"mqtt://127.0.0.1:{broker.port}"], "username": "gateway", "password": password}
    return {**usual, **more}


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word, as a process does that was stopped."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield listening.getsockname()[1]


@contextlib.contextmanager
def tls_port(authority: Authority, left: dt.timedelta) -> Iterator[int]:
    """A TLS server with a certificate that is good for so long; it shakes hands and hangs up."""
    issued = authority.issue("server", left=left)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(16)
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    one, _ = listening.accept()
                    with one, contextlib.suppress(OSError), context.wrap_socket(one, server_side=True) as secured:
                        secured.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            ended.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


async def kafka_contents(bootstrap: str) -> dict[str, Any]:
    """Everything that a visitor could leave: topics, end offsets, groups."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        topics = sorted(await admin.list_topics())
        groups = await admin.list_consumer_groups()
        described = await admin.describe_topics(topics)
    finally:
        await admin.close()
    places = [TopicPartition(one["topic"], part["partition"]) for one in described for part in one["partitions"]]
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    await consumer.start()
    try:
        ends = await consumer.end_offsets(places)
    finally:
        await consumer.stop()
    return {"topics": topics, "groups": sorted(groups), "ends": ends}


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
    before = await kafka_contents(kafka.bootstrap)
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

    assert await kafka_contents(kafka.bootstrap) == before
    assert not (tmp_path / "data").exists()
    log = broker.log()
    visitors = set(re.findall(r"as (plant-doctor-\w+)", log))
    assert len(visitors) == 2, "a login, a look at the subscriptions"
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
    deadline = time.monotonic() + 10
    while not present:
        assert time.monotonic() < deadline, "no CONNACK"
        client.loop(0.1)
    client.disconnect()
    return present[0]


def test_a_wrong_password_is_named_and_so_is_a_wrong_one_at_kafka(
    make_mosquitto: Callable[..., Mosquitto], secured_kafka: KafkaCluster, tmp_path: Path
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


def test_every_transport_and_a_listener_that_wants_certificates_are_well(
    make_mosquitto: Callable[..., Mosquitto], tmp_path: Path
) -> None:
    broker = make_mosquitto(users=USERS, tls=True, require_certificate=True)
    assert broker.certificates is not None
    ports = {"mqtts": broker.tls_port, "wss": broker.wss_port, "mqtt": broker.port, "ws": broker.websocket_port}
    tls = {
        "ca_file": str(broker.ca_file),
        "certificate_file": str(broker.certificates.client_certificate),
        "key_file": str(broker.certificates.client_key),
    }
    addresses = [f"{scheme}://127.0.0.1:{port}" for scheme, port in ports.items()]
    looked = look(tmp_path, "mqtt", "config", mqtt=mqtt(broker, addresses=addresses, tls=tls))
    assert [check.severity for check in looked.all("login")] == [Severity.OK] * 4, looked.bad
    assert [check.severity for check in looked.all("tls")] == [Severity.OK] * 2
    assert len(looked.all("certificate")) == 3, "of both listeners, and our own"
    for name in ("anonymous", "wrong_password"):
        assert looked.one(name).severity is Severity.OK
        assert "without a client certificate" in looked.one(name).text


async def test_a_secured_cluster_is_well(backend: KafkaBackend, tmp_path: Path) -> None:
    topic, cluster = await backend.topic(2), backend.cluster
    assert cluster.certificates is not None
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


@pytest.mark.parametrize(
    ("left", "severity", "says"),
    [
        (dt.timedelta(minutes=-30), Severity.FAIL, "expired"),
        (dt.timedelta(days=5), Severity.WARN, "ends in 5 days"),
        (dt.timedelta(days=100), Severity.OK, "good for 100 more days"),
    ],
)
def test_a_certificate_s_days_are_told(tmp_path: Path, left: dt.timedelta, severity: Severity, says: str) -> None:
    authority = Authority(tmp_path / "authority")
    with tls_port(authority, left + dt.timedelta(minutes=5)) as port:
        tables = {"mqtt": {"addresses": [f"mqtts://localhost:{port}"], "tls": {"ca_file": str(authority.ca_file)}}}
        looked = look(tmp_path, "mqtt", timeout_s=2, **tables)
    found = looked.one("tls" if severity is Severity.FAIL else "certificate")
    assert found.severity is severity
    assert says in found.text
    if severity is Severity.FAIL:
        assert looked.one("login").severity is Severity.SKIPPED
        assert "(tls)" in looked.one("login").text


def test_an_authority_that_is_not_ours_is_no_expired_certificate(tmp_path: Path) -> None:
    with tls_port(Authority(tmp_path / "theirs"), dt.timedelta(days=100)) as port:
        ours = Authority(tmp_path / "ours").ca_file
        looked = look(
            tmp_path,
            "mqtt",
            timeout_s=2,
            mqtt={"addresses": [f"mqtts://localhost:{port}"], "tls": {"ca_file": str(ours)}},
        )
    assert "not accepted" in looked.one("tls").text
    assert "mqtt.tls.ca_file" in looked.one("tls").fix


def test_our_own_certificates_are_looked_at(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    tables: dict[str, Any] = {}
    for side, left in (("mqtt", dt.timedelta(minutes=-5)), ("kafka", dt.timedelta(days=3))):
        issued = authority.issue(side, left=left)
        tls = {
            "ca_file": str(authority.ca_file),
            "certificate_file": str(issued.certificate),
            "key_file": str(issued.key),
        }
        tables[side] = {"tls": tls}
    tables["mqtt"]["addresses"] = ["mqtts://127.0.0.1:8883"]
    tables["kafka"]["security"] = "SSL"
    looked = look(tmp_path, "config", **tables)
    assert "expired" in looked.one("certificate", "mqtt.tls").text
    assert looked.one("certificate", "mqtt.tls").severity is Severity.FAIL
    assert "ends in 3 days" in looked.one("certificate", "kafka.tls").text


@pytest.mark.parametrize("kind", ["mosquitto", "hivemq"])
def test_a_broker_that_lets_everybody_in_fails(
    kind: str, make_mosquitto: Callable[..., Mosquitto], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The default of both: anonymous, a wrong password, and # for whoever asks."""
    broker: Mosquitto | MqttBroker
    broker = make_mosquitto() if kind == "mosquitto" else request.getfixturevalue("mqtt_broker")
    looked = look(tmp_path, "mqtt", mqtt={"addresses": [f"mqtt://127.0.0.1:{broker.port}"]})
    for name in ("anonymous", "wrong_password", "everything"):
        assert looked.one(name).severity is Severity.FAIL, looked.of(*Severity)
        assert looked.one(name).fix
    assert looked.one("login").severity is Severity.OK
    assert looked.status == 77


def without_everything(request: packets.Subscribe) -> bytes:
    """A SUBACK that grants all but #."""
    codes = bytes(0x87 if text == "#" else options & 3 for text, options in request.filters)
    return packets.suback(request.packet_id, codes, v5=True)


async def test_a_device_that_may_read_everything_fails_and_one_that_may_not_is_fine(tmp_path: Path) -> None:
    options = {"device": Device("sensor", USERS["sensor"])}

    def check(connect: packets.Connect) -> int | None:
        known = connect.username in USERS and USERS[connect.username].encode() == connect.password
        return None if known else 0x86

    async with ScriptedBroker(Rules(check=check)) as broker:
        mqtt_table = {
            "addresses": [f"mqtt://127.0.0.1:{broker.port}"],
            "username": "gateway",
            "password": "gateway-secret",
        }
        looked = await asyncio.to_thread(look, tmp_path, "mqtt", mqtt=mqtt_table, options=options)
        assert looked.one("everything").severity is Severity.FAIL
        assert "the device's user" in looked.one("everything").text
        assert looked.one("anonymous").severity is Severity.OK
        broker.rules.suback = without_everything
        looked = await asyncio.to_thread(look, tmp_path, "mqtt", mqtt=mqtt_table, options=options)
        assert looked.one("everything").severity is Severity.OK
        assert looked.one("shared").severity is Severity.OK
        without = await asyncio.to_thread(look, tmp_path, "mqtt", mqtt=mqtt_table)
        assert without.one("everything").severity is Severity.SKIPPED
        assert "--device-user" in without.one("everything").text
        wrong = {"device": Device("sensor", "another")}
        refused = await asyncio.to_thread(look, tmp_path, "mqtt", mqtt=mqtt_table, options=wrong)
        assert refused.one("everything").severity is Severity.SKIPPED


def test_all_that_is_silent_is_frozen_and_costs_its_time_out_alone(tmp_path: Path) -> None:
    """Everything takes connections and says nothing: the whole examination is over soon, and says so of each."""
    with silent_port() as one, silent_port() as other, silent_port() as third, silent_port() as secured:
        looked = look(
            tmp_path,
            timeout_s=1,
            mqtt={"addresses": [f"mqtt://127.0.0.1:{one}", f"mqtts://127.0.0.1:{secured}"], "tls": {"verify": False}},
            kafka={"bootstrap_servers": [f"127.0.0.1:{other}", f"127.0.0.1:{third}"]},
            emqx={"url": f"http://127.0.0.1:{third}", "api_key": "key", "api_secret": "secret", "timeout": "1s"},
        )
    assert looked.report.seconds < 20, f"{looked.report.seconds:.1f} s with time-outs of 1 s"
    assert looked.one("login", f":{one}").facts["state"] == "frozen"
    assert looked.one("tls", f":{secured}").facts["state"] == "frozen"
    for port in (other, third):
        assert looked.one("login", f":{port}").facts["state"] == "frozen"
        assert looked.one("tcp", f":{port}").severity is Severity.OK
    assert looked.one("api").severity is Severity.FAIL
    assert looked.status == 69


def test_a_frozen_mqtt_broker_is_told_from_a_dead_one(make_mosquitto: Callable[..., Mosquitto], tmp_path: Path) -> None:
    broker = make_mosquitto(users=USERS)
    broker.freeze()
    try:
        frozen = look(tmp_path, "mqtt", timeout_s=1, mqtt=mqtt(broker))
    finally:
        broker.thaw()
    assert frozen.one("login").facts["state"] == "frozen"
    broker.kill()
    dead = look(tmp_path, "mqtt", timeout_s=1, mqtt=mqtt(broker))
    assert dead.one("tcp").facts["state"] == "dead"
    assert dead.status == 69


class Relay:
    """Stands before a Kafka broker and swallows the requests of some kinds, as a broker does whose threads hang."""

    def __init__(self, port: int) -> None:
        self.port, self.target = port, 0
        self.swallowed: set[int] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self.target)
        answers = asyncio.ensure_future(self._pump(back, writer))
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(size)
                if struct.unpack_from(">h", request)[0] not in self.swallowed:
                    forth.write(struct.pack(">i", size) + request)
        except (EOFError, OSError):
            pass
        finally:
            answers.cancel()
            forth.close()
            writer.close()

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
        deadline = time.monotonic() + 30
        while [check.severity for check in looked.all("produce")] != [Severity.OK]:  # a new leader, told before it is
            assert time.monotonic() < deadline, looked.bad
            looked = await asyncio.to_thread(look, tmp_path, "kafka", **tables)
        relay.swallowed = {PRODUCE}
        looked = await asyncio.to_thread(look, tmp_path, "kafka", timeout_s=2, **tables)
        stalled = looked.one("produce")
        assert stalled.severity is Severity.FAIL
        assert stalled.facts["state"] == "stalled"
        assert stalled.facts["stalled"] == ["telemetry/0", "telemetry/1", "telemetry/2"]
        assert looked.one("login").severity is Severity.OK
        assert looked.one("leaders").severity is Severity.FAIL, "a leader that takes nothing is none"
        relay.swallowed = {DESCRIBE_CONFIGS}
        looked = await asyncio.to_thread(look, tmp_path, "kafka", timeout_s=2, **tables)
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


async def test_emqx_tells_of_its_limits_drops_and_orphans(tmp_path: Path) -> None:
    async with ScriptedBroker(Rules(queue=10)) as broker, EmqxRest(broker) as rest:
        emqx = {"url": rest.url, "api_key": "key", "api_secret": "secret"}
        mqtt_table = {"addresses": [f"mqtt://127.0.0.1:{broker.port}"], "sessions": 1}
        async with RawClient(broker.port, "gateway-0-0", receive_maximum=5) as client:
            await client.subscribe("$share/gateway/devices/#")
            for number in range(18):
                broker.publish(Message("devices/d", b"%d" % number, 1, publisher="d"))
            async with RawClient(broker.port, "gateway-7-0"):
                pass
            looked = await asyncio.to_thread(look, tmp_path, "emqx", "mqtt", emqx=emqx, mqtt=mqtt_table)
    assert looked.one("drops").severity is Severity.WARN
    assert looked.one("drops").facts["dropped"] == {"gateway-0-0": 3}
    assert looked.one("orphans").facts["orphans"] == ["gateway-7-0"]
    assert looked.one("nodes").severity is Severity.OK
    queue = looked.one("queue")
    assert queue.severity is Severity.WARN
    assert queue.facts["bears_per_second"] == 10 / 5
    assert [check.severity for check in looked.all("window")] == [Severity.WARN, Severity.WARN], "by MQTT and by REST"


async def test_a_visit_says_what_the_broker_grants_and_lets_its_session_go() -> None:
    """The window is the smaller one of both; the expiry what was asked for; the session is gone at once."""
    settings = settings_of(mqtt={"receive_maximum": 500}).mqtt
    async with ScriptedBroker(Rules(max_inflight=32)) as broker:
        address = parse_mqtt_address(f"mqtt://127.0.0.1:{broker.port}")
        shown = Shown(None, None)
        found = await asyncio.to_thread(visit, settings, address, "visitor", shown, timeout_s=5)
        assert found.welcome
        assert found.limits["receive_maximum"] == 32
        filters = (Subscription("$share/look/devices/#", 1),)
        found = await asyncio.to_thread(visit, settings, address, "visitor", shown, filters=filters, timeout_s=5)
        assert found.granted == [1]
        await until(lambda: "visitor" not in broker.sessions, "its session is gone")
