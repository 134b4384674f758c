"""A broker with EMQX's rules loses a session: the gateway notices, says so, and what EMQX's counters say beside it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from config.settings import EmqxSettings
from gateway.base.lifecycle import StopVerb
from gateway.data_dir.lost_sessions import LostSession, LostSessions
from gateway.health.emqx.watch import EmqxWatch
from gateway.mqtt.session import Session
from tests.brokers.data_path import MemoryPath, settings_for
from tests.brokers.emqx_rest import EmqxRest
from tests.brokers.scripted import ScriptedBroker, publish
from tests.brokers.scripted_rules import Rules
from tests.waiting import until

CLIENT = "gateway-0-0"


@contextlib.asynccontextmanager
async def running(
    broker: ScriptedBroker, directory: Path, *, verb: StopVerb = StopVerb.RESTART, **mqtt: Any
) -> AsyncIterator[tuple[LostSessions, list[LostSession], MemoryPath, Session]]:
    found: list[LostSession] = []
    lost = LostSessions(directory / "worker-0.lost-sessions.json", found=found.append)
    await lost.start()
    async with MemoryPath(settings_for(broker, mqtt=mqtt), lost=lost) as path:
        path.verb = verb
        session = path.session(client_id=CLIENT)
        async with path.running(session):
            yield lost, found, path, session
        await lost.stop(0)


@pytest.mark.parametrize("how", ["mailbox", "restart", "kick"])
async def test_each_way_in_which_emqx_loses_a_session_is_said(tmp_path: Path, how: str) -> None:
    async with (
        ScriptedBroker(Rules(max_mailbox=50)) as broker,
        EmqxRest(broker) as rest,
        running(broker, tmp_path) as (lost, found, path, session),
    ):
        values = {"url": rest.url, "api_key": "key", "api_secret": "secret", "interval": "1h", "timeout": "1m"}
        settings = EmqxSettings.model_validate(values)
        watch = EmqxWatch(settings, [("0", CLIENT)], path.metrics, tmp_path / "e.json", worker=1, lost=lost)
        await watch.start()
        await watch.look()
        assert lost.problems() == ()
        if how == "mailbox":
            broker.stall(CLIENT)
            publish(broker, range(51))
            assert len(broker.lost_messages) == 51
        elif how == "restart":
            await broker.stop()
            publish(broker, range(7))  # nobody is subscribed
            await broker.start()
        else:
            broker.kick(CLIENT)
        await until(lambda: bool(found) and session.subscribed, "it is back, and was missed")
        (problem,) = lost.problems()
        assert problem.id == "session-lost"
        assert f"session 0 ({CLIENT}) at " in problem.text
        assert found[0].left_ms is not None
        await watch.look()
        said = lost.problems()[0].text
        if how == "restart":
            assert said.endswith("EMQX counted meanwhile, of all clients: messages.dropped.no_subscribers +7.")
        else:
            assert "EMQX counted none of it" in said, "as it is with EMQX"
        await watch.stop(0)


async def test_a_break_that_the_session_outlives_is_no_loss(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker, running(broker, tmp_path) as (lost, found, _, session):
        for _ in range(2):
            session.standing.clear()
            broker.link(CLIENT).transport.abort()
            await asyncio.wait_for(session.standing.wait(), 60)
        assert not found
        assert not lost.away()


@pytest.mark.parametrize("verb", list(StopVerb))
async def test_a_session_gone_between_two_lives_is_a_loss_unless_it_was_ended(tmp_path: Path, verb: StopVerb) -> None:
    async with ScriptedBroker() as broker:
        async with running(broker, tmp_path, verb=verb) as (_, found, _, _):
            assert not found, "the first connect ever"
        if verb is StopVerb.RESTART:
            await broker.stop()
            await broker.start()
        async with running(broker, tmp_path) as (lost, found, _, _):
            assert [loss.client_id for loss in found] == ([CLIENT] if verb is StopVerb.RESTART else [])
            assert len(lost.problems()) == len(found)


async def test_without_persistence_nothing_is_lost(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker:
        async with running(broker, tmp_path):
            pass
        async with running(broker, tmp_path, persistent=False) as (_, found, _, session):
            session.standing.clear()
            broker.link(CLIENT).transport.abort()
            await asyncio.wait_for(session.standing.wait(), 60)
            assert not found
