"""How sessions prove themselves to an MQTT broker: passwords and certificates that change, tokens that expire."""

import asyncio
import contextlib
import datetime as dt
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from config.values.secret_files import FileSecret
from gateway.base.lifecycle import StopVerb
from gateway.mqtt import renewal
from gateway.mqtt.errors import MqttRefusedError
from gateway.mqtt.login import Login
from gateway.mqtt.renewal import Renewals
from gateway.mqtt.session import Session
from gateway.mqtt.session_state import SessionState
from tests.brokers import packets
from tests.brokers.client import Client
from tests.brokers.data_path import MemoryPath, make_settings
from tests.brokers.mosquitto import Mosquitto
from tests.brokers.packets import Connect
from tests.brokers.scripted import ScriptedBroker, publish
from tests.brokers.scripted_rules import Rules
from tests.servers.authority import Authority
from tests.servers.token_source import MadeTokens
from tests.waiting import until

FAST = {"reconnect_initial": "20ms", "reconnect_max": "50ms"}
TOKEN = {"value": "comes from the test's own source"}


def numbered(prefix: str = "token") -> Any:
    numbers = itertools.count(1)
    return lambda: f"{prefix}-{next(numbers)}"


class Expiring:
    """Takes tokens that have not expired and are not on the list of refused ones; ends connections with their token,
    as EMQX does. ``ended`` counts those; ``away`` is how many sessions were without connection at a time."""

    def __init__(self, broker: ScriptedBroker, tokens: MadeTokens, lifetime_s: float) -> None:
        self.broker = broker
        self.lifetime_s = lifetime_s
        self.first_seen: dict[str, float] = {}
        self.ended = 0
        self.refused: set[str] = set()
        self.known = tokens.made
        self.shown: list[str] = []
        broker.rules.check = self.check

    def check(self, connect: Connect) -> int | None:
        token = (connect.password or b"").decode()
        self.shown.append(token)
        began = self.first_seen.setdefault(token, time.monotonic())
        if token not in self.known or token in self.refused or time.monotonic() - began > self.lifetime_s:
            return 0x86
        return None

    async def watch(self) -> None:
        while True:
            moment = time.monotonic()
            for link in list(self.broker.links):
                if link.connect is None or link.transport.is_closing():
                    continue
                token = (link.connect.password or b"").decode()
                if time.monotonic() - self.first_seen.get(token, time.monotonic()) > self.lifetime_s:
                    self.ended += 1
                    link.end(0xA0)
            await asyncio.sleep(0.01)
            self.lifetime_s += max(0.0, time.monotonic() - moment - 0.1)  # no token ends while the machine stands still

    @property
    def away(self) -> int:
        return sum(session.link is None for session in self.broker.sessions.values())


@contextlib.asynccontextmanager
async def running(
    broker: ScriptedBroker | Mosquitto,
    tokens: MadeTokens | None = None,
    *,
    clients: int = 1,
    scheme: str = "mqtt",
    **mqtt: Any,
) -> AsyncIterator[tuple[MemoryPath, list[Session]]]:
    """Started sessions and their renewals; stopped at the end, the account checked."""
    proof = {"token": TOKEN} if tokens is not None else {}
    addresses = [f"{scheme}://127.0.0.1:{broker.port}"]
    table = {"addresses": addresses, "username": "gateway", "sessions": clients, **FAST, **proof, **mqtt}
    settings = make_settings(mqtt=table)
    login = Login(settings.mqtt, tokens)
    async with MemoryPath(settings, login) as path:
        sessions = [path.session(n, client_id=f"gateway-0-{n}") for n in range(clients)]
        renewals = Renewals(login, lambda: sessions, path.metrics)
        try:
            await asyncio.wait_for(asyncio.gather(*(one.start() for one in sessions), renewals.start()), 60)
            yield path, sessions
        finally:
            deadline_ns = time.monotonic_ns() + 120_000_000_000
            await asyncio.gather(*(one.stop(deadline_ns) for one in [*sessions, renewals]))
        path.check()


def check_all(path: MemoryPath, count: int) -> list[int]:
    """Everything once; in the order of Kafka."""
    found = [int(value or b"") for value in path.values]
    assert [number for number, times in Counter(found).items() if times > 1] == []
    assert sorted(found) == list(range(count))
    return found


