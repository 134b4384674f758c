"""States change by the table only; components start in order and stop in reverse, each within its time."""

import asyncio
import time
from itertools import pairwise, product

import pytest
import structlog

from config.errors import GatewayError
from gateway.base.lifecycle import Lifecycle, LifecycleError, Service, State, StopReport, StopRequest, StopVerb
from tests.waiting import until

SECOND_NS = 1_000_000_000
LIFE = [
    State.NOT_RUNNING, State.STARTING, State.RECOVERY, State.RUNNING, State.PENDING_CONTROLLED_SHUTDOWN,
    State.SHUTTING_DOWN, State.NOT_RUNNING,
]  # fmt: skip


# ---- the table ----


def test_the_states_have_kafkas_numbers() -> None:
    assert [state.value for state in LIFE] == [0, 1, 2, 3, 6, 7, 0]


ALLOWED = {*pairwise(LIFE), (State.STARTING, State.SHUTTING_DOWN), (State.RECOVERY, State.SHUTTING_DOWN)}


@pytest.mark.parametrize(("old", "new"), list(product(State, State)))
def test_every_pair_of_states_is_allowed_or_refused(old: State, new: State) -> None:
    lifecycle = Lifecycle()
    for step in LIFE[1 : LIFE.index(old) + 1]:
        lifecycle.advance(step)
    if (old, new) in ALLOWED:
        lifecycle.advance(new)
        assert lifecycle.state is new
    else:
        with pytest.raises(LifecycleError, match=f"in state {old.name} cannot become {new.name}"):
            lifecycle.advance(new)
        assert lifecycle.state is old, "a refused change must leave the state as it was"


def test_a_listener_that_raises_stops_neither_the_change_nor_the_others() -> None:
    lifecycle = Lifecycle()
    seen: list[tuple[State, State]] = []

    def broken(old: State, new: State) -> None:
        raise RuntimeError("listener")

    lifecycle.listen(broken)
    lifecycle.listen(lambda old, new: seen.append((old, new)))
    with structlog.testing.capture_logs() as logs:
        lifecycle.advance(State.STARTING)
    assert seen == [(State.NOT_RUNNING, State.STARTING)]
    assert [line["event"] for line in logs] == ["lifecycle_changed", "lifecycle_listener_failed"]


def test_the_time_in_a_state_starts_at_its_change() -> None:
    now = 100
    lifecycle = Lifecycle(now_ns=lambda: now)
    now = 150
    assert lifecycle.in_state_ns == 50
    lifecycle.advance(State.STARTING)
    now = 157
    assert lifecycle.in_state_ns == 7


# ---- the service ----


