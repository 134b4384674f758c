"""All slots together: rolled in turn, rolled back, scaled, watched and stopped; and what the one port says of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from pydantic import SecretStr

from config.errors import ConfigError
from config.loading.load import Loaded
from config.settings import HttpSettings, MqttSettings, ServerTlsSettings, Settings
from gateway.base import reports
from gateway.base.lifecycle import StopRequest, StopVerb
from gateway.base.reload_plan import Wish
from gateway.http import asking
from gateway.http.answers import Answer
from gateway.supervisor import answers as answers_module
from gateway.supervisor import fleet as fleet_module
from gateway.supervisor.answers import FleetAnswers
from gateway.supervisor.cpu import worker_count
from gateway.supervisor.fleet import Fleet
from gateway.supervisor.metrics import SupervisorMetrics
from gateway.supervisor.process import Reloaded, WorkerProcess
from gateway.supervisor.reload import FleetReload
from gateway.supervisor.supervisor import Supervisor, _check_change
from tests.unit.test_fleet_status import worker as status_row
from tests.waiting import until


class ObedientWorker(WorkerProcess):
    """A worker without a process that does at once what it is told, unless the test has plans for it."""

    def __init__(self, slot: int, settings: Settings, role: str, spawner: Spawner) -> None:
        super().__init__(slot, settings)
        self.role = role
        self.spawner = spawner
        self.pid = (1 << 30) + len(spawner.made)  # no process has it
        self.signals: list[str] = []
        self.ignores: tuple[str, ...] = ()
        self.answers: dict[str, Any] | None = {}
        spawner.history.append(f"{slot} started as {role}")
        if settings.instance == "cold" and slot == spawner.cold_slot:
            self._take_message({"say": "failed", "sentence": "No such topic."})
            self.finish(69)
        else:
            marks, spawner.hangs_at = spawner.hangs_at, None
            if marks is not None:
                self.answers = None
            for mark in ["up", "warm"] if marks is None else marks:
                self._take_message({"say": mark})

    def go(self) -> None:
        if "ready" not in self.marks and self.answers is not None:
            self.spawner.history.append(f"{self.slot} goes")
            self._take_message({"say": "ready"})

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.left = True
        self.signals.append(number.name)
        if self.alive and number.name not in self.ignores:
            self.spawner.history.append(f"{self.slot} {number.name}")
            self._take_message({"say": "released"})
            if number is signal.SIGUSR1 and self.spawner.cannot_retire:
                self._take_message({"say": "stopped", "unacked": 7})
            self.finish(75 if number is signal.SIGUSR1 and self.spawner.cannot_retire else 0)

    def kill(self) -> None:
        self.spawner.history.append(f"{self.slot} killed")
        self.finish(-signal.SIGKILL)

    async def responds(self, timeout_s: float) -> bool:
        return self.answers is not None

    async def reload(self, step: str, settings: Settings | None, silence_s: float) -> Reloaded:
        self.spawner.history.append(f"{self.slot} {step}")
        return Reloaded(self.spawner.refuses.get((self.slot, step)), (f"{step} is remarkable",))

    async def ask(self, path: str, accept: str = "", timeout_s: float = 2.0) -> Answer | None:
        return None if self.answers is None else Answer(200, "", json.dumps(self.answers.get(path, {})))


class Spawner:
    """Starts obedient workers and writes down what happens, in order."""

    def __init__(self) -> None:
        self.made: list[ObedientWorker] = []
        self.history: list[str] = []
        self.known: set[int] = set()  # the data directory's slots
        self.cold_slot = -1
        self.refused_at = -1  # the system refuses a process then, once
        self.hangs_at: list[str] | None = None  # the next one says so much, and answers nothing
        self.cannot_retire = False
        self.refuses: dict[tuple[int, str], str] = {}  # by slot and step of a reload, with the reason

    async def spawn(self, slot: int, settings: Settings, role: str = "worker") -> ObedientWorker:
        if len(self.made) == self.refused_at:
            self.refused_at = -1
            raise BlockingIOError
        worker = ObedientWorker(slot, settings, role, self)
        self.made.append(worker)
        return worker

    def __iter__(self) -> Iterator[ObedientWorker]:
        return iter([worker for worker in self.made if worker.alive])

    def of(self, slot: int) -> ObedientWorker:
        """The living one of a slot."""
        (worker,) = [worker for worker in self if worker.slot == slot]
        return worker


@pytest.fixture
def spawner(monkeypatch: pytest.MonkeyPatch) -> Spawner:
    spawner = Spawner()
    monkeypatch.setattr(fleet_module, "slots", lambda _directory: set(spawner.known))
    monkeypatch.setattr(fleet_module.Backoff, "next_ns", lambda _self, _now: 1)
    return spawner


@pytest.fixture
async def fleet(spawner: Spawner, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Three workers, ready."""
    fleet = Fleet(spawner, Settings(data_dir=tmp_path))  # type: ignore[arg-type]
    fleet.start(3)
    await until(lambda: sum("ready" in worker.marks for worker in spawner) == 3, "three are ready")
    spawner.history.clear()
    yield fleet
    await fleet.stop(StopVerb.RESTART)