def check_order(path: MemoryPath, count: int) -> None:
    """Everything once, and each device's messages in order."""
    found = check_all(path, count)
    devices: defaultdict[int, list[int]] = defaultdict(list)
    for number in found:
        devices[number % 10].append(number)
    assert all(numbers == sorted(numbers) for numbers in devices.values())


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "CHECK_S", 0.1)
    monkeypatch.setattr(renewal, "_RETRY_S", 0.05)
    monkeypatch.setattr(renewal, "SPREAD_S", 0.05)


# --- tokens ---


async def test_sessions_are_renewed_one_at_a_time_before_their_token_ends() -> None:
    """Four sessions, four tokens of 3 s, under load: none is ended by the broker; nothing lost, copied, swapped."""
    lifetime_s = 3.0
    tokens = MadeTokens(numbered(), lifetime_s)
    async with ScriptedBroker(Rules(strategy="hash_clientid")) as broker:
        expiring = Expiring(broker, tokens, lifetime_s + 0.2)
        watching = asyncio.create_task(expiring.watch())
        async with running(broker, tokens, clients=4) as (path, _):
            assert len(broker.connects) == 4
            count, most_away = 0, 0
            while len(tokens.made) < 4:
                tokens_before = len(tokens.made)
                await tokens.current()  # a source renews by itself
                for _ in range(20):
                    publish(broker, [count])
                    count += 1
                    most_away = max(most_away, expiring.away)
                    await asyncio.sleep(0.001)
                assert len(tokens.made) - tokens_before <= 1
            await until(lambda: len(path.values) >= count, "all in Kafka")
            await until(lambda: not any(s.flying or s.queue for s in broker.sessions.values()), "all acknowledged")
            assert path.metrics.mqtt_renewals.child("token", "renewed").value >= 4 * 2
            assert path.metrics.mqtt_renewals.child("token", "postponed").value == 0
            assert path.metrics.mqtt_disconnects.child("administrative").value == 0
        watching.cancel()
        assert expiring.ended == 0, "the broker ended a connection whose token had expired"
        assert most_away <= 1, "two sessions were away at a time"
        assert broker.lost_messages == broker.dropped == []
        check_order(path, count)


@pytest.mark.usefixtures("_soon")
async def test_a_failed_renewal_keeps_the_connections() -> None:
    tokens = MadeTokens(numbered(), 0.2)
    async with ScriptedBroker() as broker, running(broker, tokens, clients=2) as (path, sessions):
        tokens.broken = "The identity provider is away."
        await until(lambda: tokens.asked > 10, "the token has ended, and another was asked for again and again")
        publish(broker, range(20))
        await until(lambda: len(path.values) == 20, "all in Kafka")
        assert len(broker.connects) == 2
        assert all(session.subscribed for session in sessions)
        tokens.broken = ""
        await tokens.current()
        await until(lambda: len(broker.connects) >= 4, "both are renewed")


@pytest.mark.usefixtures("_soon")
async def test_a_renewal_waits_until_everything_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "SETTLE_S", 0.1)
    tokens = MadeTokens(numbered(), 60)
    async with ScriptedBroker() as broker, running(broker, tokens) as (path, (session,)):
        path.producer.holding = True
        publish(broker, range(10))
        await until(lambda: session.unacked == 10, "all received")
        tokens.renew()
        postponed = path.metrics.mqtt_renewals.child("token", "postponed")
        await until(lambda: postponed.value >= 2, "it was tried twice")
        assert len(broker.connects) == 1
        publish(broker, range(10, 20))
        await until(lambda: session.unacked == 20, "it reads again in between")
        path.producer.release()
        await until(lambda: len(broker.connects) == 2, "it is renewed")
        await until(lambda: session.subscribed, "it is back")
        assert path.ledger.returned == 0
        check_order(path, 20)


async def test_a_refused_token_is_replaced_once_and_at_once() -> None:
    tokens = MadeTokens(numbered(), 60)
    async with ScriptedBroker() as broker:
        expiring = Expiring(broker, tokens, 60)
        expiring.refused = {"token-1"}
        async with running(broker, tokens, reconnect_initial="1h", reconnect_max="1h") as (_, (session,)):
            assert session.subscribed
        assert expiring.shown == ["token-1", "token-2"]
        assert tokens.refusals == ["token-1"]


async def test_two_refused_tokens_end_the_start() -> None:
    tokens = MadeTokens(numbered("hunter2"), 60)
    async with ScriptedBroker() as broker:
        expiring = Expiring(broker, tokens, 60)
        expiring.refused = {"hunter2-1", "hunter2-2"}
        with capture_logs() as lines, pytest.raises(MqttRefusedError) as failure:
            async with running(broker, tokens):
                raise AssertionError("it must not start")
        assert expiring.shown == ["hunter2-1", "hunter2-2"]
        assert "mqtt.token" in str(failure.value)
        assert "hunter2" not in f"{failure.value} {lines}"


