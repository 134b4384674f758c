"""Which server a session goes to: the configured ones in turn, and redirections within bounds."""

import pytest

from config.values.addresses import parse_mqtt_address
from gateway.mqtt.servers import MAX_HOPS, Redirection, Servers

A, B = "mqtt://a.example:1883", "mqtt://b.example:1884"
SECOND = 1_000_000_000


def servers(*addresses: str, policy: str = "follow") -> Servers:
    return Servers([parse_mqtt_address(text) for text in addresses or (A, B)], policy)  # type: ignore[arg-type]


def to(reference: str, code: int = 0x9C) -> Redirection:
    return Redirection(code, reference)


def test_addresses_are_tried_in_turn_and_kept_while_they_work() -> None:
    ours = servers()
    assert str(ours.current()) == A
    ours.subscribed(0)
    ours.connection_ended(5 * SECOND)
    assert str(ours.current()) == A, "an ordinary end is no reason to go elsewhere: the session is there"
    ours.next_after_failure()
    assert str(ours.current()) == B
    ours.next_after_failure()
    assert str(ours.current()) == A
    assert not ours.only
    assert servers(A).only


@pytest.mark.parametrize(("reference", "address"), [
    ("c.example", "mqtt://c.example:1883"),  # what it leaves out is as here
    ("c.example:2883", "mqtt://c.example:2883"),
    ("[2001:db8::7]:2883", "mqtt://[2001:db8::7]:2883"),
    ("10.0.0.7", "mqtt://10.0.0.7:1883"),
    ("mqtt://c.example:2883", "mqtt://c.example:2883"),
    ("mqtts://c.example", "mqtts://c.example:8883"),
    ("c.example:x 10.0.0.7:1883 d.example", "mqtt://10.0.0.7:1883"),  # the first that can be used
    (" \t c.example ", "mqtt://c.example:1883"),
])  # fmt: skip
def test_a_reference_is_followed(reference: str, address: str) -> None:
    ours = servers(A)
    assert ours.redirect(to(reference)) is None
    assert str(ours.current()) == address


@pytest.mark.parametrize(("reference", "why"), [
    *((text, "it did not say which") for text in ("", "   ")), ("a.example", "which is where we are"),
    *((text, "cannot be read") for text in ("user:secret@c.example", "c.example:0", "c.example/path")),
    *((text, "cannot be read") for text in ("http://c.example", "c..example", "\x00")),
    *((text, "which is this machine") for text in ("127.0.0.1:1883", "localhost", "[::1]:1883")),
    *((text, "no broker can be") for text in ("0.0.0.0:1883", "[::]", "224.0.0.1", "169.254.169.254:80")),
    *((text, "no broker can be") for text in ("[fe80::1]", "255.255.255.255")),
    ("ws://c.example", "another transport"),
    (" ".join(["x:y"] * 16) + " c.example", "cannot be read"),  # it is not searched for ever
])  # fmt: skip
def test_a_reference_that_makes_no_sense_is_not_followed(reference: str, why: str) -> None:
    ours = servers(A)
    objection = ours.redirect(to(reference))
    assert why in objection
    assert "secret" not in objection
    assert str(ours.current()) == A


def test_encryption_is_never_given_up() -> None:
    ours = servers("mqtts://a.example:8883")
    assert "not encrypted" in (ours.redirect(to("mqtt://c.example:1883")) or "")
    assert ours.redirect(to("c.example:8884")) is None
    assert str(ours.current()) == "mqtts://c.example:8884"


def test_a_broker_on_this_machine_may_name_this_machine() -> None:
    assert servers("mqtt://127.0.0.1:1883").redirect(to("127.0.0.1:1884")) is None


def test_configured_goes_to_configured_addresses_alone_and_never_nowhere() -> None:
    ours = servers(policy="configured")
    assert "none of mqtt.addresses" in (ours.redirect(to("c.example")) or "")
    assert ours.redirect(to("c.example b.example:1884")) is None
    assert str(ours.current()) == B
    never = servers(policy="never")
    assert "never" in (never.redirect(to("b.example:1884")) or "")
    assert str(never.current()) == A


def test_servers_that_refer_to_each_other_are_left_after_three_hops() -> None:
    ours = servers(A)
    names = ["c.example", "d.example"]
    for hop in range(MAX_HOPS):
        ours.subscribed(hop * SECOND)
        ours.connection_ended(hop * SECOND + 1)
        assert ours.redirect(to(names[hop % 2])) is None
    assert "refer to each other" in (ours.redirect(to("e.example")) or "")
    ours.next_after_failure()
    assert str(ours.current()) == A
    ours.waited()
    assert ours.redirect(to("c.example")) is None, "after a wait they are followed again"


def test_a_connection_that_held_makes_the_next_redirection_the_first_again() -> None:
    ours = servers(A)
    for hop in range(10):
        assert ours.redirect(to(f"c{hop}.example")) is None
        ours.subscribed(hop * 100 * SECOND)
        ours.connection_ended(hop * 100 * SECOND + 10 * SECOND)


def test_a_redirected_session_stays_where_it_is_until_that_fails() -> None:
    ours = servers()
    ours.redirect(to("c.example"))
    ours.subscribed(0)
    ours.connection_ended(SECOND)
    assert ours.current().host == "c.example"
    ours.next_after_failure()
    assert str(ours.current()) == A, "back to the one that sent us"
    ours.next_after_failure()
    assert str(ours.current()) == B


def test_each_address_is_tried_once_before_a_wait() -> None:
    ours = servers()
    assert ours.next_after_failure(), "the second was not tried yet"
    assert not ours.next_after_failure(), "both were"
    assert not ours.next_after_failure()
    ours.waited()
    assert ours.next_after_failure()
    assert not servers(A).next_after_failure()
    ours.waited()
    ours.redirect(to("c.example"))
    assert not ours.next_after_failure(), "two that refer to an address that is gone must not be asked without a wait"


def test_sessions_begin_at_different_addresses_and_go_round() -> None:
    begun = [Servers([parse_mqtt_address(text) for text in (A, B)], place=place) for place in range(3)]
    assert [str(one.current()) for one in begun] == [A, B, A]
    begun[1].next_after_failure()
    assert str(begun[1].current()) == A
