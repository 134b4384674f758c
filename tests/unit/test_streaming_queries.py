"""When queries are ended, in which order, and what is told of it. Spark is played by fakes."""

import queue
import re
import signal
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from config.errors import ConfigError
from config.settings import Settings
from streaming import jvm
from streaming.errors import KafkaUnavailableError, StreamError, UnfinishedBatchError
from streaming.job import JobContext
from streaming.progress import Event
from streaming.runtime.queries import Mailbox, Pace, SparkEnded, Terminated, run_queries
from streaming.runtime.session import session_conf
from tests.batch_reports import batch_report
from tests.kinds import is_a
from tests.waiting import wait_until

PATIENCE_S = 60.0  # less than the shutdown_timeout that some must not wait for


class FakeQuery:
    """A query whose batches the test begins and ends; like Spark it reports its end through the mailbox."""

    def __init__(self, name: str, mailbox: Mailbox) -> None:
        self.name, self.id = name, uuid.uuid4()
        self.status = {"isTriggerActive": False}
        self.lastProgress: dict[str, Any] | None = None
        self.stops: list[bool] = []
        """For each stop, whether it hit a batch."""
        self._mailbox = mailbox
        self._failure: Exception | None = None

    def begin_batch(self) -> None:
        self.status = {"isTriggerActive": True}

    def commit(self, *, another_begins: bool = False) -> None:
        number = -1 if self.lastProgress is None else self.lastProgress["batchId"]
        self.status = {"isTriggerActive": another_begins}  # first: the new number is a reason to stop the query
        self.lastProgress = {"batchId": number + 1}

    def end(self, failure: Exception | None = None) -> None:
        self._failure = failure
        self._mailbox.put(Terminated(str(self.id)))

    def stop(self) -> None:
        self.stops.append(self.status["isTriggerActive"])
        if len(self.stops) == 1:
            self.end()

    def exception(self) -> Exception | None:
        return self._failure


class FakeSession:
    """As much of a SparkSession as ``run_queries`` touches."""

    def __init__(self) -> None:
        self.streams = self
        self.sparkContext = self
        self.master, self.applicationId = "local[2]", "local-1"
        self.listeners: list[object] = []

    def addListener(self, listener: object) -> None:  # noqa: N802 (Spark's name)
        self.listeners.append(listener)

    def removeListener(self, listener: object) -> None:  # noqa: N802 (Spark's name)
        self.listeners.remove(listener)