async def test_a_token_that_is_the_only_one_is_not_tried_twice() -> None:
    tokens = MadeTokens(lambda: "the one", None)
    tokens.refused = lambda _credential: None  # type: ignore[method-assign]
    async with ScriptedBroker() as broker:
        broker.rules.check = lambda _connect: 0x87
        with pytest.raises(MqttRefusedError):
            async with running(broker, tokens):
                raise AssertionError("it must not start")
        assert len(broker.connects) == 1


async def test_a_session_waits_for_the_first_token() -> None:
    tokens = MadeTokens(numbered(), 60)
    tokens.broken = "The identity provider is away."

    async def mend() -> None:
        await until(lambda: tokens.asked > 0, "it has asked in vain")
        tokens.broken = ""

    async with ScriptedBroker() as broker, asyncio.TaskGroup() as beside:
        beside.create_task(mend())
        with capture_logs() as lines:
            async with running(broker, tokens) as (path, (session,)):
                assert session.subscribed
                assert path.metrics.mqtt_connect_failures.child("token").value >= 1
        (line, *_) = [line for line in lines if line["event"] == "mqtt_connect_failed"]
        assert line["error"] == "There is no token to show to the MQTT broker: The identity provider is away."


@pytest.mark.parametrize("verb", [StopVerb.RESTART, StopVerb.RETIRE])
@pytest.mark.usefixtures("_soon")
async def test_a_stop_in_the_middle_of_a_renewal_loses_nothing(verb: StopVerb) -> None:
    tokens = MadeTokens(numbered(), 60)
    async with ScriptedBroker() as broker:
        async with running(broker, tokens, clients=2) as (path, sessions):
            path.verb = verb
            path.producer.holding = True
            publish(broker, range(20))
            await until(lambda: path.ledger.received == 20, "all received")
            tokens.renew()
            begun = [session._connection for session in sessions]
            await until(lambda: any(one is not None and one.stopping for one in begun), "it waits for Kafka")
            asyncio.get_running_loop().call_later(0.1, path.producer.release)
            began = time.monotonic()
        assert time.monotonic() - began < 60, "the stop waited for what had long been acknowledged"
        assert all(not session.flying for session in broker.sessions.values())
        assert len(broker.sessions) == (2 if verb is StopVerb.RESTART else 0)
        assert broker.lost_messages == []
        check_order(path, 20)


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.usefixtures("_soon")
async def test_renewals_on_mosquitto_lose_nothing(mosquitto: Mosquitto, clients: int) -> None:
    """A broker that is not ours, and takes any token: four renewals under load."""
    tokens = MadeTokens(numbered(), 60)
    async with running(mosquitto, tokens, clients=clients) as (path, sessions):
        count = 0
        renewed = path.metrics.mqtt_renewals.child("token", "renewed")
        with Client(mosquitto.port) as device:
            for number in range(1, 5):
                tokens.renew()
                back = number * clients
                while count < 10 * number or renewed.value < back or not all(one.subscribed for one in sessions):
                    await asyncio.to_thread(device.publish, f"devices/{count % 10}", b"%d" % count)
                    count += 1
        await until(lambda: len(path.values) >= count, "all in Kafka")
    if clients == 1:
        check_order(path, count)  # of several sessions its round robin keeps none
    else:
        check_all(path, count)


# --- passwords ---


async def test_a_password_changed_at_mosquitto_is_read_from_its_file(
    make_mosquitto: Callable[..., Mosquitto], tmp_path: Path
) -> None:
    file, device = tmp_path / "password", ("device", "d")
    file.write_text("first")
    broker = make_mosquitto(users={"gateway": "first", "device": "d"})
    async with running(broker, password=FileSecret("first", file)) as (path, (session,)):
        broker.change_users({"gateway": "second", "device": "d"})  # which ends the connection
        refused = path.metrics.mqtt_connect_failures.child("not_authorised")
        await until(lambda: refused.value >= 1, "the old password is refused")
        assert not session.subscribed
        with Client(broker.port, user=device) as client:
            await asyncio.to_thread(client.publish, "devices/1", b"0")
            file.write_text("second")
            await until(lambda: session.subscribed, "it is back")
            await asyncio.to_thread(client.publish, "devices/1", b"1")
        await until(lambda: len(path.values) == 2, "both in Kafka")
        check_order(path, 2)


