"""Consumers that settings name are watched: what they owe is a metric, and a problem once it is old."""

import contextlib
import re
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from config.errors import ExitStatus
from config.settings import Settings
from gateway.admin.errors import AdminMissingError, AdminRetriableError
from gateway.admin.model import Group, Member, Offsets, TopicPartition
from gateway.admin.watch import GroupWatch, TopicLag, lag_problems
from gateway.base.metrics import Metrics
from tests.command_line import Cli
from tests.waiting import until

PLACES = (TopicPartition("t", 0), TopicPartition("t", 1))


class FakeAdmin:
    """Kafka with one group, ``reader``, that has committed 10 of each partition; its records are ``age_s`` old."""

    def __init__(self) -> None:
        self.member = True
        self.end = 10
        self.age_s: float | None = 3600.0
        self.error: Exception | None = None
        self.closed = 0
        self.shown = True
        self.problems: dict[TopicPartition, str] = {}

    def group(self, name: str) -> Group:
        if self.error is not None:
            raise self.error
        if name != "reader":
            raise AdminMissingError("nobody knows it")
        members = (Member("m", "billing-1", "/h", None, PLACES),) if self.member else ()
        return Group(name, "classic", "Stable" if members else "Empty", "range", 1, 0, 50, members)

    def committed(self, _name: str) -> Offsets:
        return Offsets(dict.fromkeys(PLACES, 10) if self.shown else {})

    def topics(self, names: Iterable[str]) -> tuple[Any, ...]:
        return tuple(SimpleNamespace(name=name) for name in names if self.shown)

    def log_ends(self, places: Iterable[TopicPartition]) -> Offsets:
        told = dict.fromkeys(places, self.end) if self.shown else {}
        return Offsets({place: end for place, end in told.items() if place not in self.problems}, self.problems)

    def log_starts(self, places: Iterable[TopicPartition]) -> Offsets:
        return Offsets(dict.fromkeys(places, 0))

    def record_times(self, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        if self.age_s is None:
            raise AdminRetriableError("no right to read")
        return {place: round((time.time() - self.age_s) * 1000) for place in offsets}

    def close(self) -> None:
        self.closed += 1


def watch_of(*groups: str) -> tuple[GroupWatch, FakeAdmin, Metrics]:
    settings = Settings.model_validate({"admin": {"watch_groups": groups or ("reader",), "watch_interval": "1s"}})
    metrics, admin = Metrics(settings), FakeAdmin()
    return GroupWatch(settings, metrics, connect=lambda _settings: admin), admin, metrics


async def test_what_a_group_owes_is_a_metric() -> None:
    watch, admin, metrics = watch_of()
    assert metrics.consumer_lag_records.read() == {}
    admin.end = 25
    await watch.look()
    assert metrics.consumer_lag_records.read() == {("reader", "t", "0"): 15, ("reader", "t", "1"): 15}
    assert metrics.consumer_lag_seconds.read()["reader", "t"] == pytest.approx(3600, abs=60)
    admin.end = 10
    await watch.look()
    assert metrics.consumer_lag_records.read() == {("reader", "t", "0"): 0, ("reader", "t", "1"): 0}
    assert metrics.consumer_lag_seconds.read() == {("reader", "t"): 0}
    assert list(watch.problems()) == []


async def test_a_consumer_that_stopped_is_a_problem_and_a_young_lag_none() -> None:
    watch, admin, _ = watch_of()
    admin.end, admin.age_s = 25, 10
    await watch.look()
    await watch.look()
    assert list(watch.problems()) == []
    admin.age_s = 600
    await watch.look()
    (problem,) = watch.problems()
    assert (problem.id, problem.severity, problem.subject) == ("consumer-lag", "warning", "reader t")
    text = re.sub(r"for 6\d\d s", "for 600 s", problem.text)  # time goes on meanwhile
    assert text == "30 records of topic t wait for group reader, for 600 s: member billing-1 commits nothing."
    assert "gateway groups describe reader" in problem.check
    admin.member = False
    await watch.look()
    assert [one.text.rpartition(": ")[2] for one in watch.problems()] == ["nobody is in the group."]
    assert watch.facts()["failure"] is None


async def test_without_the_right_to_read_the_time_since_it_began_to_lag_counts() -> None:
    watch, admin, metrics = watch_of()
    admin.end, admin.age_s = 25, None
    await watch.look()
    assert metrics.consumer_lag_seconds.read() == {("reader", "t"): 0}
    watch._behind_since["reader", "t"] -= 400
    await watch.look()
    assert metrics.consumer_lag_seconds.read()["reader", "t"] == pytest.approx(400, abs=30)
    assert len(list(watch.problems())) == 1
    admin.end = 10
    await watch.look()
    assert not watch._behind_since


async def test_a_group_that_kafka_does_not_know_is_no_failure_and_not_well() -> None:
    watch, admin, metrics = watch_of("other", "reader")
    admin.end, admin.age_s = 25, 1
    for _ in range(3):
        assert list(watch.problems()) == [], "it may be about to begin"
        await watch.look()
    assert {group for group, *_ in metrics.consumer_lag_records.read()} == {"reader"}
    assert metrics.consumer_look_failures.child().value == 0
    (problem,) = watch.problems()
    assert (problem.id, problem.subject) == ("consumer-unwatched", "other")
    assert problem.text == "The lag of group other is unknown: nobody knows it."


async def test_a_kafka_that_does_not_say_is_told_and_asked_anew() -> None:
    watch, admin, metrics = watch_of()
    await watch.look()
    admin.error = AdminRetriableError("Broker 1 did not answer.")
    for _ in range(3):
        assert metrics.consumer_lag_records.read()
        await watch.look()
    assert metrics.consumer_lag_records.read() == metrics.consumer_lag_seconds.read() == {}, "no longer known"
    assert (metrics.consumer_look_failures.child().value, admin.closed) == (3, 3)
    (problem,) = watch.problems()
    assert (problem.id, problem.text) == (
        "consumer-unwatched",
        "The lag of consumers is unknown: Broker 1 did not answer.",
    )
    admin.error = None
    await watch.look()
    assert list(watch.problems()) == []
    admin.error = ZeroDivisionError("a defect")
    await watch.look()
    assert metrics.consumer_look_failures.child().value == 4


async def test_it_looks_by_itself_until_it_is_stopped() -> None:
    watch, admin, metrics = watch_of()
    admin.end = 25
    await watch.start()
    await until(metrics.consumer_lag_records.read, "a look")
    await watch.stop(0)
    assert admin.closed == 1
    assert metrics.consumer_lag_records.read() == {}
    await watch.stop(0)


def test_records_that_were_deleted_unread_are_a_problem_at_once() -> None:
    lost = TopicLag("g", "t", 5, 7, 1.0, "lost records", 1, "c")
    fine = TopicLag("g", "u", 0, 0, 0.0, "caught up", 1)
    (problem,) = lag_problems([lost, fine], 300)
    assert problem.text == "7 records of topic t were deleted before group g read them (retention)."


@pytest.mark.parametrize("member", [True, False])
async def test_a_group_whose_topics_may_not_be_seen_is_not_well(member: bool) -> None:
    """Kafka leaves its offsets out without a word; where it has members, what they read is told all the same."""
    watch, admin, _ = watch_of()
    admin.shown, admin.member = False, member
    for _ in range(2):
        await watch.look()
        assert list(watch.problems()) == [], "it may have committed nothing yet"
    await watch.look()
    [problem] = watch.problems()
    assert (problem.id, problem.severity, problem.subject) == ("consumer-unwatched", "warning", "reader")
    assert ("or are gone: t" if member else "it shows no topic") in problem.text
    admin.shown = True
    await watch.look()
    assert list(watch.problems()) == []


async def test_a_lag_that_is_unknown_is_not_0() -> None:
    """A broker that leads a partition may have joined after the connection was made, which then never learns of it."""
    watch, admin, metrics = watch_of()
    admin.problems = {PLACES[1]: "its leader, broker 4, is not registered"}
    for looks in range(1, 4):
        assert list(watch.problems()) == []
        await watch.look()
        assert admin.closed == looks, "the next look connects again"
    assert metrics.consumer_lag_records.read() == {("reader", "t", "0"): 0}
    assert metrics.consumer_lag_seconds.read() == {}
    (problem,) = watch.problems()
    assert problem.text == "The lag of group reader is unknown: t/1: its leader, broker 4, is not registered."
    admin.problems = {}
    await watch.look()
    assert list(watch.problems()) == []


async def test_of_very_many_partitions_one_that_stands_still_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka is asked for the age of some of them only; the one that stopped has the fewest records."""
    monkeypatch.setattr("gateway.admin.looking._MOST", 1)
    watch, admin, metrics = watch_of()
    at = dict.fromkeys(PLACES, 10)
    ages = {PLACES[0]: 1.0, PLACES[1]: 3600.0}
    monkeypatch.setattr(admin, "committed", lambda _name: Offsets(dict(at)))
    now_ms = round(time.time() * 1000)
    monkeypatch.setattr(
        admin, "record_times", lambda asked: {place: now_ms - round(ages[place] * 1000) for place in asked}
    )
    monkeypatch.setattr(
        admin, "log_ends", lambda _places: Offsets({PLACES[0]: at[PLACES[0]] + 50, PLACES[1]: at[PLACES[1]] + 2})
    )
    for _ in range(2):
        await watch.look()
        at[PLACES[0]] += 5
    assert metrics.consumer_lag_seconds.read()["reader", "t"] == pytest.approx(3600, abs=60)


@pytest.mark.parametrize(("shown", "status"), [(True, ExitStatus.OK), (False, ExitStatus.INCOMPLETE)])
def test_a_group_whose_topics_may_not_be_seen_is_not_described_as_well(
    shown: bool, status: ExitStatus, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    admin = FakeAdmin()
    admin.shown, admin.member = shown, False
    monkeypatch.setattr("gateway.cli.kafka.groups.connected", lambda _: contextlib.nullcontext((Settings(), admin)))
    said = cli("groups", "describe", "reader", status=status).err
    assert ("group reader cannot be judged: it shows no topic" in said) is not shown


def test_a_consumer_that_has_never_committed_is_described_as_stopped(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    admin = FakeAdmin()
    monkeypatch.setattr(admin, "committed", lambda _name: Offsets())
    monkeypatch.setattr("gateway.cli.kafka.groups.connected", lambda _: contextlib.nullcontext((Settings(), admin)))
    said = cli("groups", "describe", "reader", "--sample", "1ms", status=ExitStatus.INCOMPLETE).out
    assert "stopped, commits nothing" in said