class Part:
    """A component that writes down what happens to it, and can be told to fail or to hang."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.events = events
        self.start_error: Exception | None = None
        self.stop_error: Exception | None = None
        self.hang_in_start = False
        self.hang_in_stop = False  # until cancelled
        self.deaf = False  # hangs in stop and swallows its cancellation
        self.deadlines: list[int] = []
        self.starting = asyncio.Event()
        self.stopping = asyncio.Event()
        self.release = asyncio.Event()  # lets a deaf one go at the end of the test

    async def start(self) -> None:
        self.events.append(f"start {self.name}")
        self.starting.set()
        if self.hang_in_start:
            await asyncio.Event().wait()
        if self.start_error:
            raise self.start_error
        self.events.append(f"started {self.name}")

    async def stop(self, deadline_ns: int) -> None:
        self.deadlines.append(deadline_ns)
        self.events.append(f"stop {self.name}")
        self.stopping.set()
        while self.deaf and not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                continue
        if self.hang_in_stop and deadline_ns > time.monotonic_ns():
            await asyncio.Event().wait()
        if self.stop_error:
            raise self.stop_error
        self.events.append(f"stopped {self.name}")


class Scene:
    """A service of two core and two intake components, and everything that happened to it in order."""

    def __init__(self, *, shutdown_timeout_ns: int = 5 * SECOND_NS, grace_ns: int = SECOND_NS // 20) -> None:
        self.events: list[str] = []
        self.http, self.producer = Part("http", self.events), Part("producer", self.events)
        self.first, self.second = Part("session 0", self.events), Part("session 1", self.events)
        self.recover_hangs = False
        self.service = Service(
            [self.http, self.producer],
            [self.first, self.second],
            shutdown_timeout_ns=shutdown_timeout_ns,
            recover=self.recover,
            grace_ns=grace_ns,
        )
        self.service.lifecycle.listen(lambda _, new: self.events.append(new.name))
        self.stop = StopRequest()

    async def recover(self) -> None:
        self.events.append("recover")
        if self.recover_hangs:
            await asyncio.Event().wait()

    def run(self) -> asyncio.Task[StopReport]:
        return asyncio.create_task(self.service.run(self.stop))

    async def started(self) -> asyncio.Task[StopReport]:
        running = self.run()
        await until(lambda: self.service.lifecycle.state is State.RUNNING, "it runs")
        return running

    async def lived(self) -> StopReport:
        """Start, and stop at once."""
        running = await self.started()
        self.stop.request()
        return await asyncio.wait_for(running, 60)


def starts(*names: str) -> list[str]:
    return [f"{word} {name}" for name in names for word in ("start", "started")]


def stops(*names: str) -> list[str]:
    return [f"{word} {name}" for name in names for word in ("stop", "stopped")]


async def test_a_whole_life_starts_in_order_and_stops_in_reverse() -> None:
    scene = Scene()
    report = await scene.lived()
    assert scene.events == [
        *("STARTING", *starts("http", "producer"), "RECOVERY", "recover", *starts("session 0", "session 1"), "RUNNING"),
        *("PENDING_CONTROLLED_SHUTDOWN", *stops("session 0", "session 1")),
        *("SHUTTING_DOWN", *stops("producer", "http"), "NOT_RUNNING"),
    ]
    assert report == StopReport(StopVerb.RESTART, forced=False, failed=(), overran=())
    assert report.clean


async def test_sessions_start_and_stop_together_and_the_core_waits_for_both() -> None:
    scene = Scene()
    scene.first.hang_in_start = True
    running = scene.run()
    await asyncio.wait_for(scene.second.starting.wait(), 60)  # though session 0 is not done
    scene.stop.request()
    await asyncio.wait_for(running, 60)

    scene = Scene()
    scene.first.hang_in_stop = True
    running = await scene.started()
    scene.stop.request()
    await asyncio.wait_for(scene.second.stopping.wait(), 60)
    assert "stop producer" not in scene.events, "the producer was stopped while a session still drained"
    scene.stop.force()
    await asyncio.wait_for(running, 60)


@pytest.mark.parametrize(("timeout_s", "closing_s"), [(5, 1), (60, 2)], ids=["a fifth", "two seconds at most"])
async def test_draining_has_less_time_than_the_whole_stop(timeout_s: int, closing_s: int) -> None:
    scene = Scene(shutdown_timeout_ns=timeout_s * SECOND_NS)
    before_ns = time.monotonic_ns()
    await scene.lived()
    [drain_ns], [close_ns] = scene.first.deadlines, scene.producer.deadlines
    assert close_ns - drain_ns == closing_s * SECOND_NS, "a part of the shutdown time-out is kept for closing"
    assert before_ns <= close_ns - timeout_s * SECOND_NS <= time.monotonic_ns()


async def test_a_component_that_fails_to_start_is_stopped_with_those_before_it_and_its_error_is_raised() -> None:
    scene = Scene()
    scene.producer.start_error = GatewayError("no broker")
    with pytest.raises(GatewayError, match="no broker"):
        await asyncio.wait_for(scene.run(), 60)
    assert scene.events == [
        *("STARTING", *starts("http"), "start producer", "SHUTTING_DOWN", *stops("producer", "http"), "NOT_RUNNING")
    ]


async def test_a_session_that_fails_to_start_ends_its_neighbours_start_and_raises_its_own_error() -> None:
    scene = Scene()
    scene.first.hang_in_start = True
    scene.second.start_error = GatewayError("refused")
    with pytest.raises(GatewayError, match="refused"):
        await asyncio.wait_for(scene.run(), 60)
    assert scene.events[scene.events.index("SHUTTING_DOWN") :] == [
        *("SHUTTING_DOWN", *stops("session 0", "session 1", "producer", "http"), "NOT_RUNNING")
    ]


@pytest.mark.parametrize("where", ["http", "producer", "recover", "first"])
async def test_a_stop_during_the_start_interrupts_it_and_closes_what_was_begun(where: str) -> None:
    scene = Scene()
    if where == "recover":
        scene.recover_hangs = True
    else:
        getattr(scene, where).hang_in_start = True
    running = scene.run()
    hanging = {"http": "start http", "producer": "start producer", "recover": "recover", "first": "start session 1"}
    async with asyncio.timeout(60):
        while hanging[where] not in scene.events:  # noqa: ASYNC110 - each turn of the loop is one step of the start
            await asyncio.sleep(0)
    scene.stop.request()
    report = await asyncio.wait_for(running, 60)
    assert report.clean
    begun = {event.removeprefix("start ") for event in scene.events if event.startswith("start ")}
    ended = {event.removeprefix("stopped ") for event in scene.events if event.startswith("stopped ")}
    assert begun == ended
    assert "RUNNING" not in scene.events
    assert scene.events[-1] == "NOT_RUNNING"


async def test_a_stop_asked_for_before_the_start_starts_nothing() -> None:
    scene = Scene()
    scene.stop.request()
    report = await asyncio.wait_for(scene.run(), 60)
    assert report.clean
    assert scene.events == []
    assert scene.service.lifecycle.state is State.NOT_RUNNING


async def test_a_stop_that_raises_is_logged_and_stepped_over() -> None:
    scene = Scene()
    scene.first.stop_error = RuntimeError("socket")
    scene.producer.stop_error = GatewayError("A sentence, without a traceback.")
    with structlog.testing.capture_logs() as logs:
        report = await scene.lived()
    assert report.failed == ("session 0", "producer")
    assert not report.clean
    assert "stopped http" in scene.events
    failed = [(line["component"], "exc_info" in line) for line in logs if line["event"] == "component_stop_failed"]
    assert failed == [("session 0", True), ("producer", False)]


async def test_a_drain_that_overruns_is_cut_short_told_to_drop_everything_and_the_rest_still_stops() -> None:
    scene = Scene(shutdown_timeout_ns=SECOND_NS)
    scene.first.hang_in_stop = True
    report = await scene.lived()
    assert report.overran == ("session 0",)
    first, second = scene.first.deadlines
    assert first < second, "the second call comes with a deadline that has passed"
    assert scene.events[-5:] == ["stop producer", "stopped producer", "stop http", "stopped http", "NOT_RUNNING"]


async def test_a_component_that_swallows_its_cancellation_is_left_behind_and_named() -> None:
    scene = Scene(shutdown_timeout_ns=SECOND_NS // 10)
    scene.producer.deaf = True
    with structlog.testing.capture_logs() as logs:
        report = await scene.lived()
    scene.producer.release.set()
    assert report.overran == ("producer",)
    assert scene.events[-3:] == ["stop http", "stopped http", "NOT_RUNNING"]
    assert {"event": "component_stop_abandoned", "component": "producer", "log_level": "error"} in logs


async def test_force_ends_a_drain_at_once_and_lets_nobody_else_drain() -> None:
    scene = Scene(shutdown_timeout_ns=600 * SECOND_NS)
    scene.first.hang_in_stop = True
    running = await scene.started()
    scene.stop.request()
    await asyncio.wait_for(scene.first.stopping.wait(), 60)
    scene.stop.force()
    report = await asyncio.wait_for(running, 60)
    assert report.forced
    assert report.overran == ("session 0",)
    assert scene.first.deadlines[1] <= time.monotonic_ns()
    [producer_ns] = scene.producer.deadlines
    assert producer_ns <= time.monotonic_ns(), "after a forced stop every deadline has passed"
    assert "stopped http" in scene.events


async def test_a_part_that_cannot_go_on_stops_the_service_and_its_error_is_raised_at_the_end() -> None:
    scene = Scene()
    running = await scene.started()
    scene.stop.fail(GatewayError("bad password"))
    scene.stop.fail(GatewayError("a later one"))
    with pytest.raises(GatewayError, match="bad password"):
        await asyncio.wait_for(running, 60)
    assert scene.events[-1] == "NOT_RUNNING"
    assert "stopped session 0" in scene.events


async def test_cancelling_the_service_stops_it_in_good_order() -> None:
    scene = Scene()
    running = await scene.started()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 60)
    assert scene.events[-1] == "NOT_RUNNING"
    assert "stopped session 1" in scene.events
    assert scene.stop.requested


async def test_the_first_request_decides_the_verb() -> None:
    stop = StopRequest()
    stop.request(StopVerb.RETIRE)
    stop.request(StopVerb.RESTART)
    assert stop.verb is StopVerb.RETIRE
    assert not stop.forced
    stop.force()
    assert stop.forced
    assert stop.verb is StopVerb.RETIRE
