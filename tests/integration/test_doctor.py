"""``gateway doctor`` at real brokers: MQTT of every kind, certificates, silence, EMQX."""

import asyncio
import contextlib
import datetime as dt
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.routing.filters import Subscription
from config.values.addresses import parse_mqtt_address
from gateway.local.embedded.mqtt import MqttBroker
from gateway.mqtt.login import Shown
from gateway.mqtt.probe import visit
from gateway.tools.doctor.model import Severity
from gateway.tools.doctor.mqtt_facts import Device
from tests.brokers import packets
from tests.brokers.emqx_rest import EmqxRest
from tests.brokers.mosquitto import Mosquitto
from tests.brokers.raw import RawClient
from tests.brokers.scripted import ScriptedBroker, publish
from tests.brokers.scripted_rules import Rules
from tests.doctor_looks import USERS, look, mqtt, settings_of
from tests.servers.authority import Authority
from tests.waiting import until


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
    context = authority.issue("server", left=left).server_context()
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


def test_every_transport_and_a_listener_that_wants_certificates_are_well(
    make_mosquitto: Callable[..., Mosquitto], tmp_path: Path
) -> None:
    broker = make_mosquitto(users=USERS, tls=True, require_certificate=True)
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


@pytest.mark.parametrize(("left", "severity", "says"), [
    (dt.timedelta(minutes=-30), Severity.FAIL, "expired"),
    (dt.timedelta(days=5), Severity.WARN, "expires in 5.0 days"),
    (dt.timedelta(days=100), Severity.OK, "good for 100 more days"),
])  # fmt: skip
def test_a_certificate_s_days_are_told(
    authority: Authority, tmp_path: Path, left: dt.timedelta, severity: Severity, says: str
) -> None:
    with tls_port(authority, left + dt.timedelta(minutes=5)) as port:
        tables = {"mqtt": {"addresses": [f"mqtts://localhost:{port}"], "tls": {"ca_file": str(authority.ca_file)}}}
        looked = look(tmp_path, "mqtt", **tables)
    found = looked.one("tls" if severity is Severity.FAIL else "certificate")
    assert found.severity is severity
    assert says in found.text
    if severity is Severity.FAIL:
        assert looked.one("login").severity is Severity.SKIPPED
        assert "(tls)" in looked.one("login").text


def test_an_authority_that_is_not_ours_is_no_expired_certificate(authority: Authority, tmp_path: Path) -> None:
    with tls_port(authority, dt.timedelta(days=100)) as port:
        ours = Authority(tmp_path / "ours").ca_file
        looked = look(
            tmp_path, "mqtt", mqtt={"addresses": [f"mqtts://localhost:{port}"], "tls": {"ca_file": str(ours)}}
        )
    assert "not accepted" in looked.one("tls").text
    assert "mqtt.tls.ca_file" in looked.one("tls").fix


def test_our_own_certificates_are_looked_at(authority: Authority, tmp_path: Path) -> None:
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
    assert "expires in 3.0 days" in looked.one("certificate", "kafka.tls").text


@pytest.mark.parametrize("kind", ["mosquitto", "hivemq"])
def test_a_broker_with_its_defaults_fails_for_it_lets_everybody_in(
    kind: str, make_mosquitto: Callable[..., Mosquitto], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Anonymous, a wrong password, and # for whoever asks. mosquitto tells its version to whom it lets read $SYS;
    HiveMQ does not tell it."""
    broker: Mosquitto | MqttBroker
    broker = make_mosquitto() if kind == "mosquitto" else request.getfixturevalue("mqtt_broker")
    looked = look(tmp_path, "mqtt", mqtt={"addresses": [f"mqtt://127.0.0.1:{broker.port}"]})
    for name in ("anonymous", "wrong_password", "everything"):
        assert looked.one(name).severity is Severity.FAIL, looked.of(*Severity)
        assert looked.one(name).fix
    assert looked.one("login").severity is Severity.OK
    assert looked.status == 77
    named = None
    if kind == "mosquitto":
        said = subprocess.run(["mosquitto", "-h"], capture_output=True, text=True, check=False).stdout
        named = said.partition("\n")[0].replace(" version ", " ")
        assert named.startswith("mosquitto ")
        assert named in looked.one("version").text
    assert looked.one("version").facts == {"version": "5", "broker": named}


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
        broker.rules.suback = lambda _request: b""
        looked = await asyncio.to_thread(look, tmp_path, "mqtt", mqtt=mqtt_table, options=options, timeout_s=2)
        assert looked.one("everything").severity is Severity.SKIPPED, "nobody knows whether it is refused"
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
            timeout_s=2,
            mqtt={"addresses": [f"mqtt://127.0.0.1:{one}", f"mqtts://127.0.0.1:{secured}"], "tls": {"verify": False}},
            kafka={"bootstrap_servers": [f"127.0.0.1:{other}", f"127.0.0.1:{third}"]},
            emqx={"url": f"http://127.0.0.1:{third}", "api_key": "key", "api_secret": "secret", "timeout": "2s"},
        )
    assert looked.report.seconds < 40, f"{looked.report.seconds:.1f} s with time-outs of 2 s"
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
        frozen = look(tmp_path, "mqtt", timeout_s=2, mqtt=mqtt(broker))
    finally:
        broker.thaw()
    assert frozen.one("login").facts["state"] == "frozen"
    broker.kill()
    dead = look(tmp_path, "mqtt", mqtt=mqtt(broker))
    assert dead.one("tcp").facts["state"] == "dead"
    assert dead.status == 69


async def test_emqx_tells_of_its_limits_drops_and_orphans(tmp_path: Path) -> None:
    async with ScriptedBroker(Rules(queue=10)) as broker, EmqxRest(broker) as rest:
        emqx = {"url": rest.url, "api_key": "key", "api_secret": "secret"}
        mqtt_table = {"addresses": [f"mqtt://127.0.0.1:{broker.port}"], "sessions": 1}
        async with RawClient(broker.port, "gateway-0-0", receive_maximum=5) as client:
            await client.subscribe("$share/gateway/devices/#")
            publish(broker, range(18))
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
