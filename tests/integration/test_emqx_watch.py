"""The watch on EMQX: what it finds becomes metrics, problems and facts; what it cannot find is said once."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from config.settings import EmqxSettings, MqttSettings, Settings
from gateway.emqx.watch import EmqxWatch
from gateway.metrics import Metrics
from tests.brokers.emqx_rest import EmqxRest
from tests.brokers.packets import Message
from tests.brokers.raw import RawClient
from tests.brokers.rig import until
from tests.brokers.scripted import ScriptedBroker
from tests.brokers.scripted_rules import Rules

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gateway.instruments import Family

SESSIONS = [("0", "gw-0-0"), ("1", "gw-0-1")]


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker(Rules(queue=10, max_inflight=2)) as broker:
        yield broker


@pytest.fixture
async def rest(broker: ScriptedBroker) -> AsyncIterator[EmqxRest]:
    async with EmqxRest(broker) as rest:
        yield rest


@asynccontextmanager
async def watch(rest: EmqxRest, path: Path, *, first: bool = True, **changes: Any) -> AsyncIterator[EmqxWatch]:
    """A watch that looks when it is told to: its own next look is an hour away."""
    values = {"url": rest.url, "api_key": "key", "api_secret": "secret", "interval": "1h", "timeout": "2s"}
    settings = EmqxSettings.model_validate(values)
    metrics = Metrics(Settings(mqtt=MqttSettings(sessions=2), emqx=settings))
    made = EmqxWatch(settings, SESSIONS, metrics, path, **changes)
    await made.start()
    try:
        if first:
            await made.look()
        yield made
    finally:
        await made.stop(0)


def read(watched: EmqxWatch, name: str) -> dict[tuple[str, ...], float]:
    family: Family = getattr(watched._metrics, name)
    return family.read()


def overflow(broker: ScriptedBroker, count: int) -> None:
    for number in range(count):
        broker.publish(Message("devices/d", b"%d" % number, 1, publisher="d"))


def facts(watched: EmqxWatch) -> dict[str, Any]:
    return json.loads(json.dumps(watched.facts()))  # type: ignore[no-any-return] - what /status can say


async def test_drops_become_metrics_a_problem_and_one_line(
    broker: ScriptedBroker, rest: EmqxRest, tmp_path: Path
) -> None:
    async with RawClient(broker.port, "gw-0-0") as client, watch(rest, tmp_path / "e.json") as watched:
        assert read(watched, "emqx_up") == {(): 1}
        assert read(watched, "emqx_dropped")["0", "queue_full"] == 0
        assert watched.problems() == ()
        await client.subscribe("$share/gw/devices/#")
        overflow(broker, 2 + 10 + 7)
        with capture_logs() as logs:
            await watched.look()
            overflow(broker, 4)
            await watched.look()
        assert read(watched, "emqx_dropped") == {
            (name, reason): 11 if (name, reason) == ("0", "queue_full") else 0
            for name in ("0", "1")
            for reason in ("queue_full", "expired", "too_large")
        }
        assert len(broker.dropped) == 11
        assert read(watched, "emqx_queue_length") == {("0",): 10, ("1",): 0}
        assert read(watched, "emqx_queue_limit") == {("0",): 10, ("1",): 0}
        assert read(watched, "emqx_inflight") == {("0",): 2, ("1",): 0}
        assert read(watched, "emqx_inflight_limit") == {("0",): 2, ("1",): 0}
        (problem,) = watched.problems()
        assert (problem.id, problem.subject) == ("emqx-queue-dropping", "worker 0")
        assert "11 messages from the full queue of session 0 (gw-0-0)" in problem.text
        assert [line["messages"] for line in logs if line["event"] == "emqx_dropped"] == [7], "the first, then metrics"
        told = facts(watched)
        assert (told["up"], told["dropped"], told["error"]) == (True, 11, None)
        assert [one["known"] for one in told["sessions"]] == [True, False]
        assert told["sessions"][0]["dropped"] == {"queue_full": 11, "expired": 0, "too_large": 0}


async def test_what_is_dropped_between_two_lives_is_counted_in_the_second(
    broker: ScriptedBroker, rest: EmqxRest, tmp_path: Path
) -> None:
    path = tmp_path / "worker-0.emqx.json"
    async with RawClient(broker.port, "gw-0-0") as client:
        await client.subscribe("$share/gw/devices/#")
        overflow(broker, 15)
        async with watch(rest, path) as watched:
            assert read(watched, "emqx_dropped")["0", "queue_full"] == 0, "dropped before anybody looked"
            assert facts(watched)["sessions"][0]["dropped_by_emqx"] == 3
            assert read(watched, "emqx_queue_length")["0",] == 10
        assert read(watched, "emqx_up") == {(): 0}, "nobody looks any more"
        assert read(watched, "emqx_queue_length")["0",] == 0
    overflow(broker, 6)
    async with watch(rest, path) as watched:
        assert read(watched, "emqx_dropped")["0", "queue_full"] == 6
    async with watch(rest, path) as watched:
        assert read(watched, "emqx_dropped")["0", "queue_full"] == 0, "told once"


async def test_counts_that_cannot_be_read_are_said_and_begun_anew(
    broker: ScriptedBroker, rest: EmqxRest, tmp_path: Path
) -> None:
    path = tmp_path / "e.json"
    for damaged in ("{", "[]", '{"version": 1, "sessions": {"gw-0-0": {"session_ms": null}}}'):
        path.write_text(damaged)
        with capture_logs() as logs:
            async with watch(rest, path) as watched:
                assert read(watched, "emqx_up") == {(): 1}
        assert logs[0]["event"] == "emqx_counts_not_read"


async def test_an_api_that_goes_and_comes_is_a_line_each_and_a_problem_in_between(
    broker: ScriptedBroker, rest: EmqxRest, tmp_path: Path
) -> None:
    async with RawClient(broker.port, "gw-0-0"), watch(rest, tmp_path / "e.json") as watched:
        await rest.stop()
        with capture_logs() as logs:
            await watched.look()
            assert watched.problems() == (), "one look falls into a restart"
            for _ in range(3):
                await watched.look()
            (problem,) = watched.problems()
            assert problem.id == "emqx-unwatched"
            assert "cannot be reached" in problem.text
            assert read(watched, "emqx_up") == {(): 0}
            assert read(watched, "emqx_look_failures")[("unreachable",)] == 4
            await rest.start()
            await watched.look()
        assert [line["event"] for line in logs] == ["emqx_not_watched", "emqx_watched"]
        assert read(watched, "emqx_up") == {(): 1}
        assert watched.problems() == ()
        rest.keys.clear()
        with capture_logs() as logs:
            await watched.look()
        assert "refuses the key" in logs[0]["error"]
        assert read(watched, "emqx_look_failures")[("refused",)] == 1


async def test_messages_without_subscriber_are_counted_from_the_first_look_on(
    broker: ScriptedBroker, rest: EmqxRest, tmp_path: Path
) -> None:
    overflow(broker, 3)
    async with watch(rest, tmp_path / "e.json") as watched:
        assert read(watched, "emqx_no_subscribers") == {(): 0}
        overflow(broker, 2)
        await watched.look()
        assert read(watched, "emqx_no_subscribers") == {(): 2}
        broker.unrouted.clear()  # a node has restarted
        overflow(broker, 1)
        await watched.look()
        assert read(watched, "emqx_no_subscribers") == {(): 3}
    async with watch(rest, tmp_path / "e.json", worker=1) as watched:
        assert not any("/metrics" in request for request in rest.requests[-3:]), "another worker's"


async def test_it_looks_by_itself_and_a_hanging_api_does_not_hold_up_its_stop(
    broker: ScriptedBroker, rest: EmqxRest, tmp_path: Path
) -> None:
    settings = EmqxSettings.model_validate(
        {"url": rest.url, "api_key": "key", "api_secret": "secret", "interval": "1s", "timeout": "1s"}
    )
    watched = EmqxWatch(settings, SESSIONS, Metrics(Settings(mqtt=MqttSettings(sessions=2))), tmp_path / "e.json")
    await watched.start()
    await until(lambda: read(watched, "emqx_up") == {(): 1}, "it has looked")
    rest.fault = "hang"
    seen = len(rest.requests)
    await until(lambda: len(rest.requests) > seen, "it has asked again")
    await watched.stop(0)
    assert watched.facts()["up"], "a look that was cut short is no failure"
