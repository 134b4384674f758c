"""What a session is to be subscribed to changes at awkward moments, on a broker that takes its time to answer."""

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from bridge.routing.filters import Subscription
from gateway.base.lifecycle import StopVerb
from gateway.data_dir.session_registry import SessionRegistry
from gateway.mqtt.session import Session
from tests.brokers import packets
from tests.brokers.data_path import MemoryPath, settings_for
from tests.brokers.packets import Type
from tests.brokers.scripted import ScriptedBroker
from tests.brokers.scripted_link import Link
from tests.brokers.scripted_rules import Session as BrokerSession
from tests.waiting import until

NAME = "gateway-0-0"
FIRST = Subscription("$share/gateway/devices/#", 1)
SECOND = Subscription("$share/gateway/meters/#", 1)
THIRD = Subscription("$share/gateway/alarms/#", 1)


class SlowBroker(ScriptedBroker):
    """Keeps what it has to answer of the kinds in ``slow`` until ``go_on``."""

    def __init__(self) -> None:
        super().__init__()
        self.slow: set[Type] = set()
        self.kept: list[tuple[Link, bytes]] = []

    def connected(self, link: Link, connect: packets.Connect) -> None:
        send = link.send

        def keep(data: bytes) -> None:
            if data[0] >> 4 in self.slow:
                self.kept.append((link, data))
            else:
                send(data)

        link.send = keep  # type: ignore[method-assign]
        super().connected(link, connect)

    def go_on(self) -> None:
        self.slow.clear()
        kept, self.kept = self.kept, []
        for link, data in kept:
            link.send(data)

    def filters(self) -> set[str]:
        found: BrokerSession = self.session(NAME)
        return set(found.filters)


@contextlib.asynccontextmanager
async def one_session(
    broker: SlowBroker, directory: Path, verb: StopVerb = StopVerb.RESTART
) -> AsyncIterator[tuple[Session, SessionRegistry]]:
    """A session that is subscribed to FIRST, and the account of what brokers have for it."""
    async with MemoryPath(settings_for(broker, mqtt={"connect_timeout": "10m"})) as path:
        path.verb = verb
        registry = SessionRegistry(directory / "sessions.json")
        path.data_path = replace(path.data_path, registry=registry)
        session = path.session(client_id=NAME)
        registry.record([session.record])
        async with path.running(session):
            try:
                yield session, registry
            finally:
                broker.go_on()


async def test_what_is_wanted_while_a_subscribe_is_under_way_is_asked_for_too(tmp_path: Path) -> None:
    """A reload that meets a session between CONNACK and SUBACK: the SUBSCRIBE under way knows nothing of it."""
    async with SlowBroker() as broker, one_session(broker, tmp_path) as (session, _):
        broker.slow = {Type.SUBACK}
        broker.link(NAME).transport.abort()
        await until(lambda: bool(broker.kept), "it is back, and waits for its SUBACK")
        assert not await session.subscribe((FIRST, SECOND))
        broker.go_on()
        await until(lambda: session.subscribed, "it is subscribed")
        assert broker.filters() == {FIRST.filter, SECOND.filter}


async def test_what_is_wanted_no_more_by_then_is_left(tmp_path: Path) -> None:
    async with SlowBroker() as broker, one_session(broker, tmp_path) as (session, registry):
        broker.slow = {Type.SUBACK}
        broker.link(NAME).transport.abort()
        await until(lambda: bool(broker.kept), "it is back, and waits for its SUBACK")
        await session.subscribe((SECOND,))
        await session.leave_stale()
        broker.go_on()
        await until(lambda: broker.filters() == {SECOND.filter}, "the other is left")
        await until(lambda: registry.records[0].filters == (SECOND.filter,), "and the account says so")


async def test_a_second_change_before_the_session_is_back_forgets_no_filter(tmp_path: Path) -> None:
    """Two reloads while the broker is away: it still has the filter of before the first."""
    async with SlowBroker() as broker, one_session(broker, tmp_path) as (session, registry):
        await broker.stop(keep_sessions=True)
        await until(lambda: not session.subscribed, "it is disconnected")
        for wanted in (SECOND, THIRD):
            assert not await session.subscribe((wanted,))
            await session.leave_stale()
        await broker.start()
        await until(lambda: broker.filters() == {THIRD.filter}, "the others are left")
        await until(lambda: registry.records[0].filters == (THIRD.filter,), "and the account says so")


