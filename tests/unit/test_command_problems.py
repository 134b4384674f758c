"""What the status page says is wrong with commands, and how long."""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from bridge.commands.command import State
from bridge.commands.model import Status, StatusRecord
from bridge.commands.reading import BadCommandError
from bridge.dead_letters.reading import LoggedRecord, Place
from bridge.ledger_topic.intervals import LedgerIntervals
from bridge.produce.dispatch import NO_CHAINS
from bridge.wire import DeadLetterReason
from config.settings import Settings
from config.tables.commands import CommandSettings
from gateway.base.metrics import Metrics
from gateway.base.problem import Problem
from gateway.components import commanding
from gateway.components.commanding import Commanding, CommandRunner
from gateway.components.send_counts import SendCounts
from tests.unit.fake_kafka import FakeKafka, FakeProducer
from tests.waiting import until

NOW_NS = 1_000_000_000_000_000


class Link:
    client_id, connected_ns, room, outstanding = "gateway-0-commands", None, 0, 0
    problem: str | None = "Connection refused."


SWITCHES = CommandSettings(name="switches", topics=("commands",), status_topic="statuses", max_waiting=2)


def make(
    producer: Callable[[], Any],
    commands: CommandSettings = SWITCHES,
    settings: Settings | None = None,
    mqtt: object = None,
) -> CommandRunner:
    settings = settings or Settings(commands=(commands,))
    metrics, intervals, made, stored = Metrics(settings), LedgerIntervals(), [], []  # type: ignore[var-annotated]
    counts = SendCounts(metrics, NO_CHAINS, intervals, lambda _batch: [], lambda *letter: stored.append(letter))
    worker = SimpleNamespace(
        settings=settings, metrics=metrics, kafka=SimpleNamespace(login=None, counts=counts), mqtt=mqtt,
        ledger_log=SimpleNamespace(intervals=intervals), made=made, stored=stored,
    )  # fmt: skip
    link: Any = Link()
    return CommandRunner(cast("Any", worker), commands, link, producer, lambda _: None, lambda *it: made.append(it))


@pytest.fixture
async def runner() -> CommandRunner:
    return make(lambda: None)


def problems(runner: CommandRunner) -> dict[str, Problem]:
    return {problem.id: problem for problem in runner.view.problems()}


def give(runner: CommandRunner, count: int) -> None:
    runner.dispatcher.assign(("commands", 0), None, ())
    now_ms = time.time_ns() // 1_000_000
    runner.dispatcher.take(
        [LoggedRecord(Place("commands", 0, at), now_ms, b"pump-7", b"on", ()) for at in range(count)]
    )


async def test_all_is_well(runner: CommandRunner) -> None:
    assert problems(runner) == {}


async def test_partitions_that_are_not_read_are_a_problem_that_names_the_busiest_device(runner: CommandRunner) -> None:
    give(runner, 2)
    problem = problems(runner)["commands-paused"]
    assert "1 of 1 partitions are not read" in problem.text
    assert "pump-7 (2)" in problem.text


async def test_a_refused_right_is_told_for_five_minutes(runner: CommandRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    runner.dispatcher.refused_ns = NOW_NS
    monkeypatch.setattr(commanding.time, "monotonic_ns", lambda: NOW_NS + 299_000_000_000)
    assert "devices/${device}/req/${subject}" in problems(runner)["commands-not-allowed"].check
    monkeypatch.setattr(commanding.time, "monotonic_ns", lambda: NOW_NS + 301_000_000_000)
    assert problems(runner) == {}


async def test_commands_that_kafka_deleted_are_a_problem_for_a_quarter_of_an_hour(
    runner: CommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(runner, 1)
    monkeypatch.setattr(commanding.time, "monotonic_ns", lambda: NOW_NS)
    runner.missed(("commands", 0), 1, 40)
    monkeypatch.setattr(commanding.time, "monotonic_ns", lambda: NOW_NS + 899_000_000_000)
    assert problems(runner)["commands-deleted-unread"].severity == "critical"
    monkeypatch.setattr(commanding.time, "monotonic_ns", lambda: NOW_NS + 901_000_000_000)
    assert "commands-deleted-unread" not in problems(runner)


async def test_a_defect_of_what_writes_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody learns why commands wait: no other task awaits the writers'."""

    def defect() -> None:
        raise TypeError("a defect")

    runner = make(defect)
    monkeypatch.setattr(runner, "_group", SimpleNamespace(is_alive=True))
    place = Place("commands", 0, 1)
    error = BadCommandError(DeadLetterReason.MISSING_VALUE, "no device")
    runner._letters.bury(LoggedRecord(place, 0, b"", b"on", ()), error, lambda: None)
    assert cast("Any", runner._worker).made == [("switches", error.reason, error, "commands")]
    runner._sink.write(0, StatusRecord("c1", place, "r", "d", Status.SENT, False, 1, None), lambda _offset: None)
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    await asyncio.sleep(0)  # the callbacks of their ends
    told = sorted(one.text for one in runner.view.problems())
    for text, part in zip(told, ("dead letters", "statuses"), strict=True):
        assert f"{part} cannot be written. A defect: TypeError('a defect')" in text


async def test_a_dead_letter_of_a_command_is_counted_shown_and_logged_once_kafka_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = "gateway-dead-letters"
    kafka = FakeKafka(topic, 1)
    kafka.topic("statuses", 1)
    producer = FakeProducer(kafka, 1, [topic, "statuses"])
    await producer.start()
    runner = make(lambda: producer)
    monkeypatch.setattr(runner, "_group", SimpleNamespace(is_alive=True))
    worker = cast("Any", runner._worker)
    counted = worker.metrics.dlq_records.child("missing_value")
    runner.dispatcher.assign(("commands", 0), None, ())
    with capture_logs() as logs:
        runner.dispatcher.take([LoggedRecord(Place("commands", 0, 7), 0, None, b"x" * 100_000, ())])
        await until(lambda: runner.dispatcher.account.finished[Status.REFUSED], "it is finished")
    (line,) = [one for one in logs if one["event"] == "command_finished"]
    assert (line["place"], line["status"]) == ("commands/0:7", Status.REFUSED)
    assert (counted.value, len(kafka.topics[topic].records())) == (1, 2), "of one in two parts the last is counted"
    assert [(name, reason) for name, reason, *_ in worker.made] == worker.stored == [("switches", "missing_value")]


async def test_an_account_that_does_not_balance_is_a_problem(runner: CommandRunner) -> None:
    give(runner, 1)
    runner.dispatcher.account.states[State.SENT] += 1
    assert "(-1)" in problems(runner)["commands-imbalance"].text


async def test_a_connection_that_is_away_is_a_problem() -> None:
    worker = cast("Any", SimpleNamespace(link=Link(), runners=()))
    (problem,) = Commanding.problems(worker)
    assert (problem.id, problem.severity) == ("commands-disconnected", "critical")
    assert "Connection refused." in problem.text
    worker.link.connected_ns = 1
    assert list(Commanding.problems(worker)) == []
