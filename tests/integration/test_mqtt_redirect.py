"""A broker that says "use another server": followed where that makes sense, said where not, and never in a circle."""

import time
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from gateway.mqtt.session import Session
from tests.brokers import packets
from tests.brokers.data_path import MemoryPath, one_session
from tests.brokers.packets import Type
from tests.brokers.scripted import ScriptedBroker, publish
from tests.brokers.scripted_rules import Rules
from tests.waiting import until


def running(
    *brokers: ScriptedBroker, start: bool = True, **mqtt: Any
) -> AbstractAsyncContextManager[tuple[MemoryPath, Session]]:
    """A session that knows these brokers."""
    return one_session(*brokers, start=start, mqtt=mqtt)


def reference(*brokers: ScriptedBroker) -> bytes:
    return packets.server_reference(" ".join(f"127.0.0.1:{broker.port}" for broker in brokers))


@pytest.mark.parametrize("code", [0x9C, 0x9D])
async def test_a_redirection_at_the_connect_is_followed_at_once(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    async with ScriptedBroker() as target, ScriptedBroker(Rules(refuse_connect=code)) as first:
        first.rules.refusal_properties = reference(target)
        began = time.monotonic()
        async with running(first, reconnect_initial="30s", reconnect_max="30s") as (path, session):
            assert time.monotonic() - began < 10, "no wait before the other server"
            assert session.subscribed
            assert target.links
            publish(target, range(20))
            await until(lambda: len(path.log) == 20, "messages of the other server")
            assert path.metrics.mqtt_connect_failures.child("redirected").value == 1
    out = "".join(capsys.readouterr())
    assert "mqtt_redirected" in out
    assert ("mqtt.addresses" in out) is (code == 0x9D), "for good: that belongs into the settings"


async def test_a_redirection_of_a_running_session_is_followed_and_loses_nothing() -> None:
    """As EMQX empties a node for maintenance: DISCONNECT 0x9C with where to go, the session goes with it."""
    async with ScriptedBroker() as first, ScriptedBroker() as second, running(first) as (path, session):
        publish(first, range(30))
        await until(lambda: len(path.log) == 30, "messages of the first")
        path.producer.holding = True
        publish(first, range(30, 40))
        await until(lambda: session.unacked == 10, "ten are unacknowledged")
        link = first.link("gateway-0-0")
        second.sessions["gateway-0-0"] = moved = first.sessions.pop("gateway-0-0")  # one cluster's session
        second.groups, first.groups = first.groups, {}
        moved.link = link.session = None
        link.end(0x9C, reference(second))
        await until(lambda: bool(second.links) and session.subscribed, "it is at the other server")
        assert path.metrics.mqtt_disconnects.child("redirected").value == 1
        path.producer.release()
        publish(second, range(40, 60))
        await until(lambda: {int(value or b"") for value in path.values} == set(range(60)), "all sixty")
        await until(lambda: not moved.flying and not moved.queue, "all acknowledged")


async def test_a_redirection_between_connack_and_suback_is_followed() -> None:
    async with (
        ScriptedBroker() as target,
        ScriptedBroker(Rules(answers_subscribe=False)) as first,
        running(first, start=False) as (_, session),
    ):
        await until(lambda: bool(first.subscribes), "it subscribes")
        first.link("gateway-0-0").end(0x9C, reference(target))
        await until(lambda: bool(target.links) and session.subscribed, "it is at the other server")


async def test_servers_that_refer_to_each_other_are_not_served_at_full_speed() -> None:
    async with (
        ScriptedBroker(Rules(refuse_connect=0x9C)) as first,
        ScriptedBroker(Rules(refuse_connect=0x9C)) as second,
    ):
        first.rules.refusal_properties, second.rules.refusal_properties = reference(second), reference(first)
        async with running(first, start=False, reconnect_initial="300ms", reconnect_max="10s") as (_, session):
            began = time.monotonic()
            await until(lambda: "refer to each other" in (session.problem or ""), "the circle is noticed")
            await until(lambda: len(first.connects) + len(second.connects) >= 12, "it tries again, after waits")
            waited = time.monotonic() - began
            assert waited > 0.5, f"12 attempts are three rounds of four with two growing waits, not {waited:.2f} s"
            first.rules.refuse_connect = None
            await until(lambda: session.subscribed, "and comes in when one of them lets it")


async def test_a_target_that_cannot_be_reached_does_not_strand_the_session() -> None:
    """The address that sent us is asked again, also more often than redirections are followed in a row."""
    async with ScriptedBroker() as gone:
        dead = reference(gone)
    rules = Rules(refuse_connect=0x9C, refusal_properties=dead)
    async with ScriptedBroker(rules) as first, running(first, start=False) as (_, session):
        await until(lambda: len(first.connects) > 5, "it comes back again and again")
        rules.refuse_connect = None
        await until(lambda: session.subscribed, "it is let in")


@pytest.mark.parametrize(("properties", "redirect", "words"), [
    (b"", "follow", "it did not say which"),
    (packets.server_reference("169.254.169.254:80"), "follow", "no broker can be"),
    (packets.server_reference("127.0.0.1:1"), "configured", "none of mqtt.addresses"),
    (packets.server_reference("127.0.0.1:1"), "never", "mqtt.redirect"),
    (packets.server_reference(b"\xff\xfe"), "follow", ""),  # no UTF-8: whatever is said, it goes on
])  # fmt: skip
async def test_what_is_not_followed_is_said_and_the_session_stays(properties: bytes, redirect: str, words: str) -> None:
    async with ScriptedBroker() as broker, running(broker, redirect=redirect) as (_, session):
        for number in (1, 2):
            said: list[str] = []
            broker.link("gateway-0-0").end(0x9C, properties)

            def back(number: int = number, said: list[str] = said) -> bool:
                said.append(session.problem or "")
                return broker.session("gateway-0-0").connects > number and session.subscribed

            await until(back, "it comes back")
            assert any(words in problem for problem in said), said


async def test_a_second_configured_address_is_next_when_a_redirection_is_not_followed() -> None:
    async with (
        ScriptedBroker(Rules(refuse_connect=0x9C)) as first,
        ScriptedBroker() as second,
        running(first, second, redirect="never") as (_, session),
    ):
        assert session.subscribed
        assert second.links


async def test_in_3_1_1_there_is_no_redirection() -> None:
    """Its CONNACK has no properties, and its DISCONNECT is the client's alone."""
    async with ScriptedBroker(Rules(refuse_connect=3)) as broker, running(broker, start=False, protocol="3.1.1") as (
        path, session,
    ):  # fmt: skip
        await until(lambda: path.metrics.mqtt_connect_failures.child("unavailable").value >= 2, "server unavailable")
        broker.rules.refuse_connect = None
        await until(lambda: session.subscribed, "it is let in")
        broker.link("gateway-0-0").send(packets.packet(Type.DISCONNECT, 0, b""))
        await until(lambda: path.metrics.mqtt_disconnects.child("protocol").value == 1, "that is no 3.1.1")
        await until(lambda: session.subscribed, "and it comes back")