@pytest.fixture
async def watched(fleet: Fleet, spawner: Spawner, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    """Another one in its place, not started, which looks at once whether a worker answers."""
    await fleet.stop(StopVerb.RESTART)
    monkeypatch.setattr(fleet_module, "_PING_S", 0.01)
    spawner.history.clear()
    watched = Fleet(spawner, fleet.settings)  # type: ignore[arg-type]
    yield watched
    await watched.stop(StopVerb.RESTART)


async def test_rolled_one_after_the_other(fleet: Fleet, spawner: Spawner) -> None:
    assert await fleet.roll(fleet.settings) is None
    assert spawner.history == [
        f"{slot} {what}" for slot in range(3) for what in ("started as successor", "SIGTERM", "goes")
    ]


async def test_a_closing_slot_does_not_get_the_changed_settings(fleet: Fleet, spawner: Spawner, tmp_path: Path) -> None:
    """Without ${worker} in the client id it would take over the session of slot 0, and end it when it retires."""
    closing = spawner.of(1), spawner.of(2)
    after = Settings(data_dir=tmp_path, mqtt=MqttSettings(client_id="plant"))
    count = worker_count(after)
    assert await fleet.roll(after, count) is None
    assert (spawner.of(1), spawner.of(2)) == closing
    await fleet.scale(count)
    await until(lambda: not fleet.retiring, "two have retired")
    assert [worker.signals for worker in closing] == [["SIGUSR1"]] * 2
    assert [worker.settings.mqtt.client_id for worker in spawner] == ["plant"]


async def test_a_scaling_that_is_cancelled_goes_no_further(fleet: Fleet) -> None:
    scaling = asyncio.create_task(fleet.scale(1))
    await asyncio.sleep(0)  # it waits for the end of a slot's keeper
    scaling.cancel()
    await asyncio.wait([scaling])
    assert scaling.cancelled()
    assert not fleet.retiring


@pytest.mark.parametrize("refused", [False, True])
async def test_settings_that_fail_in_the_second_slot_are_taken_back_from_the_first(
    fleet: Fleet, spawner: Spawner, tmp_path: Path, refused: bool
) -> None:
    spawner.cold_slot, spawner.refused_at = 1, len(spawner.made) + 2 if refused else -1  # the first slot's way back
    before = spawner.of(1), spawner.of(2)
    assert await fleet.roll(Settings(instance="cold", data_dir=tmp_path)) == "worker 1: No such topic."
    await until(lambda: spawner.history[-1] == "0 goes", "the first slot has a worker again", 10)
    assert [slot.settings.instance for slot in fleet.slots.values()] == ["gateway"] * 3
    assert spawner.of(0).settings.instance == "gateway"
    assert (spawner.of(1), spawner.of(2)) == before, "these were not touched"


@pytest.mark.parametrize(("refused", "dry_run", "steps", "killed"), [
    ({}, False, ["prepare", "commit", "finish"], []),
    ({}, True, ["try", "discard"], []),
    ({(1, "prepare"): "No."}, False, ["prepare", "discard"], []),
    ({(1, "commit"): "No."}, False, ["prepare", "commit", "roll back"], []),
    ({(1, "commit"): "No.", (2, "roll back"): "Never."}, False, ["prepare", "commit", "roll back"], [2]),
    ({(1, "finish"): "Late."}, False, ["prepare", "commit", "finish"], []),
])  # fmt: skip
async def test_settings_are_taken_by_all_running_workers_or_by_none(
    fleet: Fleet,
    spawner: Spawner,
    refused: dict[tuple[int, str], str],
    dry_run: bool,
    steps: list[str],
    killed: list[int],
) -> None:
    spawner.refuses, before = refused, fleet.settings
    after = before.model_copy(update={"shutdown_timeout": timedelta(seconds=7)})
    reload = FleetReload(fleet, after)
    problem = await reload.run(dry_run=dry_run)
    assert [line for line in spawner.history if "killed" not in line] == [
        f"{slot} {step}" for step in steps for slot in range(3)
    ]
    assert [slot for slot in range(3) if f"{slot} killed" in spawner.history] == killed
    taken = steps[-1] == "finish"
    assert problem == (None if taken or dry_run else "No.")
    assert fleet.settings is (after if taken else before)
    assert all(slot.settings is fleet.settings for slot in fleet.slots.values())
    assert {worker.settings.shutdown_timeout for worker in spawner} == {fleet.settings.shutdown_timeout}
    assert ("Late." in reload.remarks) == bool(taken and refused)
    assert len(set(reload.remarks)) == len(reload.remarks), "what all of them say is said once"


async def test_scaled_in_and_out(fleet: Fleet, spawner: Spawner) -> None:
    await fleet.scale(1)
    await until(lambda: not fleet.retiring, "two have retired")
    assert sorted(spawner.history) == ["1 SIGUSR1", "2 SIGUSR1"]
    await fleet.scale(2)
    await until(lambda: "1 goes" in spawner.history, "another is there")
    assert sorted(fleet.slots) == [0, 1]


async def test_what_cannot_be_drained_is_tried_again_until_it_is(fleet: Fleet, spawner: Spawner) -> None:
    """The data directory knows the slot until nothing of it is left."""
    spawner.known = {2}
    spawner.cannot_retire = True
    await fleet.scale(2)
    await until(lambda: spawner.history.count("2 started as retiring") >= 1, "a retiring worker is started")
    spawner.of(2).finish(75)
    await until(lambda: spawner.history.count("2 started as retiring") >= 2, "and another")
    assert fleet.retiring == (2,)
    spawner.known.clear()
    spawner.of(2).finish(0)
    await until(lambda: not fleet.retiring, "it is done")


@pytest.mark.parametrize("live", [True, False])
async def test_a_slot_that_is_being_drained_gets_changed_settings_with_another_worker(
    fleet: Fleet, spawner: Spawner, live: bool
) -> None:
    """With a password that Kafka takes no more it would never be empty."""
    spawner.known = {2}
    await fleet.scale(2)
    await until(lambda: "2 started as retiring" in spawner.history, "a retiring worker is started")
    before = spawner.of(2)
    assert await fleet.roll(fleet.settings) is None
    assert before.alive, "the settings are the same"
    after = fleet.settings.model_copy(update={"shutdown_timeout": timedelta(seconds=7)})
    assert await (FleetReload(fleet, after).run() if live else fleet.roll(after)) is None
    await until(lambda: any(worker.slot == 2 for worker in spawner), "another one goes on")
    assert (before.signals, spawner.of(2).settings.shutdown_timeout) == (["SIGTERM"], after.shutdown_timeout)


@pytest.mark.parametrize("marks", [[], ["up"], ["up", "warm"], ["up", "warm", "ready"]])
async def test_a_worker_that_hangs_is_killed_and_comes_back(watched: Fleet, spawner: Spawner, marks: list[str]) -> None:
    """While it loads, in its start, while it waits for the slot, and later."""
    spawner.hangs_at = marks
    watched.start(1)
    await until(lambda: "0 goes" in spawner.history, "another is started, and gets on")
    assert spawner.history == ["0 started as worker", "0 killed", "0 started as worker", "0 goes"]
    assert watched.slots[0].restarts == 1


async def test_a_watch_that_breaks_ends_the_gateway(
    fleet: Fleet, spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it nobody would notice a worker that hangs."""
    monkeypatch.setattr(fleet_module, "_PING_S", 0.0)
    monkeypatch.setattr(ObedientWorker, "responds", None)
    watched = Fleet(spawner, fleet.settings)  # type: ignore[arg-type]
    watched.start(1)
    await until(watched.failed.done, "the defect is known")
    assert isinstance(watched.failed.exception(), TypeError)
    await watched.stop(StopVerb.RESTART)


async def test_a_worker_that_hangs_while_it_ends_a_slot_is_killed_and_another_goes_on(
    watched: Fleet, spawner: Spawner
) -> None:
    spawner.known = {1}
    watched.start(1)
    await until(lambda: any(worker.role == "retiring" for worker in spawner), "the orphaned slot has a worker")
    (hung,) = [worker for worker in spawner if worker.role == "retiring"]
    hung.answers = None
    await until(lambda: any(worker.role == "retiring" and worker is not hung for worker in spawner), "another")
    assert hung.status == -signal.SIGKILL


async def test_a_worker_that_hangs_as_changed_settings_end_it_is_killed(
    fleet: Fleet, spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawner.known = {2}
    monkeypatch.setattr("gateway.supervisor.slot._GRACE_S", 0)
    fleet.settings = fleet.settings.model_copy(update={"shutdown_timeout": timedelta(0)})
    await fleet.scale(2)
    await until(lambda: "2 started as retiring" in spawner.history, "a retiring worker is started")
    hung = spawner.of(2)
    hung.ignores = ("SIGTERM",)
    fleet.adopt(fleet.settings.model_copy(update={"shutdown_timeout": timedelta(seconds=7)}))
    await until(lambda: any(one.slot == 2 and one is not hung for one in spawner), "another one goes on")
    assert hung.signals == ["SIGTERM", "SIGKILL"]


async def test_a_stop_says_what_remained(fleet: Fleet, spawner: Spawner) -> None:
    spawner.cannot_retire = True
    stopped = await fleet.stop(StopVerb.RETIRE)
    assert stopped.statuses == ((0, 75), (1, 75), (2, 75))
    assert not stopped.clean
    assert stopped.remarks[1] == "Worker 1 ended with status 75 with 7 messages unacknowledged."


async def test_the_port_speaks_for_all_and_of_those_that_do_not_answer(fleet: Fleet, spawner: Spawner) -> None:
    answers = FleetAnswers(fleet, SupervisorMetrics(), lambda: "running")
    ledger = {"received": 5, "in_flight": 2}
    for slot in range(3):
        spawner.of(slot).answers = {
            "/readyz": {"ready": slot == 0, "reasons": [] if slot == 0 else ["MQTT session 0 is not connected."]},
            "/status": {
                "ready": slot == 0, "unacked": 2, "oldest_unacked_age_seconds": slot, "ledger": ledger,
                "routes": {"telemetry": {"received": 5}, f"of worker {slot}": {"received": 1}},
            },
        }  # fmt: skip
    spawner.of(2).answers = None
    ready = await answers.answer("/readyz", "")
    assert ready.status == 503
    assert json.loads(ready.body)["reasons"] == [
        "Worker 1: MQTT session 0 is not connected.",
        "Worker 2 does not answer.",
    ]
    status = json.loads((await answers.answer("/status", "")).body)
    assert status["ledger"] == {"received": 10, "in_flight": 4}
    assert status["routes"].pop("telemetry") == {"received": 10}
    assert list(status["routes"].values()) == [{"received": 1}] * 2
    assert (status["unacked"], status["oldest_unacked_age_seconds"], status["ready"]) == (4, 1, False)
    assert [(worker["worker"], worker["up"]) for worker in status["workers"]] == [(0, True), (1, True), (2, False)]
    assert (await answers.answer("/healthz", "")).status == 200
    assert (await answers.answer("/nowhere", "")).status == 404


def say_status(spawner: Spawner) -> None:
    """Three workers say how they are; the last one has a problem."""
    refused = {"id": "acl-refused", "severity": "critical", "text": "No right.", "check": "", "subject": "denied"}
    for slot in range(3):
        row = status_row(slot, problems=[refused] if slot == 2 else [])
        spawner.of(slot).answers = {"/status": {"ready": True, "unacked": 0, "oldest_unacked_age_seconds": None,
                                                "ledger": {}, "routes": {}, **row}}  # fmt: skip


async def test_a_slot_that_is_being_retired_has_its_problems_on_the_page(fleet: Fleet, spawner: Spawner) -> None:
    """It may hold messages that it cannot deliver, and nothing would say why."""
    spawner.known = {2}
    await fleet.scale(2)
    await until(lambda: "2 started as retiring" in spawner.history, "a retiring worker is started")
    say_status(spawner)
    answers = FleetAnswers(fleet, SupervisorMetrics(), lambda: "running")
    assert '{worker="2"}' in (await answers.answer("/metrics", "")).body, "and alerts see its spool"
    status = json.loads((await answers.answer("/status", "")).body)
    assert [problem["text"] for problem in status["problems"]] == ["Worker 2: No right."]
    assert [worker["worker"] for worker in status["workers"]] == [0, 1]


async def test_a_worker_that_answers_late_keeps_its_problems_on_the_page_for_a_moment(
    fleet: Fleet, spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only it has would else be gone whenever it is busy."""
    answers = FleetAnswers(fleet, SupervisorMetrics(), lambda: "running")

    async def problems() -> list[str]:
        document = json.loads((await answers.answer("/status", "")).body)
        return [problem["id"] for problem in document["problems"]]

    say_status(spawner)
    assert await problems() == ["acl-refused"]
    said, spawner.of(2).answers = spawner.of(2).answers, None
    assert await problems() == ["acl-refused"]
    monkeypatch.setattr(answers_module, "SILENT_NS", -1)
    assert await problems() == [], "by then its silence is told"
    monkeypatch.undo()
    spawner.of(2).answers = said
    assert await problems() == ["acl-refused"]
    spawner.of(2).answers = None
    spawner.of(2).pid += 1
    assert await problems() == [], "another process has its own"


TLS = ServerTlsSettings(certificate_file=Path("port.pem"), key_file=Path("port.key"))
CHANGES = [
    ({"instance": "b"}, "instance was gateway and is b"),
    ({"http": HttpSettings(port=1)}, "http.port was 9464 and is 1"),
    ({"http": HttpSettings(host="0.0.0.0")}, "http.host"),
    ({"http": HttpSettings(tls=TLS)}, "http.tls has changed"),
    ({"workers": 0}, "workers is 0"),
]


@pytest.mark.parametrize(("change", "says"), CHANGES, ids=[says for _, says in CHANGES])
def test_what_a_reload_cannot_change_is_said(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        _check_change(Settings(workers=2), Settings(**{"workers": 2, **change}))


def test_a_reload_may_change_the_number_of_workers() -> None:
    assert _check_change(Settings(workers=2), Settings(workers=5)) == 5


class Supervised:
    """A supervisor that runs for as long as the ``async with`` block. ``loads`` are what its reloads read, in turn."""

    def __init__(self, spawner: Spawner, *loads: Loaded) -> None:
        self.data_dir, self.loads, self.stop = loads[0].settings.data_dir, list(loads), StopRequest()
        self._logs, done = contextlib.ExitStack(), reports.Reports(self.data_dir, "supervisor")
        self.itself = Supervisor(loads[0], lambda: self.loads.pop(1), done, spawner, self._logs)  # type: ignore[arg-type]
        self._spawner = spawner

    async def __aenter__(self) -> Self:
        self.running = asyncio.create_task(self.itself.run(self.stop))
        await until(lambda: any("ready" in worker.marks for worker in self._spawner), "it is ready")
        return self

    async def __aexit__(self, *_error: object) -> None:
        with self._logs:
            self.stop.request()
            await self.running

    def ask(self, wish: Wish | None = None) -> None:
        if wish is not None:
            reports.ask(self.data_dir, "supervisor", wish)
        self.itself.ask_reload()

    async def answered(self, operation: reports.Operation, request: int) -> None:
        def outcome() -> reports.Outcome:
            return reports.read_outcome(self.data_dir, "supervisor", os.getpid(), operation, request)

        await until(lambda: outcome().request == request and outcome().ok, f"{operation} {request} is done")


def read(directory: Path, port: int = 0, **http: Any) -> Loaded:
    return Loaded(Settings(data_dir=directory, workers=1, http=HttpSettings(port=port, **http)), {}, (), None)


async def test_two_signals_at_once_in_a_replacement_end_it_and_start_nothing(spawner: Spawner, tmp_path: Path) -> None:
    async with Supervised(spawner, read(tmp_path)) as supervisor:
        spawner.hangs_at = ["up"]
        spawner.of(0).finish(1)
        supervisor.itself.ask_restart()
        await until(lambda: len(spawner.made) == 2, "a successor is started")
        await until(lambda: supervisor.itself.fleet.slots[0].changing._waiters, "the slot's keeper waits")
        successor = spawner.of(0)
        successor.ignores = ("SIGTERM",)
        supervisor.stop.request()
        supervisor.stop.force()
        await until(lambda: len(successor.signals) == 2, "it gets both", 10)
        successor.finish(75)
        assert not (await supervisor.running).clean
    assert spawner.made[1:] == [successor]


async def test_replaced_workers_bring_the_new_token_to_the_port(spawner: Spawner, tmp_path: Path) -> None:
    after = read(tmp_path, token=SecretStr("after"))
    async with Supervised(spawner, read(tmp_path, token=SecretStr("before")), after) as supervisor:
        supervisor.ask(Wish(1, rolling=True))
        await supervisor.answered("roll", 1)
        shown = [read(tmp_path, supervisor.itself._http.port, token=SecretStr(token)) for token in ("before", "after")]
        answers = [await asyncio.to_thread(asking.ask, one.settings.http, "/metrics", timeout_s=60) for one in shown]
        assert [status for status, _ in answers] == [401, 200]


async def test_reloads_that_nobody_waits_for_are_one(spawner: Spawner, tmp_path: Path) -> None:
    """Each takes half a minute while Kafka is away. A command that asked for one gets its own answer."""
    async with Supervised(spawner, *[read(tmp_path)] * 9) as supervisor:
        for number in (0, 1, 0, 2, 0):
            supervisor.ask(Wish(number) if number else None)
        await supervisor.answered("reload", 2)
        await supervisor.answered("reload", 1)
        assert len(supervisor.loads) == 9 - 3
