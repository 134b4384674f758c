"""A slot's worker is started again, replaced, or given up, and never are there two that have the slot."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from unittest.mock import Mock

import pytest

from config.errors import ExitStatus
from config.settings import Settings
from gateway.supervisor import slot as slot_module
from gateway.supervisor.process import Reloaded, WorkerProcess
from gateway.supervisor.slot import Slot, VainError, Verdict, describe, judge
from tests.unit.manual_time import manual_time
from tests.waiting import until

OLD, NEW = Settings(instance="old"), Settings(instance="new")


@pytest.mark.parametrize(("status", "told", "ever_ready", "verdict"), [
    (0, True, True, Verdict.EXPECTED),
    (-signal.SIGKILL, True, True, Verdict.EXPECTED),
    (78, True, False, Verdict.EXPECTED),
    (78, False, False, Verdict.VAIN),
    (77, False, False, Verdict.VAIN),
    (69, False, False, Verdict.VAIN),
    (78, False, True, Verdict.RETRY),
    (77, False, True, Verdict.RETRY),
    (1, False, False, Verdict.RETRY),
    (0, False, True, Verdict.RETRY),
    (-signal.SIGSEGV, False, False, Verdict.RETRY),
])  # fmt: skip
def test_what_an_end_means(status: int, told: bool, ever_ready: bool, verdict: Verdict) -> None:
    assert judge(status, told=told, ever_ready=ever_ready) is verdict


def test_an_end_in_words() -> None:
    assert [describe(status) for status in (0, 78, -9, -200)] == [
        "with status 0", "with status 78", "by SIGKILL", "by signal 200",
    ]  # fmt: skip


class FakeWorker(WorkerProcess):
    """A worker without a process: a test says what it says, and sees what it is told."""

    def __init__(self, number: int, settings: Settings, role: str, log: list[str]) -> None:
        super().__init__(number, settings)
        self.pid = 1000 + len(log)
        self.role = role
        self.told: list[str] = []

    def say(self, *words: str) -> None:
        for word in words:
            self._take_message({"say": word})

    def go(self) -> None:
        self.told.append("go")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.left = True
        self.told.append(number.name)
        if number is signal.SIGKILL:
            self.finish(-number)


class Bench:
    """A slot that is kept, with fake processes."""

    def __init__(self, *, first_start: bool = True) -> None:
        self.workers: list[FakeWorker] = []
        self._log: list[str] = []
        self.gets_ready = True  # the first worker
        self.slot = Slot(3, OLD, self, first_start=first_start)

    async def spawn(self, slot: int, settings: Settings, role: str = "worker") -> FakeWorker:
        worker = FakeWorker(slot, settings, role, self._log)
        self._log.append(role)
        self.workers.append(worker)
        return worker

    async def started(self, count: int) -> FakeWorker:
        await until(lambda: len(self.workers) >= count)
        return self.workers[count - 1]

    async def up(self) -> FakeWorker:
        """The first worker, ready if it gets so."""
        worker = await self.started(1)
        worker.say("up", "warm")
        await until(lambda: worker.told == ["go"])
        worker.say(*["ready"] * self.gets_ready)
        return worker

    async def replaced(self) -> tuple[FakeWorker, FakeWorker, asyncio.Task[str | None]]:
        """The first worker, the one that is to follow it, and the replacement."""
        old = await self.up()
        replacing = asyncio.create_task(self.slot.replace(NEW))
        return old, await self.started(2), replacing


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    class Instant(slot_module.Backoff):
        def next_ns(self, now_ns: int) -> int:
            super().next_ns(now_ns)
            return 1

    monkeypatch.setattr(slot_module, "Backoff", Instant)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    keeper = asyncio.create_task(bench.slot.keep())
    yield bench
    await cancelled(keeper)


async def test_a_worker_that_dies_is_started_again_and_counted_for_as_long_as_it_takes(bench: Bench) -> None:
    (await bench.up()).finish(-signal.SIGKILL)
    for number in range(2, 20):
        (await bench.started(number)).finish(1)
    last = await bench.started(20)
    assert (last.settings, last.role, bench.slot.restarts) == (OLD, "worker", 19)
    assert bench.slot.problem == "Its process ended with status 1."


@pytest.mark.parametrize("status", [69, 77, 78])
async def test_what_is_vain_ends_the_first_start(status: int) -> None:
    bench = Bench()
    keeper = asyncio.create_task(bench.slot.keep())
    worker = await bench.started(1)
    worker._take_message({"say": "failed", "sentence": "The password is wrong."})
    worker.finish(status)
    with pytest.raises(VainError, match=r"^The password is wrong\.$") as raised:
        await keeper
    assert raised.value.exit_status is ExitStatus(next(one for one in ExitStatus if one == status))
    assert len(bench.workers) == 1


async def test_the_old_one_lets_go_when_the_new_one_is_warm_and_not_before(bench: Bench) -> None:
    old, new, replacing = await bench.replaced()
    assert new.role == "successor"
    new.say("up")
    for _ in range(20):
        await asyncio.sleep(0)
    assert old.told == ["go"], "not touched while the new one is cold"
    new.say("warm")
    await until(lambda: "SIGTERM" in old.told)
    assert new.told == [], "the slot is not free yet"
    old.say("released")
    await until(lambda: new.told == ["go"])
    assert bench.slot.current is new
    new.say("ready")
    for _ in range(20):
        await asyncio.sleep(0)
    assert not replacing.done(), "the old one still closes"
    old.finish(-signal.SIGTERM)
    assert await replacing is None
    assert bench.slot.settings is NEW
    assert bench.slot.restarts == 0
    assert len(bench.workers) == 2, "nobody took the old one's end for a crash"


async def test_a_new_one_that_fails_before_it_is_warm_changes_nothing(bench: Bench) -> None:
    old, new, replacing = await bench.replaced()
    new._take_message({"say": "failed", "sentence": "No such topic."})
    new.finish(69)
    assert await replacing == "worker 3: No such topic."
    assert bench.slot.current is old
    assert old.told == ["go"]
    assert bench.slot.settings is OLD


async def test_a_new_one_that_does_not_get_warm_in_time_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_module, "WARM_S", 0.01)
    old, new, replacing = await bench.replaced()
    await until(lambda: new.told == ["SIGTERM"])
    new.finish(-signal.SIGTERM)
    assert "is not warm (it is waited for while it gets on" in str(await replacing)
    assert bench.slot.current is old


async def moving(worker: FakeWorker, seconds: int) -> None:
    """Says every tenth second that it gets on."""
    for _ in range(seconds // 10):
        await asyncio.sleep(10)
        worker.say("up")


@manual_time
async def test_one_that_gets_on_is_waited_for_and_one_that_falls_silent_is_not() -> None:
    """A session whose SUBACK stands behind ten megabytes of messages is no broken one."""
    bench = Bench()
    keeper = asyncio.create_task(bench.slot.keep())
    old, new, replacing = await bench.replaced()
    new.say("up")
    await moving(new, 200)
    assert not replacing.done(), "not warm yet, and it gets on"
    new.say("warm")
    old.say("released")
    await until(lambda: new.told == ["go"])
    await moving(new, 200)
    assert not replacing.done(), "not ready yet, and it gets on"
    old.finish(-signal.SIGTERM)
    began = asyncio.get_running_loop().time()
    assert "is not ready" in str(await replacing)
    assert 25 <= asyncio.get_running_loop().time() - began <= 35
    await cancelled(keeper)


@manual_time
async def test_one_that_gets_on_for_ever_holds_up_other_operations_for_ten_minutes_at_most() -> None:
    bench = Bench()
    keeper = asyncio.create_task(bench.slot.keep())
    old, new, replacing = await bench.replaced()
    new.say("up", "warm")
    old.say("released")
    old.finish(-signal.SIGTERM)
    talking = asyncio.create_task(moving(new, 3600))
    began = asyncio.get_running_loop().time()
    assert "600 s at most" in str(await replacing)
    assert 590 <= asyncio.get_running_loop().time() - began <= 610
    await cancelled(talking)
    await cancelled(keeper)


@manual_time
async def test_a_step_of_a_reload_is_waited_for_while_its_worker_gets_on() -> None:
    worker = FakeWorker(3, OLD, "worker", [])
    worker._channel = Mock()
    worker.say("up", "warm", "ready")
    step = asyncio.create_task(worker.reload("commit", None, 60))
    await moving(worker, 200)
    assert not step.done()
    worker._take_message({"say": "reloaded", "number": 1, "sentence": None, "remarks": ["late"]})
    assert await step == Reloaded(None, ("late",))
    began = asyncio.get_running_loop().time()
    assert "60 s without progress" in str((await worker.reload("finish", None, 60)).sentence)
    assert asyncio.get_running_loop().time() - began == 60


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("ever_ready", [True, False])
async def test_a_new_one_that_fails_with_the_slot_is_followed_by_one_with_the_old_settings(
    bench: Bench, ever_ready: bool
) -> None:
    """In a first start, too: the status speaks against the new settings, not the old ones."""
    bench.gets_ready = ever_ready
    old, new, replacing = await bench.replaced()
    new.say("up", "warm")
    await until(lambda: "SIGTERM" in old.told)
    old.say("released")
    await until(lambda: new.told == ["go"])
    old.finish(-signal.SIGTERM)
    new._take_message({"say": "failed", "sentence": "The password is wrong."})
    new.finish(77)
    assert await replacing == "worker 3: The password is wrong."
    await until(lambda: len(bench.workers) == 3, "a third is started", 10)
    assert bench.workers[2].settings is OLD


async def test_an_old_one_that_does_not_end_leaves_no_empty_slot(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has let go, and a thread of it hangs: whoever is in its slot is looked after nevertheless."""
    monkeypatch.setattr(slot_module, "_patience_s", lambda _settings: 0.01)
    old, new, replacing = await bench.replaced()
    new.say("up", "warm")
    await until(lambda: "SIGTERM" in old.told)
    old.say("released")
    await until(lambda: new.told == ["go"])
    new.finish(77)
    assert await replacing == "worker 3: the new process ended with status 77; see the log."
    assert (await bench.started(3)).settings is OLD
    assert old.told == ["go", "SIGTERM", "SIGKILL"]


