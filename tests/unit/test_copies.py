"""Which group takes a message that the sessions of two receive, also while subscriptions are new or sessions away."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from bridge.routing.filters import Subscription
from gateway.components.copies import AGAIN_S, SPREAD_S, Copies
from tests.unit.manual_time import at_end, in_manual_time

ALARMS = "$share/gateway/devices/+/alarm"


class Session:
    """As much of a session as its group's copies need."""

    def __init__(self, *filters: str) -> None:
        self.plan = SimpleNamespace(client_id="gw", subscriptions=[Subscription(text, 1) for text in filters])
        self.record = SimpleNamespace(filters=filters)
        self.standing = asyncio.Event()
        self.receives = False
        self.empty = asyncio.Event()
        self.established: tuple[str, ...] = ()
        self.disk_errors = 0

    async def emptied(self) -> None:
        await self.empty.wait()

    def establish(self, filters: tuple[str, ...]) -> None:
        if self.disk_errors:
            self.disk_errors -= 1
            raise OSError(28, "No space left on device")
        self.established = filters

    def stand(self) -> None:
        self.receives = True
        self.standing.set()


def group(name: str, *sessions: Session) -> Any:
    return SimpleNamespace(plan=SimpleNamespace(name=name), dispatcher=SimpleNamespace(), sessions=sessions)


class Site:
    """Alarms with two sessions, everything else with one."""

    def __init__(self) -> None:
        self.alarms = [Session(ALARMS), Session(ALARMS)]
        self.other = Session("$share/gateway/devices/#")
        self.failed = Mock()
        urgent, default = group("urgent", *self.alarms), group("", self.other)
        self.copies = Copies([default, urgent], self.failed)
        self.receives = default.dispatcher.receives
        at_end(self.close)

    async def close(self) -> None:
        await self.copies.close()
        assert not self.failed.mock_calls

    def begin(self) -> None:
        self.copies.look()
        self.copies.establish()

    def drops(self) -> bool:
        """Whether a copy of an alarm is dropped."""
        return bool(self.receives("urgent", "devices/1/alarm"))

    async def established(self) -> None:
        for session in (*self.alarms, self.other):
            session.stand()
            session.empty.set()
        self.begin()
        await asyncio.sleep(2 * SPREAD_S)
        assert self.drops()


async def test_copies_are_dropped_once_every_queue_of_another_group_was_empty_after_the_suback() -> None:
    site = Site()
    site.begin()
    for change in (site.alarms[0].stand, site.other.empty.set, site.alarms[1].stand):
        await asyncio.sleep(2 * SPREAD_S)
        assert not site.drops()
        change()
    await asyncio.sleep(SPREAD_S / 2)
    assert not site.drops(), "another node of the cluster may not know of the subscription yet"
    await asyncio.sleep(SPREAD_S)
    assert site.drops()
    assert not site.receives("urgent", "devices/1/telemetry")
    assert site.alarms[0].established == (ALARMS,)


async def test_copies_are_taken_while_all_sessions_of_their_group_are_away() -> None:
    site = Site()
    await site.established()
    site.alarms[0].receives = False
    assert site.drops(), "the group has another member"
    site.alarms[1].receives = False
    assert not site.drops()
    site.alarms[0].receives = True
    assert site.drops()


async def test_a_session_that_the_broker_has_lost_begins_anew() -> None:
    site = Site()
    await site.established()
    site.other.empty.clear()
    for session in site.alarms:
        session.disk_errors = 1
        session.absent(session)  # type: ignore[attr-defined]
    await asyncio.sleep(2 * SPREAD_S)
    assert not site.drops()
    site.other.empty.set()
    await asyncio.sleep(2 * SPREAD_S)
    assert site.drops()


async def test_a_filter_of_a_reload_is_not_established_by_what_was_waited_for_before() -> None:
    site = Site()
    await site.established()
    site.other.empty.clear()
    changed = "$share/gateway/devices/+/alert"
    site.copies.look()
    for session in site.alarms:
        session.plan.subscriptions = [Subscription(ALARMS, 1), Subscription(changed, 1)]
        session.record.filters = (ALARMS, changed)
    site.copies.establish()
    await asyncio.sleep(2 * SPREAD_S)
    assert site.drops()
    assert not site.receives("urgent", "devices/1/alert")
    site.begin()
    site.alarms[1].disk_errors = 1
    site.other.empty.set()
    await asyncio.sleep(2 * SPREAD_S)
    assert not site.receives("urgent", "devices/1/alert")
    await asyncio.sleep(AGAIN_S)
    assert site.receives("urgent", "devices/1/alert")


in_manual_time(globals())
