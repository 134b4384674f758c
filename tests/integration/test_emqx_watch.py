"""The watch on EMQX: what it finds becomes metrics, problems and facts; what it cannot find is said once."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from config.settings import EmqxSettings, MqttSettings, Settings
from gateway.base.instruments import Family
from gateway.base.metrics import Metrics
from gateway.health.emqx import api
from gateway.health.emqx.watch import EmqxWatch
from tests.brokers.emqx_rest import EmqxRest
from tests.brokers.raw import RawClient
from tests.brokers.scripted import ScriptedBroker, publish
from tests.brokers.scripted_rules import Rules
from tests.waiting import until

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
    values = {"url": rest.url, "api_key": "key", "api_secret": "secret", "interval": "1h", "timeout": "1m"}
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
        publish(broker, range(2 + 10 + 7))
        with capture_logs() as logs:
            await watched.look()
            publish(broker, range(4))
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
        publish(broker, range(15))
        async with watch(rest, path) as watched:
            assert read(watched, "emqx_dropped")["0", "queue_full"] == 0, "dropped before anybody looked"
            assert facts(watched)["sessions"][0]["dropped_by_emqx"] == 3
            assert read(watched, "emqx_queue_length")["0",] == 10
        assert read(watched, "emqx_up") == {(): 0}, "nobody looks any more"
        assert read(watched, "emqx_queue_length")["0",] == 0
    publish(broker, range(6))
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
    publish(broker, range(3))
    async with watch(rest, tmp_path / "e.json") as watched:
        assert read(watched, "emqx_no_subscribers") == {(): 0}
        publish(broker, range(2))
        await watched.look()
        assert read(watched, "emqx_no_subscribers") == {(): 2}
        broker.unrouted.clear()  # a node has restarted
        publish(broker, range(1))
        await watched.look()
        assert read(watched, "emqx_no_subscribers") == {(): 3}
    async with watch(rest, tmp_path / "e.json", worker=1) as watched:
        publish(broker, range(2))
        await watched.look()
        assert read(watched, "emqx_no_subscribers") == {(): 0}, "another worker counts them"


async def test_own_messages_unsubscribed_are_left_out(broker: ScriptedBroker, rest: EmqxRest, tmp_path: Path) -> None:
    own = [1]  # before the first look
    publish(broker, range(1))
    async with watch(rest, tmp_path / "e.json", own_unheard=lambda: own[0]) as watched:
        publish(broker, range(3))
        own[0] += 2
        await watched.look()
        assert read(watched, "emqx_no_subscribers") == {(): 1}
        own[0] += 1  # EMQX's count comes later
        await watched.look()
        publish(broker, range(2))
        await watched.look()
        assert read(watched, "emqx_no_subscribers") == {(): 2}


async def test_it_looks_by_itself_and_a_hanging_api_does_not_hold_up_its_stop(
    broker: ScriptedBroker, rest: EmqxRest, tmp_path: Path
) -> None:
    settings = EmqxSettings.model_validate(
        {"url": rest.url, "api_key": "key", "api_secret": "secret", "interval": "1s", "timeout": "1m"}
    )
    watched = EmqxWatch(settings, SESSIONS, Metrics(Settings(mqtt=MqttSettings(sessions=2))), tmp_path / "e.json")
    await watched.start()
    await until(lambda: read(watched, "emqx_up") == {(): 1}, "it has looked")
    rest.fault = "hang"
    seen = len(rest.requests)
    await until(lambda: len(rest.requests) > seen, "it has asked again")
    await watched.stop(0)
    assert watched.facts()["up"], "a look that was cut short is no failure"


async def test_dead_members_of_a_stopped_node_are_said_while_they_take_messages(tmp_path: Path) -> None:
    async with ScriptedBroker(nodes=2) as broker, EmqxRest(broker) as rest, watch(rest, tmp_path / "e.json") as watched:
        first, second = broker.nodes
        async with RawClient(first.port, "gw-0-0") as ours, RawClient(second.port, "other") as other:
            await ours.subscribe("$share/gw/devices/#")
            await ours.subscribe("plain/#")
            await other.subscribe("$share/another/devices/#")
            await watched.look()
            assert watched.problems() == ()
            assert not any("/stats" in request for request in rest.requests), "while all nodes run nobody counts"
            await broker.kill_node(second)
            with capture_logs() as logs:
                await watched.look()
                await watched.look()
            (problem,) = watched.problems()
            assert (problem.id, problem.severity) == ("emqx-members-dead", "critical")
            assert "1 of the 2 members of shared subscriptions died with it" in problem.text
            assert "emqx ctl cluster force-leave emqx1@127.0.0.1" in problem.check
            assert read(watched, "emqx_dead_members") == {(): 1}
            assert [line["event"] for line in logs] == ["emqx_members_dead"], "once"
            assert facts(watched)["stopped_nodes"] == ["emqx1@127.0.0.1"]
            await rest.stop()
            await watched.look()
            assert watched.problems() == (), "who cannot look does not judge"
            assert read(watched, "emqx_dead_members") == {(): 0}
            await rest.start()
            for session in list(broker.groups["another", "devices/#"]):
                broker._leave(session)
            await watched.look()
            (problem,) = watched.problems()
            assert (problem.id, problem.severity) == ("emqx-node-stopped", "warning"), "it takes nothing any more"
            await broker.start_node(second)
            await watched.look()
            assert watched.problems() == ()


async def test_another_worker_leaves_the_cluster_to_worker_0(tmp_path: Path) -> None:
    async with (
        ScriptedBroker() as broker,
        EmqxRest(broker) as rest,
        watch(rest, tmp_path / "e.json", worker=1) as watched,
    ):
        await watched.look()
        assert not any("/nodes" in request for request in rest.requests)


async def test_too_many_subscriptions_to_count_are_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_PAGE", 1)
    monkeypatch.setattr(api, "_MAX_PAGES", 2)
    async with ScriptedBroker(nodes=2) as broker, EmqxRest(broker) as rest, watch(rest, tmp_path / "e.json") as watched:
        async with RawClient(broker.port, "gw-0-0") as ours:
            for number in range(3):
                await ours.subscribe(f"$share/gw/devices/{number}")
            await broker.kill_node(broker.nodes[1])
            await watched.look()
        (problem,) = watched.problems()
        assert (problem.id, problem.severity) == ("emqx-node-stopped", "warning")
        assert "is unknown: there are too many subscriptions to count (3 shared)" in problem.text
