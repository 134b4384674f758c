"""When the other side is given up, decided from times and counts alone."""

from typing import Any

import pytest

from gateway.mqtt.keepalive import TRICKLE_BYTES, Keepalive, Verdict

SECOND = 1_000_000_000


class Line:
    """A connection as the keepalive sees it: each ``ping`` is an interval later."""

    def __init__(self, keepalive_s: float = 30.0) -> None:
        self.keepalive = Keepalive(keepalive_s)
        self.now_ns = 100 * SECOND
        self.state: dict[str, Any] = {
            "read_ns": self.now_ns, "received_bytes": 0, "pongs": 0, "unfinished": False, "paused": False
        }  # fmt: skip

    def ping(self) -> Verdict:
        self.now_ns += int(self.keepalive.interval_s * SECOND)
        verdict = self.keepalive.due(self.now_ns, **self.state)
        if verdict is Verdict.PING:
            self.keepalive.pings += 1
        return verdict

    def receive(self, size: int, *, finished: bool) -> None:
        self.now_ns += SECOND
        self.state["read_ns"] = self.now_ns
        self.state["received_bytes"] += size
        self.state["unfinished"] = not finished
        if finished:
            self.keepalive.packet_finished()


@pytest.mark.parametrize("before", [False, True])
def test_silence_after_a_ping_ends_it_whatever_came_before_the_ping(before: bool) -> None:
    line = Line()
    if before:
        line.receive(100, finished=True)
    assert [line.ping(), line.ping()] == [Verdict.PING, Verdict.SILENT]


def test_a_pause_of_reading_is_no_silence_nor_is_the_first_ping_after_it() -> None:
    line = Line()
    assert line.ping() is Verdict.PING
    line.state["paused"] = True
    assert [line.ping() for _ in range(5)] == [Verdict.PING] * 5
    line.state["paused"] = False
    assert [line.ping(), line.ping()] == [Verdict.PING, Verdict.SILENT]


def test_a_packet_that_gets_nowhere_is_stuck_after_a_whole_interval() -> None:
    line = Line()
    line.receive(10, finished=False)
    verdicts = []
    for _ in range(3):
        verdicts.append(line.ping())
        line.receive(2, finished=False)  # the answer to our ping, swallowed
    assert verdicts == [Verdict.PING, Verdict.PING, Verdict.STUCK]


@pytest.mark.parametrize(("size", "finished"), [(TRICKLE_BYTES, False), (20, True)], ids=["slow", "cut at every ping"])
def test_a_packet_that_gets_on_is_not(size: int, finished: bool) -> None:
    line = Line()
    for _ in range(10):
        line.receive(size, finished=finished)
        line.state["unfinished"] = True
        assert line.ping() is Verdict.PING


def test_a_server_may_shorten_the_interval_and_nothing_else() -> None:
    keepalive = Keepalive(30)
    assert keepalive.interval_s == 15
    assert not keepalive.shorten(0), "it does not mind"
    assert not keepalive.shorten(300), "we want to know sooner"
    assert not keepalive.shorten(30)
    assert keepalive.interval_s == 15
    assert keepalive.shorten(10)
    assert keepalive.interval_s == 5