class Running:
    """``run_queries`` in a thread, with two fake queries."""

    def __init__(self, **settings: Any) -> None:
        self.mailbox: Mailbox = queue.SimpleQueue()
        self.table, self.windows = FakeQuery("silver", self.mailbox), FakeQuery("gold", self.mailbox)
        self.session = FakeSession()
        self.events: list[Event] = []
        self.outcome: BaseException | None = None
        self._settings = Settings(**{"shutdown_timeout": "10m", **settings})
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_until(lambda: self.events, "the queries are started", PATIENCE_S, 0.005)

    def _run(self) -> None:
        jobs: Any = (lambda *_: self.table, lambda *_: self.windows)
        session: Any = self.session
        try:
            run_queries(session, self._settings, jobs, JobContext(self.events.append), self.mailbox)
        except BaseException as error:  # noqa: BLE001 (handed to the test)
            self.outcome = error

    def signal(self) -> None:
        self.mailbox.put(signal.SIGTERM)

    def until_stopped(self, query: FakeQuery) -> None:
        wait_until(lambda: query.stops, f"{query.name} is stopped", PATIENCE_S, 0.005)

    def ended(self) -> BaseException | None:
        """What it raised, once it has ended."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the queries did not come to an end"
        assert not self.session.listeners, "the listener stayed"
        return self.outcome


@pytest.fixture
def running() -> Iterator[Running]:
    started = Running()
    yield started
    started.mailbox.put(SparkEnded(0))  # whatever a failed test left waiting
    started._thread.join(PATIENCE_S)


def test_the_start_is_told_with_the_queries_names(running: Running) -> None:
    (event,) = running.events
    assert (event.queries, event.master, event.application) == (("silver", "gold"), "local[2]", "local-1")


def test_it_ends_when_all_queries_have(running: Running) -> None:
    running.windows.end()
    running.table.end()
    assert running.ended() is None
    assert not running.table.stops


def test_a_batch_that_took_too_long_has_the_next_ones_read_fewer_records(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[object, int]] = []
    monkeypatch.setattr(jvm, "limit_rows", lambda _spark, query, most: limits.append((query, most)))
    running = Running(shutdown_timeout="50s")
    listener: Any = running.session.listeners[0]
    for rows, ms in ((1_000_000, 80_000), (500_000, 40_000), (100_000, 40_000)):
        report = batch_report(numInputRows=rows, durationMs={"triggerExecution": ms})
        listener.onQueryProgress(SimpleNamespace(progress=report))
    running.table.end()
    running.windows.end()
    assert running.ended() is None
    assert limits == [(running.table, 500_000)], "40 s fit in shutdown_timeout, and a small batch says nothing"


@pytest.mark.parametrize(
    ("batches", "limits"),
    [
        ([(1000, 40)], [500]),
        ([(1000, 1000), (100, 40)], [100, 100]),
        ([(1000, 80), (250, 20), (250, 2), (500, 1), (1000, 1)], [250, 250, 500, 1000, 1000]),
        ([(10, 60), (499, 60)], [1000, 1000]),
    ],
    ids=["as long as allowed", "not below 100,000", "twice at most, and never above the setting", "not full"],
)
def test_a_limit_follows_the_time_of_full_batches(batches: list[tuple[int, float]], limits: list[int]) -> None:
    pace, found = Pace(1_000_000, 20.0), []
    for thousands, seconds in batches:
        before = pace.limit
        assert pace.after(1000 * thousands, seconds) == (pace.limit != before)
        found.append(pace.limit // 1000)
    assert found == limits
    assert not Pace(20, 20.0).after(20, 60), "a smaller setting stays as it is"


@pytest.mark.parametrize("another_begins", [False, True])
def test_a_stop_waits_for_the_batch_each_query_is_in_and_not_for_the_next(
    running: Running, *, another_begins: bool
) -> None:
    running.table.begin_batch()
    running.signal()
    running.until_stopped(running.windows)
    assert running.windows.stops == [False]
    assert not running.table.stops, "a query was stopped in the middle of its batch"
    running.table.commit(another_begins=another_begins)
    assert running.ended() is None
    assert running.table.stops == [another_begins]


def test_a_second_signal_does_not_wait(running: Running) -> None:
    running.table.begin_batch()
    running.signal()
    running.until_stopped(running.windows)
    running.signal()
    outcome = is_a(UnfinishedBatchError, running.ended())
    assert "silver" in str(outcome)
    assert "gold" not in str(outcome)
    assert outcome.exit_status == 75
    assert running.table.stops == [True]


def test_a_batch_that_does_not_end_is_waited_for_until_the_deadline() -> None:
    running = Running(shutdown_timeout=timedelta(seconds=0.5))
    running.table.begin_batch()
    running.signal()
    assert isinstance(running.ended(), UnfinishedBatchError)


def test_what_one_query_failed_with_ends_the_others_and_is_told(running: Running) -> None:
    running.windows.end(RuntimeError("org.apache.kafka.common.errors.TimeoutException: no answer"))
    assert is_a(KafkaUnavailableError, running.ended()).query == "gold"
    assert running.table.stops == [False]
    assert not running.windows.stops


def test_a_failure_while_stopping_is_told(running: Running) -> None:
    running.table.begin_batch()
    running.signal()
    running.until_stopped(running.windows)
    running.table.end(RuntimeError("the disk broke"))
    assert "the disk broke" in str(is_a(StreamError, running.ended()))


@pytest.mark.parametrize("stopping", [False, True])
def test_a_jvm_that_is_gone_is_told(running: Running, stopping: bool) -> None:
    if stopping:
        running.table.begin_batch()
        running.signal()
    running.mailbox.put(SparkEnded(-9))
    problem = str(is_a(StreamError, running.ended()))
    assert "status -9" in problem
    heap = session_conf(Settings(), [], {}, submitted=False)["spark.driver.memory"]
    assert f"spark.driver.memory={heap}" not in problem, "what it has anyway"


def test_a_query_that_cannot_start_ends_those_that_did() -> None:
    mailbox: Mailbox = queue.SimpleQueue()
    first, session = FakeQuery("silver", mailbox), FakeSession()

    def refused(*_: object) -> FakeQuery:
        raise ConfigError("another checkpoint")

    jobs: Any = (lambda *_: first, refused)
    events: list[Event] = []
    with pytest.raises(ConfigError, match="another checkpoint"):
        run_queries(session, Settings(), jobs, JobContext(events.append), mailbox)  # type: ignore[arg-type]
    assert first.stops
    assert not session.listeners
    assert not events


def lives_of(name: str, failure: str, *commits: int) -> int:
    """How often one query is started that always ends with the same failure. ``commits`` are the lives, from 1 on, that
    end a batch before."""
    mailbox: Mailbox = queue.SimpleQueue()
    identity = uuid.uuid4()
    lives: list[FakeQuery] = []

    def job(*_: Any) -> Any:
        query = FakeQuery(name, mailbox)
        query.id = identity  # Spark's id of a query is its checkpoint's
        lives.append(query)
        if len(lives) in commits:
            query.commit()
        query.end(RuntimeError(failure))
        return query

    session: Any = FakeSession()
    with pytest.raises(StreamError, match=re.escape(failure.rpartition(": ")[2])):
        run_queries(session, Settings(), [job], JobContext(lambda _: None), mailbox)
    return len(lives)


def test_a_query_whose_source_has_got_new_columns_begins_anew_and_one_that_gets_nowhere_does_not() -> None:
    """Delta ends a query that reads a table when the table's columns change, and asks for it to be started again."""
    changed = "[DELTA_SCHEMA_CHANGED_WITH_VERSION] Detected schema change in version 7"
    assert lives_of("gold", changed, 1, 2) == 2, "the second life was at the same batch as the first"


def test_a_busy_machine_ends_no_job_and_a_python_that_never_starts_does(capsys: pytest.CaptureFixture[str]) -> None:
    """Spark gives a Python process ten seconds to start. A batch in between begins the count again."""
    assert lives_of("devices", "org.apache.spark.SparkException: Python worker failed to connect back.", 4) == 4 + 5
    assert "devices begins anew where it was: Python took more than 10 s" in capsys.readouterr().err