async def test_a_session_that_retires_leaves_also_what_is_wanted_no_more(tmp_path: Path) -> None:
    """What comes by such a filter behind the last PINGRESP would be lost with the session."""
    async with SlowBroker() as broker, one_session(broker, tmp_path, StopVerb.RETIRE) as (session, _):
        assert await session.subscribe((SECOND,))
        broker.slow = {Type.UNSUBACK}
        stop = asyncio.create_task(session.stop(time.monotonic_ns() + 60_000_000_000))
        await until(lambda: bool(broker.kept), "it unsubscribes")
        assert not broker.filters()
        broker.go_on()
        await stop


async def test_a_session_that_retires_subscribes_to_nothing_more(tmp_path: Path) -> None:
    async with SlowBroker() as broker, one_session(broker, tmp_path, StopVerb.RETIRE) as (session, _):
        broker.slow = {Type.SUBACK, Type.UNSUBACK}
        broker.link(NAME).transport.abort()
        await until(lambda: bool(broker.kept), "it is back, and waits for its SUBACK")
        await session.subscribe((FIRST, SECOND))
        stop = asyncio.create_task(session.stop(time.monotonic_ns() + 60_000_000_000))
        await until(lambda: len(broker.kept) == 2, "it unsubscribes")
        asked = len(broker.subscribes)
        broker.go_on()
        await stop
        assert len(broker.subscribes) == asked


async def test_what_comes_while_others_are_left_stays_in_the_account(tmp_path: Path) -> None:
    """Of a filter that is missing there nobody would know later that the broker has it."""
    async with SlowBroker() as broker, one_session(broker, tmp_path) as (session, registry):
        assert await session.subscribe((SECOND,))
        broker.slow = {Type.UNSUBACK}
        leaving = asyncio.create_task(session.leave_stale())
        await until(lambda: bool(broker.kept), "the first is being left")
        assert await session.subscribe((SECOND, THIRD))
        broker.go_on()
        await leaving
        assert set(registry.records[0].filters) == {SECOND.filter, THIRD.filter}
        assert await session.subscribe((SECOND,))
        await session.leave_stale()
        assert broker.filters() == {SECOND.filter}


async def test_a_filter_that_is_wanted_again_while_it_is_left_stays(tmp_path: Path) -> None:
    async with SlowBroker() as broker, one_session(broker, tmp_path) as (session, registry):
        assert await session.subscribe((SECOND,))
        broker.slow = {Type.UNSUBACK}
        leaving = asyncio.create_task(session.leave_stale())
        await until(lambda: bool(broker.kept), "the first is being left")
        assert await session.subscribe((SECOND, FIRST))
        broker.go_on()
        await leaving
        assert broker.filters() == {FIRST.filter, SECOND.filter}
        assert set(registry.records[0].filters) == {FIRST.filter, SECOND.filter}


async def test_a_full_disk_changes_no_filters_and_the_way_back_needs_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload took a filter away and added one: its way back failed too, and the worker was killed for it."""
    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    async with SlowBroker() as broker, one_session(broker, tmp_path) as (session, _):
        with monkeypatch.context() as disk:
            disk.setattr("gateway.data_dir.durable.write", full)
            with pytest.raises(OSError, match="No space left"):
                await session.subscribe((SECOND,))
            assert await session.subscribe((FIRST,))
        assert await session.subscribe((SECOND,))
        with monkeypatch.context() as disk:  # which another worker of this reload cannot write to
            disk.setattr("gateway.data_dir.durable.write", full)
            assert await session.subscribe((FIRST,))
            await session.leave_stale()
        assert broker.filters() == {FIRST.filter}


async def test_two_that_leave_filters_at_once_both_hear_of_it(tmp_path: Path) -> None:
    """The session's own clean-up after a connect, and a reload's."""
    async with SlowBroker() as broker, one_session(broker, tmp_path) as (session, registry):
        assert await session.subscribe((SECOND,))
        broker.slow = {Type.UNSUBACK}
        both = asyncio.gather(session.leave_stale(), session.leave_stale())
        await until(lambda: len(broker.kept) == 2, "both are told to the broker")
        broker.go_on()
        async with asyncio.timeout(60):  # less than a time-out of the session's
            await both
        assert registry.records[0].filters == (SECOND.filter,)
