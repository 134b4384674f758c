"""Simulated devices and their commands: what they do, and what they answer."""

import json
from collections import Counter

import pytest

from gateway.devices.commands import LATE_S, AnswerShares, Obedience


def test_a_device_does_what_it_is_told_and_says_so() -> None:
    device = Obedience(AnswerShares(), 1, "d")
    reply = device.obey("a", b'{"every": 5}')
    assert (reply.status, json.loads(reply.payload), reply.delay_s) == (200, {"every": 5}, 0)
    assert device.every == 5


@pytest.mark.parametrize(("status", "payload"), [
    *((400, payload) for payload in (b'{"every": 0}', b'{"every": "often"}', b'{"every": 1000000}')),
    *((200, payload) for payload in (b"", b"on", b"[1]", b"\xff", b'{"relay": 1}')),
])  # fmt: skip
def test_nonsense_is_refused_and_any_other_command_is_done(status: int, payload: bytes) -> None:
    device = Obedience(AnswerShares(), 1, "d")
    assert (device.obey("a", payload).status, device.every) == (status, 1)


def test_a_copy_gets_the_same_answer_and_changes_nothing() -> None:
    device = Obedience(AnswerShares(), 1, "d")
    first = device.obey("a", b'{"every": 5}')
    device.obey("b", b'{"every": 2}')
    assert device.obey("a", b'{"every": 5}') == first
    assert (device.every, device.received, device.copies) == (2, 2, 1)


def test_shares_of_bad_answers_are_kept() -> None:
    device = Obedience(AnswerShares(failures=0.2, late=0.1, silent=0.3), 1, "d")
    replies = [device.obey(str(number), b"") for number in range(4_000)]
    kinds = Counter((reply.status, reply.delay_s) for reply in replies)
    assert kinds[500, 0] == pytest.approx(800, rel=0.15)
    assert kinds[200, LATE_S] == pytest.approx(400, rel=0.15)
    assert kinds[None, 0] == pytest.approx(1_200, rel=0.15)
    assert kinds[200, 0] == pytest.approx(1_600, rel=0.15)