async def test_an_old_one_that_crashes_meanwhile_is_replaced_by_the_one_that_gets_warm(bench: Bench) -> None:
    old, new, replacing = await bench.replaced()
    old.finish(-signal.SIGSEGV)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(bench.workers) == 2, "no third: there is a successor"
    new.say("up", "warm")
    await until(lambda: "go" in new.told)
    new.say("ready")
    assert await replacing is None
    assert bench.slot.current is new
    assert (bench.slot.restarts, bench.slot.ended_ns > 0) == (1, True), "its end is told like any other"


async def test_an_old_one_that_does_not_let_go_is_killed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_module, "_patience_s", lambda _settings: 0.01)
    old, new, replacing = await bench.replaced()
    new.say("up", "warm")
    await until(lambda: new.told[:1] == ["go"])
    assert old.told == ["go", "SIGTERM", "SIGKILL"]
    new.say("ready")
    assert await replacing is None


async def test_a_slot_that_waits_for_its_next_start_is_given_a_new_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Long(slot_module.Backoff):
        def next_ns(self, now_ns: int) -> int:
            return 3_600_000_000_000

    monkeypatch.setattr(slot_module, "Backoff", Long)
    bench = Bench()
    keeper = asyncio.create_task(bench.slot.keep())
    (await bench.up()).finish(1)
    await until(lambda: bench.slot.current is None)
    replacing = asyncio.create_task(bench.slot.replace(NEW))
    new = await bench.started(2)
    new.say("up", "warm")
    await until(lambda: "go" in new.told)
    new.say("ready")
    assert await replacing is None
    new.finish(1)
    await until(lambda: bench.slot.restarts == 2)
    await cancelled(keeper)