# --- client certificates ---


def serials(broker: ScriptedBroker) -> set[str]:
    return {link.transport.get_extra_info("peercert")["serialNumber"] for link in broker.links}


async def test_a_broker_that_takes_the_login_back_at_once_stops_no_session(authority: Authority) -> None:
    """CONNACK and DISCONNECT in one read: the certificate of that connection is not to be had any more."""
    server = authority.issue("broker")
    async with (
        ScriptedBroker(tls=server.server_context()) as broker,
        running(broker, scheme="mqtts", tls={"ca_file": authority.ca_file}) as (_, (session,)),
    ):
        broker.rules.connack = packets.connack(properties=b"") + packets.disconnect(0x8B)
        broker.link("gateway-0-0").transport.abort()
        await until(lambda: len(broker.connects) >= 3, "it comes again")
        broker.rules.connack = None
        await until(lambda: session.state is SessionState.RUNNING, "it is taken")


async def test_an_expired_certificate_of_the_broker_is_said_to_be_that(authority: Authority) -> None:
    """And nobody is sent to look at ca_file."""
    server = authority.issue("broker", left=-dt.timedelta(minutes=5))
    async with ScriptedBroker(tls=server.server_context()) as broker:
        tls = {"ca_file": authority.ca_file}
        settings = make_settings(mqtt={"addresses": [f"mqtts://127.0.0.1:{broker.port}"], "tls": tls, **FAST})
        async with MemoryPath(settings, Login(settings.mqtt)) as path:
            session = path.session(0, client_id="gateway-0-0")
            starting = asyncio.create_task(session.start())
            try:
                await until(lambda: "has expired" in (session.problem or ""), "it is told")
                assert session.problem is not None
                assert "ca_file" not in session.problem
            finally:
                starting.cancel()
                await session.stop(time.monotonic_ns() + 10_000_000_000)


@pytest.mark.usefixtures("_soon")
async def test_client_certificates_are_replaced_before_they_end(authority: Authority) -> None:
    mine = authority.issue("gateway", left=dt.timedelta(minutes=3))  # of an hour: its end is near
    tls = {"ca_file": authority.ca_file, "certificate_file": mine.certificate, "key_file": mine.key}
    async with ScriptedBroker(tls=authority.issue("broker").server_context(authority.ca_file)) as broker:
        with capture_logs() as lines:
            async with running(broker, clients=3, scheme="mqtts", tls=tls) as (path, sessions):
                (old,) = serials(broker)
                await until(lambda: _said(lines, "mqtt_certificate_expires"), "its end is announced")
                assert len(broker.connects) == 3
                publish(broker, range(30))
                authority.issue("gateway", left=dt.timedelta(days=2))
                await until(lambda: len(broker.connects) == 6, "all are renewed")
                await until(lambda: all(session.subscribed for session in sessions), "all are back")
                (new,) = serials(broker)
                assert new != old
                await until(lambda: len(path.values) == 30, "all in Kafka")
                assert path.metrics.mqtt_renewals.child("certificate", "renewed").value == 3
        assert _said(lines, "tls_files_changed")


async def test_half_a_pair_of_files_does_not_harm(authority: Authority) -> None:
    """The certificate is there, its key is still to come: the last pair is used, and the worker lives."""
    mine = authority.issue("gateway")
    tls = {"ca_file": authority.ca_file, "certificate_file": mine.certificate, "key_file": mine.key}
    async with (
        ScriptedBroker(tls=authority.issue("broker").server_context(authority.ca_file)) as broker,
        running(broker, scheme="mqtts", tls=tls) as (_, (session,)),
    ):
        (old,) = serials(broker)
        key = mine.key.read_bytes()
        authority.issue("gateway")
        new_key = mine.key.read_bytes()
        mine.key.write_bytes(key)
        with capture_logs() as lines:
            broker.link("gateway-0-0").transport.abort()
            await until(lambda: len(broker.connects) == 2 and session.subscribed, "it is back")
        assert _said(lines, "tls_files_not_usable")
        assert serials(broker) == {old}
        mine.key.write_bytes(new_key)
        broker.link("gateway-0-0").transport.abort()
        await until(lambda: len(broker.connects) == 3 and session.subscribed, "it is back")
        assert serials(broker) != {old}


def _said(lines: list[Any], event: str) -> bool:
    return any(line["event"] == event for line in lines)
