"""Every message of the canary is received or lost, once; what comes later is late or a duplicate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.base.lookout_metrics import LEGS
from gateway.health.canary.account import CanaryAccount
from gateway.health.canary.problems import canary_problem

S = 1_000_000_000
TIMEOUT = 15 * S


def account() -> CanaryAccount:
    return CanaryAccount(TIMEOUT)


def on_leg(leg: str, failures: int, why: str = "") -> CanaryAccount:
    found = account()
    for _ in range(failures):
        number = found.send(0)
        found.advance(number, leg)  # type: ignore[arg-type]
        found.failed(number, why)
    return found


def said(found: CanaryAccount) -> tuple[str, str]:
    problem = canary_problem(found, "canary/gw", "gateway-canary", "15s")
    assert problem is not None
    assert (problem.id, problem.severity) == ("canary-failing", "critical")
    return problem.text, problem.check


def test_a_message_that_comes_back_in_time() -> None:
    found = account()
    number = found.send(100)
    assert found.success is None
    assert found.arrived(number, 100 + 5 * S) == 5 * S
    assert (found.success, found.received, found.waiting, found.failures) == (True, 1, 0, 0)
    assert found.expire(100 + TIMEOUT) == []


@pytest.mark.parametrize("leg", ["publish", "acknowledge", "kafka"])
def test_what_takes_too_long_is_lost_on_the_leg_it_has_come_to(leg: str) -> None:
    found = account()
    number = found.send(0)
    found.advance(number, leg)  # type: ignore[arg-type]
    assert found.expire(TIMEOUT - 1) == []
    (lost,) = found.expire(TIMEOUT)
    assert (lost.number, lost.leg) == (number, leg)
    assert found.lost[lost.leg] == 1
    assert found.success is False
    assert found.failed(number, "too late to say") is None


def test_what_arrives_after_it_was_called_lost_is_late_and_does_not_make_it_well() -> None:
    found = account()
    number = found.send(0)
    found.advance(number, "kafka")
    found.expire(TIMEOUT)
    assert found.arrived(number, TIMEOUT + 1) is None
    assert found.arrived(number, TIMEOUT + 2) is None
    assert (found.late, found.duplicates, found.received, found.success) == (1, 1, 0, False)


def test_nobody_knows_of_what_nobody_could_read() -> None:
    found = account()
    published, unpublished = found.send(0), found.send(0)
    found.advance(published, "kafka")
    found.advance(unpublished, "acknowledge")
    first, second = found.expire(TIMEOUT, unreadable="Kafka is away.")
    assert (first.leg, first.why) == ("read", "Kafka is away.")
    assert second.leg == "acknowledge", "this one never came so far"
    number = found.send(TIMEOUT)
    found.passed_over()
    found.advance(number, "kafka")
    (lost,) = found.expire(2 * TIMEOUT)
    assert (lost.leg, lost.why) == ("read", "it was sent before Kafka could be read")


@given(st.lists(st.sampled_from(["send", "ack", "fail", "arrive", "again", "wait"]), max_size=60))
def test_sent_is_received_lost_or_on_the_way_whatever_happens(events: list[str]) -> None:
    found, now_ns = account(), 0
    for event in events:
        now_ns += S
        last = found.sent - 1
        match event:
            case "send":
                found.send(now_ns)
            case "ack" if last >= 0:
                found.advance(last, "kafka")
            case "fail" if last >= 0:
                found.failed(last, "")
            case "arrive" if last >= 0:
                found.arrived(last, now_ns)
            case "again" if last >= 0:
                found.arrived(0, now_ns)
            case "wait":
                now_ns += 10 * S
                found.expire(now_ns)
            case _:
                pass
        assert found.sent == found.received + sum(found.lost.values()) + found.waiting
    found.expire(now_ns + TIMEOUT)
    assert found.waiting == 0


def test_one_failure_is_no_problem_and_a_success_ends_one() -> None:
    found = on_leg("kafka", 1)
    assert canary_problem(found, "a", "b", "15s") is None
    found = on_leg("kafka", 2)
    assert said(found)
    found.arrived(found.send(0), 1)
    assert canary_problem(found, "a", "b", "15s") is None


def test_each_leg_has_its_sentence_and_something_to_look_at() -> None:
    text, check = said(on_leg("publish", 2, "mqtt://b:1883 refused the connection."))
    assert text == (
        "The canary cannot publish to MQTT topic canary/gw (2 of its messages in a row): mqtt://b:1883 refused the "
        "connection."
    )
    assert "mqtt.addresses" in check
    text, check = said(on_leg("acknowledge", 3))
    assert "does not take the canary's messages to canary/gw (3 of its messages in a row): no acknowledgement" in text
    assert "canary.topic" in check
    text, _ = said(on_leg("acknowledge", 2, "it answers 0x87"))
    assert text.endswith("in a row): it answers 0x87.")
    text, check = said(on_leg("kafka", 2))
    assert "acknowledged by the MQTT broker, but not in Kafka topic gateway-canary within 15s" in text
    assert "spool" in check
    text, check = said(on_leg("read", 2, "Kafka is away."))
    assert "cannot read Kafka topic" in text
    assert text.endswith(": Kafka is away.")
    assert set(LEGS) == {"publish", "acknowledge", "kafka", "read"}
