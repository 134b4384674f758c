"""What is counted within the last minutes: a problem for each alert that counts the same, none for a single break."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from config.settings import RouteSettings, Settings
from gateway.base.metrics import Metrics
from gateway.base.problem import Problem
from gateway.base.vitals import Stalls
from gateway.health.counts import Counts
from gateway.health.model import SpoolView
from gateway.health.verdicts import problems
from tests.unit.test_health import LIMITS, WELL, S

REFUSED = ("orders", "unreachable", "true")


class Rig:
    """A worker's counters, looked at once a minute."""

    def __init__(self) -> None:
        route = RouteSettings(name="a", filters=("a/#",), topic="orders")
        self.metrics = Metrics(Settings(routes=(route,)))
        self.counts = Counts(self.metrics)
        self.now_ns = 1_000 * S
        self.counts.look(self.now_ns)

    def pass_by(self, minutes: int, then: Callable[[Metrics], None] = lambda _: None) -> None:
        for _ in range(minutes):
            self.now_ns += 60 * S
            then(self.metrics)
            self.counts.look(self.now_ns)

    def problems(self, **changes: object) -> list[Problem]:
        snapshot = replace(
            WELL,
            ten_minutes=self.counts.ten_minutes(),
            quarter=self.counts.quarter(),
            failing_ns=self.counts.failing_ns(self.now_ns, Stalls()),
            **changes,  # type: ignore[arg-type]
        )
        return list(problems(snapshot, LIMITS))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def batches(failed: int, sent: int) -> Callable[[Metrics], None]:
    def count(metrics: Metrics) -> None:
        metrics.kafka_send_failures.child(*REFUSED).value += failed
        metrics.kafka_batch_records.child().observe_many(10, sent)

    return count


CLOSED = {("closed",): 7, ("requested",): 100}
INTERCEPTED = {("mask", "passed"): 90, ("mask", "error"): 10, ("other", "passed"): 90}


@pytest.mark.parametrize(("family", "counts", "kind", "severity", "words", "minutes"), [
    (Metrics.ledger_messages, {("lost",): 7}, "messages-lost", "critical", "7 messages are lost", 15),
    (Metrics.mqtt_disconnects, {("taken_over",): 6}, "client-id-shared", "critical", "6 connections", 10),
    (Metrics.mqtt_disconnects, CLOSED, "mqtt-reconnecting", "warning", "7 MQTT connections ended", 10),
    (Metrics.kafka_renewal_failures, {(): 4}, "kafka-login-renewal-failing", "warning", "4 times", 15),
    (Metrics.intercepts, INTERCEPTED, "interceptor-errors", "warning", "mask failed on 10 of 100 records", 10),
])  # fmt: skip
def test_what_has_been_counted_is_told_and_forgotten(
    rig: Rig, family: Any, counts: dict[tuple[str, ...], int], kind: str, severity: str, words: str, minutes: int
) -> None:
    assert rig.problems() == []
    for labels, count in counts.items():
        rig.metrics.families[family.name].child(*labels).value += count
    rig.pass_by(1)
    [problem] = rig.problems()
    assert (problem.id, problem.severity) == (kind, severity)
    assert words in problem.text
    rig.pass_by(minutes - 2)
    assert [problem.id for problem in rig.problems()] == [kind]
    rig.pass_by(2)
    assert rig.problems() == []


def test_batches_that_fail_are_told_when_it_goes_on_and_not_after_one_election(rig: Rig) -> None:
    rig.pass_by(5, batches(0, 100))
    rig.pass_by(1, batches(60, 40))
    for _ in range(12):
        rig.pass_by(1, batches(0, 100))
        assert rig.problems() == []
    rig.pass_by(10, batches(10, 90))
    [problem] = rig.problems()
    assert problem.id == "produce-errors"
    assert "100 of 1000 batches" in problem.text


@pytest.mark.parametrize(("changes", "kind"), [
    ({"spool": SpoolView(10, 1000, 5, oldest_s=901.0)}, "spool-old"),
    ({"intervals_waiting": 11}, "ledger-not-written"),
    ({"half_closed": 21}, "sockets-pile-up"),
])  # fmt: skip
def test_what_stands_too_high(rig: Rig, changes: dict[str, object], kind: str) -> None:
    assert [problem.id for problem in rig.problems(**changes)] == [kind]


def test_little_of_each_is_nothing(rig: Rig) -> None:
    rig.pass_by(1, batches(1, 99))
    rig.metrics.mqtt_disconnects.child("taken_over").value += 1
    rig.metrics.mqtt_disconnects.child("closed").value += 5  # three in all for each of two sessions
    rig.metrics.intercepts.child("mask", "passed").value += 999
    rig.metrics.intercepts.child("mask", "error").value += 1
    spool = SpoolView(10, 1000, 5, oldest_s=899.0)
    assert rig.problems(spool=spool, intervals_waiting=10, half_closed=20) == []
